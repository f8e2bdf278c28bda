/* states.h - the states of a grammar while a text is read, which are stacks that share their common parts; and the
 * tokens that may follow in a state.
 *
 * A state is the set of all places where the grammar may be. A place is a node of the automaton and what is below it:
 * the places that the running rule may return to, which are a set of places again. Each set exists once. So a state is
 * one pointer, two equal states are the same pointer, and the state of a tree node costs nothing to keep and nothing to
 * forget. The state after a byte is computed once and then kept in a table of the state before.
 *
 * All work is counted, one unit for about what it costs to look at an edge. A quota bounds it: where it runs out, a
 * function returns STATES_WAIT (or NULL), keeps what it has done, and goes on from there when it is called again with
 * the same arguments and a new quota.
 *
 * Not thread-safe; the owner has a lock (grammar.c). */
#ifndef GRAMMAR_STATES_H
#define GRAMMAR_STATES_H

#include "base/hash.h"
#include "grammar/automaton.h"
#include "grammar/token_trie.h"

typedef struct GrammarState GrammarState;
typedef struct GrammarStates GrammarStates;
typedef struct TokenMask TokenMask;

enum { STATES_WAIT = 1 }; /* a status in addition to those of fr_code: the quota ran out */

typedef struct GrammarFrame {
    int32_t node;              /* a node of the automaton; or ~call for a counted call that is running */
    int32_t count;             /* for a counted call, how often its rule has ended; 0 for a node */
    const GrammarState *below; /* NULL for AUTOMATON_ACCEPT */
} GrammarFrame;

enum { STATE_MAX_RUNS = 3 };

/* A set of characters of which the state can read n in any order. */
typedef struct StateRun {
    const CharRun *characters;
    int32_t n; /* INT32_MAX: any number */
} StateRun;

struct GrammarState {
    uint32_t id, n; /* n: frames; 0: nothing can follow and the text has not matched */
    uint64_t hash;
    bool accepts;        /* the text may end here */
    bool is_free;        /* the text is in a part that the grammar leaves free */
    bool reads_controls; /* some place reads control tokens */
    bool has_runs;
    int8_t n_runs;
    StateRun runs[STATE_MAX_RUNS]; /* valid with has_runs */
    const GrammarState **next;     /* [n_classes] the state after a byte of a class; NULL: not known. NULL at first */
    const GrammarState *controls;  /* states_for_controls; NULL: not known */
    const TokenMask *mask;         /* NULL: not known */
    GrammarFrame frames[];         /* [n] sorted */
};

/* The automaton is borrowed. NULL: no memory, or the first state has too many places. */
GrammarStates *states_new(const Automaton *a);
void states_free(GrammarStates *s); /* NULL is fine */
const GrammarState *states_start(const GrammarStates *s);
const Automaton *states_automaton(const GrammarStates *s);
size_t states_bytes(const GrammarStates *s); /* memory in use */

/* Sets the quota of work from now on; at first there is no bound. What is left of it may be a little below 0. */
void states_set_quota(GrammarStates *s, int64_t units);
int64_t states_quota(const GrammarStates *s);
void states_spend(GrammarStates *s, int64_t units); /* for work that is done with states elsewhere */

/* Finds the state after a byte. Fails where memory runs out or a limit is exceeded. */
int states_read(GrammarStates *s, const GrammarState *state, uint8_t byte, const GrammarState **next, fr_error *err);
/* Finds the state that has only the places that read control tokens. */
int states_for_controls(GrammarStates *s, const GrammarState *state, const GrammarState **out, fr_error *err);
/* Returns the one state with these frames, which are sorted in place. NULL: no memory. */
const GrammarState *states_intern(GrammarStates *s, GrammarFrame *frames, int32_t n);
/* Finds the same state among other states of the same automaton (state_move.c). NULL: no memory. */
const GrammarState *states_move(GrammarStates *to, const GrammarState *state);
/* Finds the runs of a state, which is done when they are first needed (state_runs.c). */
void states_find_runs(const GrammarStates *s, const GrammarState *state);
/* Memory that lives as long as the states; zeroed. NULL: none. */
void *states_alloc(GrammarStates *s, size_t bytes);

/* Returns the state after a byte of this class, where that is known; otherwise NULL, and states_read finds it. */
static inline const GrammarState *states_known(const GrammarState *state, int class) {
    return state->next ? state->next[class] : NULL;
}
/* Returns whether the text is complete: it matches, and nothing can follow. */
static inline bool state_is_complete(const GrammarState *s) { return s->accepts && s->n == 1; }

/* ---- masks of tokens (token_mask.c) ---------------------------------------------------------------------- */

/* A token is allowed if a text that the grammar matches can go on with its bytes. Tokens that end a text are allowed
 * where the text matches. Control tokens are read by their spelling in text that the grammar leaves free and where
 * it wants a mark (GrammarNode.reads_controls); they are not allowed elsewhere. */
struct TokenMask {
    int32_t n_allowed;
    uint64_t bits[]; /* [n_words of the trie] bit i: token i is allowed */
};

/* A mask that is being computed. */
typedef struct MaskWork MaskWork;

/* Finds the mask of a state, which is computed once and belongs to the states. STATES_WAIT: the quota of the states ran
 * out; *work (NULL at first) then keeps what has been done for the next call. Work for another state is given up. */
int token_mask_find(MaskWork **work, GrammarStates *s, const TokenTrie *t, const GrammarState *state,
                    const TokenMask **out, fr_error *err);
void mask_work_free(MaskWork *work); /* NULL is fine; call it before the states are freed */
/* The same without a quota. NULL: it failed. */
const TokenMask *token_mask_of(GrammarStates *s, const TokenTrie *t, const GrammarState *state, fr_error *err);
/* Finds the same bits by reading each token: slow, for tests. bits: [n_words]. */
int token_mask_slow(GrammarStates *s, const TokenTrie *t, const GrammarState *state, uint64_t *bits, fr_error *err);

/* Replaces *state by the one after a token; a token that is not allowed leads to the state without places. After a
 * token that ends the text nothing is allowed either. STATES_WAIT: the quota ran out, and *state is what it was. */
int token_read(GrammarStates *s, const TokenTrie *t, int32_t token, const GrammarState **state, bool *allowed,
               fr_error *err);

/* Copies the logits of the tokens that are allowed, and writes -INFINITY for the others. */
void token_mask_apply(const TokenMask *m, const float *logits, int32_t n_vocab, float *out);

#endif

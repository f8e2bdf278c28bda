/* states.h - the states of a grammar while a text is read: stacks that share what they have in common.
 *
 * A state is the set of all places where the grammar may be. A place is a node of the automaton and what is below it: the
 * places that the running rule may return to, which is a set of places again. Each set exists once, so a state is one
 * pointer, two equal states are the same pointer, and the state of a tree node costs nothing to keep and nothing to forget.
 * The state after a byte is found once and then kept in a table of the state before.
 *
 * Not thread-safe; the owner locks (grammar.c). */
#ifndef GRAMMAR_STATES_H
#define GRAMMAR_STATES_H

#include "base/hash.h"
#include "grammar/automaton.h"

typedef struct GrammarState GrammarState;
typedef struct GrammarStates GrammarStates;
typedef struct TokenMask TokenMask;

typedef struct GrammarFrame {
    int32_t node;  /* >= 0: a node of the automaton; otherwise ~call, a counted call that is running for the ... */
    int32_t count; /* ... time number count + 1; 0 for a node */
    const GrammarState *below; /* NULL: of AUTOMATON_ACCEPT */
} GrammarFrame;

enum { STATE_MAX_RUNS = 3 };

/* Characters that the state can read, so many of them. */
typedef struct StateRun {
    const CharRun *characters;
    int32_t n; /* INT32_MAX: without end */
} StateRun;

struct GrammarState {
    uint32_t id, n; /* n: frames; 0: nothing can follow and the text has not matched */
    uint64_t hash;
    bool accepts;        /* the text may end here */
    bool is_free;        /* in text that the grammar leaves free */
    bool reads_controls; /* some place reads control tokens */
    bool has_runs;
    int8_t n_runs;
    StateRun runs[STATE_MAX_RUNS]; /* valid with has_runs */
    const GrammarState **next;     /* [n_classes] NULL: not known; the table itself is NULL at first */
    const TokenMask *mask;         /* NULL: not known */
    GrammarFrame frames[];         /* [n] sorted */
};

/* The automaton is borrowed. NULL: no memory. */
GrammarStates *states_new(const Automaton *a);
void states_free(GrammarStates *s); /* NULL is fine */
const GrammarState *states_start(const GrammarStates *s);
const Automaton *states_automaton(const GrammarStates *s);
size_t states_bytes(const GrammarStates *s); /* memory in use */

/* The state after a byte. NULL: memory ran out, or there are too many places; *err says so. */
const GrammarState *states_next(GrammarStates *s, const GrammarState *state, uint8_t byte, fr_error *err);
/* The places of a state that read control tokens, as a state. NULL: no memory. */
const GrammarState *states_for_controls(GrammarStates *s, const GrammarState *state);
/* The one state with these frames, which are sorted in place. NULL: no memory. */
const GrammarState *states_intern(GrammarStates *s, GrammarFrame *frames, int32_t n);
/* The same state among other states of the same automaton; NULL: no memory. */
const GrammarState *states_move(GrammarStates *to, const GrammarState *state);
/* The runs of a state, found when they are first needed. */
void states_find_runs(const GrammarStates *s, const GrammarState *state);
/* Memory that lives as long as the states; zeroed. NULL: none. */
void *states_alloc(GrammarStates *s, size_t bytes);

/* What follows from a byte of this class, where that is known already; NULL: ask states_next. */
static inline const GrammarState *states_known(const GrammarState *state, int class) {
    return state->next ? state->next[class] : NULL;
}
/* Whether the text is complete: it matches, and nothing can follow. */
static inline bool state_is_complete(const GrammarState *s) { return s->accepts && s->n == 1; }

#endif

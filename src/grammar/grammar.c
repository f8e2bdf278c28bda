/* grammar.c - compiles grammars within limits, and shares states and masks among their texts.
 *
 * States and masks are computed while texts are generated, and are shared by all texts of the grammar: a server's
 * requests with one schema compute each mask once. States only grow, because tree nodes and requests hold pointers to
 * them, so they are bounded by epochs. When the states of an epoch take more than MAX_EPOCH_BYTES, the grammar begins a
 * new one; each text moves to it before its next step and takes its own state along, and the last text to leave frees
 * the old epoch.
 *
 * A grammar that begins after another text, such as "</think>", has an automaton of its own (automaton_after), with
 * epochs of its own. Such an automaton is called a phase. */
#include "grammar/grammar.h"

#include "grammar/readers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EPOCH_BYTES = 64 << 20, MAX_PHASES = 16 };
enum { MAX_COMPILE_BYTES = 512 << 20, MAX_COMPILE_STEPS = 20000000, MAX_COMPILE_DEPTH = 400 };

typedef struct GrammarEpoch {
    int n_users; /* the texts, and the phase while this is its current epoch */
    GrammarStates *states;
} GrammarEpoch;

typedef struct GrammarPhase {
    char opening[GRAMMAR_MAX_AFTER], after[GRAMMAR_MAX_AFTER];
    size_t n_opening, n_after;
    Automaton *automaton;
    GrammarEpoch *current; /* NULL: none yet */
} GrammarPhase;

struct Grammar {
    pthread_mutex_t lock; /* over everything below except the notice */
    int n_owners;
    const TokenTrie *trie;
    char notice[GRAMMAR_NOTICE];
    GrammarPhase phases[MAX_PHASES]; /* the first one is the grammar itself */
    int n_phases;
};

static void leave_epoch(GrammarEpoch *e) {
    if (!e || --e->n_users > 0) return;
    states_free(e->states);
    free(e);
}

/* ---- compiling ------------------------------------------------------------------------------------------- */

typedef struct Compile {
    ExprGrammar g;
    GrammarKind kind;
    const char *text;
    size_t n;
    char *notice;
    Automaton *built;
} Compile;

static void compile(void *subject) {
    Compile *c = subject;
    if (c->kind == GRAMMAR_JSON_SCHEMA) schema_read(&c->g, c->text, c->n, c->notice, GRAMMAR_NOTICE);
    else if (c->kind == GRAMMAR_GBNF) gbnf_read(&c->g, c->text, c->n, c->notice, GRAMMAR_NOTICE);
    else regex_read(&c->g, c->text, c->n);
    c->built = automaton_build(&c->g);
}

static int compile_text(Automaton **out, GrammarKind kind, const char *text, size_t n, GrammarStop stop, char *notice,
                        fr_error *err) {
    Work w = {.max_bytes = MAX_COMPILE_BYTES,
              .max_steps = MAX_COMPILE_STEPS,
              .max_depth = MAX_COMPILE_DEPTH,
              .should_stop = stop.should_stop,
              .stop_user = stop.user};
    Compile c = {.g.w = &w, .kind = kind, .text = text, .n = n, .notice = notice};
    fr_error own;
    *out = NULL;
    int status = work_run(&w, compile, &c, err ? err : &own);
    if (!status && !(*out = automaton_copy(c.built))) status = error_memory(err, "a grammar", sizeof **out);
    work_free(&w);
    return status;
}

/* Returns the current epoch of a phase, with one more user. NULL: no memory, or the grammar begins in too many
 * places. */
static GrammarEpoch *join_epoch(GrammarPhase *p) {
    if (p->current && states_bytes(p->current->states) > MAX_EPOCH_BYTES) {
        leave_epoch(p->current);
        p->current = NULL;
    }
    if (!p->current) {
        GrammarEpoch *e = calloc(1, sizeof *e);
        if (!e) return NULL;
        if (!(e->states = states_new(p->automaton))) {
            free(e);
            return NULL;
        }
        e->n_users = 1;
        p->current = e;
    }
    p->current->n_users++;
    return p->current;
}

int grammar_open(Grammar **out, const TokenTrie *trie, GrammarKind kind, const char *text, size_t n, GrammarStop stop,
                 fr_error *err) {
    *out = NULL;
    if (n > GRAMMAR_MAX_TEXT)
        return error_set(err, FR_ERR_ARGUMENT, "the grammar has %zu bytes; the limit is %d", n, GRAMMAR_MAX_TEXT);
    Grammar *g = calloc(1, sizeof *g);
    if (!g) return error_memory(err, "a grammar", sizeof *g);
    int status = compile_text(&g->phases[0].automaton, kind, text, n, stop, g->notice, err);
    GrammarEpoch *first = status ? NULL : join_epoch(&g->phases[0]); /* here, because the first state takes work, too */
    if (!status && !first)
        status = error_set(err, FR_ERR_UNSUPPORTED,
                           "the grammar can begin in more places than a state may have, or memory ran out");
    if (status) {
        free(g->phases[0].automaton);
        free(g);
        return status;
    }
    leave_epoch(first);
    pthread_mutex_init(&g->lock, NULL);
    g->n_owners = g->n_phases = 1;
    g->trie = trie;
    *out = g;
    return FR_OK;
}

void grammar_release(Grammar *g) {
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    int n_left = --g->n_owners;
    pthread_mutex_unlock(&g->lock);
    if (n_left > 0) return;
    for (int i = 0; i < g->n_phases; i++) {
        leave_epoch(g->phases[i].current);
        free(g->phases[i].automaton);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

const char *grammar_notice(const Grammar *g) { return g->notice; }
const TokenTrie *grammar_trie(const Grammar *g) { return g->trie; }

size_t grammar_bytes(Grammar *g) {
    size_t n = sizeof *g;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < g->n_phases; i++) {
        n += g->phases[i].automaton->n_bytes;
        if (g->phases[i].current) n += states_bytes(g->phases[i].current->states);
    }
    pthread_mutex_unlock(&g->lock);
    return n;
}

/* ---- texts ----------------------------------------------------------------------------------------------- */

static bool is_phase(const GrammarPhase *p, const char *opening, size_t n_opening, const char *after, size_t n_after) {
    return p->n_opening == n_opening && memcmp(p->opening, opening, n_opening) == 0 && p->n_after == n_after &&
           memcmp(p->after, after, n_after) == 0;
}

/* Returns the phase of a grammar that begins after these texts. NULL: no memory, or there are too many phases. */
static GrammarPhase *find_phase(Grammar *g, const char *opening, const char *after) {
    size_t n_opening = strlen(opening), n_after = strlen(after);
    for (int i = 0; i < g->n_phases; i++)
        if (is_phase(&g->phases[i], opening, n_opening, after, n_after)) return &g->phases[i];
    if (g->n_phases == MAX_PHASES) return NULL;
    GrammarPhase *p = &g->phases[g->n_phases];
    *p = (GrammarPhase){.n_opening = n_opening,
                        .n_after = n_after,
                        .automaton = automaton_after(g->phases[0].automaton, opening, n_opening, after, n_after)};
    if (!p->automaton) return NULL;
    memcpy(p->opening, opening, n_opening);
    memcpy(p->after, after, n_after);
    g->n_phases++;
    return p;
}

static int check_after(const char *opening, const char *after, fr_error *err) {
    size_t n = strlen(after) > strlen(opening) ? strlen(after) : strlen(opening);
    if (n > GRAMMAR_MAX_AFTER)
        return error_set(err, FR_ERR_ARGUMENT, "the text that a grammar begins after has %zu bytes; the limit is %d", n,
                         GRAMMAR_MAX_AFTER);
    if (*opening && !*after)
        return error_set(err, FR_ERR_ARGUMENT,
                         "an opening needs a text that ends it, after which the grammar begins: pass grammar_after");
    return FR_OK;
}

int grammar_text_begin(GrammarText *x, Grammar *g, const char *opening, const char *after, fr_error *err) {
    if (!opening) opening = "";
    if (!after) after = "";
    *x = (GrammarText){0};
    int status = check_after(opening, after, err);
    if (status) return status;
    pthread_mutex_lock(&g->lock);
    GrammarPhase *p = find_phase(g, opening, after);
    GrammarEpoch *e = p ? join_epoch(p) : NULL;
    bool is_full = g->n_phases == MAX_PHASES;
    if (e) g->n_owners++;
    pthread_mutex_unlock(&g->lock);
    if (!p && is_full)
        return error_set(err, FR_ERR_MEMORY, "one grammar begins after at most %d different texts; open it again",
                         MAX_PHASES);
    if (!e) return error_memory(err, "the states of a grammar", sizeof *e);
    *x = (GrammarText){.grammar = g, .phase = p, .epoch = e, .state = states_start(e->states)};
    return FR_OK;
}

void grammar_text_end(GrammarText *x) {
    if (!x->grammar) return;
    mask_work_free(x->mask_work);
    pthread_mutex_lock(&x->grammar->lock);
    leave_epoch(x->epoch);
    pthread_mutex_unlock(&x->grammar->lock);
    grammar_release(x->grammar);
    *x = (GrammarText){0};
}

int grammar_text_refresh(GrammarText *x, fr_error *err) {
    int status = FR_OK;
    pthread_mutex_lock(&x->grammar->lock);
    if (x->phase->current != x->epoch || states_bytes(x->epoch->states) > MAX_EPOCH_BYTES) {
        GrammarEpoch *e = join_epoch(x->phase);
        const GrammarState *moved = e ? states_move(e->states, x->state) : NULL;
        if (moved) mask_work_free(x->mask_work), x->mask_work = NULL;
        leave_epoch(moved ? x->epoch : e);
        if (moved) x->epoch = e, x->state = moved;
        else status = error_memory(err, "the states of a grammar", sizeof *e);
    }
    pthread_mutex_unlock(&x->grammar->lock);
    return status;
}

/* Takes the lock, and returns the states of the text with the text's quota. */
static GrammarStates *enter(const GrammarText *x) {
    pthread_mutex_lock(&x->grammar->lock);
    states_set_quota(x->epoch->states, x->quota ? x->quota->left : INT64_MAX);
    return x->epoch->states;
}

static int leave(const GrammarText *x, int status) {
    if (x->quota) x->quota->left = states_quota(x->epoch->states);
    if (x->quota && status == STATES_WAIT) x->quota->ran_out = true;
    pthread_mutex_unlock(&x->grammar->lock);
    return status;
}

int grammar_text_read(const GrammarText *x, const GrammarState *from, int32_t token, const GrammarState **to,
                      bool *allowed, fr_error *err) {
    GrammarStates *s = enter(x);
    *to = from;
    return leave(x, token_read(s, x->grammar->trie, token, to, allowed, err));
}

int grammar_text_mask(GrammarText *x, const GrammarState *state, const TokenMask **out, fr_error *err) {
    GrammarStates *s = enter(x);
    return leave(x, token_mask_find(&x->mask_work, s, x->grammar->trie, state, out, err));
}

static bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

/* Returns the only byte that may follow; -1: there are several, or the text may end here. past_space: white space does
 * not count. */
static int forced_byte(const Automaton *a, const GrammarState *state, bool past_space) {
    int byte = -1;
    if (state->accepts || state->is_free) return -1;
    for (uint32_t i = 0; i < state->n; i++) {
        const GrammarNode *x = &a->nodes[state->frames[i].node];
        for (int32_t k = x->first_edge; k < x->first_edge + x->n_edges; k++) {
            const GrammarEdge *e = &a->edges[k];
            if (past_space && is_space(e->lo) && is_space(e->hi)) continue;
            if (e->lo != e->hi || (byte >= 0 && byte != e->lo)) return -1;
            byte = e->lo;
        }
    }
    return byte;
}

size_t grammar_text_forced(const GrammarText *x, const GrammarState *state, bool past_space, char *out, size_t max,
                           const GrammarState **end) {
    size_t n = 0;
    int status = FR_OK;
    GrammarStates *s = enter(x);
    while (n < max) {
        const GrammarState *next;
        int byte = forced_byte(x->phase->automaton, state, past_space && n == 0);
        if (byte < 0 || (status = states_read(s, state, (uint8_t)byte, &next, NULL)) || next->n == 0) break;
        out[n++] = (char)byte;
        state = next;
    }
    *end = state;
    leave(x, status);
    return n;
}

bool grammar_text_may_read(const GrammarText *x, const GrammarState *from, uint8_t byte, const GrammarState **to) {
    GrammarStates *s = enter(x);
    return leave(x, states_read(s, from, byte, to, NULL)) == FR_OK && (*to)->n > 0;
}

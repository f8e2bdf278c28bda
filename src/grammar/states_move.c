/* states_move.c - what states are asked for besides the next one: their runs of characters, and a copy of one among other
 * states. */
#include "grammar/states.h"

#include <stdlib.h>
#include <string.h>

/* ---- runs ------------------------------------------------------------------------------------------------ */

static int size_of(const CharRun *r) {
    return __builtin_popcountll(r->ascii[0]) + __builtin_popcountll(r->ascii[1]) + 64 * r->non_ascii;
}

/* Keeps the largest, and of equal ones the longer. */
static void offer(GrammarState *state, const CharRun *characters, int32_t n) {
    int8_t i = 0, worst = 0;
    for (; i < state->n_runs; i++) {
        StateRun *r = &state->runs[i];
        if (r->characters == characters) {
            if (n > r->n) r->n = n;
            return;
        }
        if (size_of(r->characters) < size_of(state->runs[worst].characters)) worst = i;
    }
    if (i < STATE_MAX_RUNS) state->runs[state->n_runs++] = (StateRun){characters, n};
    else if (size_of(characters) > size_of(state->runs[worst].characters))
        state->runs[worst] = (StateRun){characters, n};
}

/* How often a counted call below may run the rule that begins at the node. */
static int32_t times_left(const Automaton *a, const GrammarFrame *f) {
    int32_t most = 0;
    for (uint32_t i = 0; i < f->below->n; i++) {
        const GrammarFrame *caller = &f->below->frames[i];
        if (caller->node >= 0) continue;
        const GrammarCall *c = &a->calls[~caller->node];
        if (a->rules[c->rule].start != f->node) continue;
        int32_t left = c->max == EXPR_UNBOUNDED ? INT32_MAX : c->max - caller->count;
        if (left > most) most = left;
    }
    return most;
}

void states_find_runs(const GrammarStates *s, const GrammarState *known) {
    GrammarState *state = (GrammarState *)(uintptr_t)known; /* its runs are not part of what it is */
    const Automaton *a = states_automaton(s);
    state->has_runs = true;
    for (uint32_t i = 0; i < state->n; i++) {
        const GrammarFrame *f = &state->frames[i];
        if (f->node < 0 || f->node == AUTOMATON_ACCEPT) continue;
        const GrammarNode *x = &a->nodes[f->node];
        if (x->loop >= 0) offer(state, &a->runs[x->loop], INT32_MAX);
        int32_t n = x->once >= 0 ? times_left(a, f) : 0;
        if (n > 1) offer(state, &a->runs[x->once], n);
    }
}

/* ---- moving ------------------------------------------------------------------------------------------------ */

typedef struct Move {
    const GrammarState **moved; /* [n_ids] by the old id; NULL: not moved */
    const GrammarState **found; /* [n_found] all that is below, itself included */
    uint32_t n_found;
} Move;

/* Each state below is found once; `moved` marks it meanwhile. */
static void find_below(Move *m, const GrammarState *state) {
    m->found[m->n_found++] = state;
    m->moved[state->id] = state;
    for (uint32_t i = 0; i < m->n_found; i++)
        for (uint32_t k = 0; k < m->found[i]->n; k++) {
            const GrammarState *below = m->found[i]->frames[k].below;
            if (!below || m->moved[below->id]) continue;
            m->moved[below->id] = below;
            m->found[m->n_found++] = below;
        }
}

static int by_id(const void *x, const void *y) {
    const GrammarState *a = *(const GrammarState *const *)x, *b = *(const GrammarState *const *)y;
    return a->id < b->id ? -1 : a->id > b->id;
}

static bool move_one(GrammarStates *to, const Move *m, const GrammarState *state) {
    GrammarFrame *frames = malloc((state->n + 1) * sizeof *frames);
    if (!frames) return false;
    for (uint32_t k = 0; k < state->n; k++) {
        frames[k] = state->frames[k];
        if (frames[k].below) frames[k].below = m->moved[frames[k].below->id];
    }
    m->moved[state->id] = states_intern(to, frames, (int32_t)state->n);
    free(frames);
    return m->moved[state->id] != NULL;
}

const GrammarState *states_move(GrammarStates *to, const GrammarState *state) {
    size_t n_ids = (size_t)state->id + 1; /* what is below is older */
    Move m = {.moved = calloc(n_ids, sizeof *m.moved), .found = malloc(n_ids * sizeof *m.found)};
    const GrammarState *result = NULL;
    if (m.moved && m.found) {
        find_below(&m, state);
        qsort(m.found, m.n_found, sizeof *m.found, by_id);
        uint32_t i = 0;
        while (i < m.n_found && move_one(to, &m, m.found[i])) i++;
        if (i == m.n_found) result = m.moved[state->id];
    }
    free(m.moved);
    free(m.found);
    return result;
}

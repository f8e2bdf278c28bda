/* state_runs.c - the runs of a state: sets of characters of which the state can read some number in any order.
 *
 * They follow from the runs of its nodes (automaton_runs.c). For a node at the beginning of a counted rule, the number
 * is what the counts of the calls below still allow. */
#include "grammar/states.h"

/* Returns the number of characters in a run, where those outside ASCII count as 64. */
static int size_of(const CharRun *r) {
    return __builtin_popcountll(r->ascii[0]) + __builtin_popcountll(r->ascii[1]) + 64 * r->non_ascii;
}

/* Offers a run to a state, which keeps the runs with the most characters. Of two runs of the same characters it keeps
 * the longer one. */
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

/* Returns how often a counted call below may still run the rule that begins at the node. */
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
    GrammarState *state = (GrammarState *)(uintptr_t)known; /* only its runs are filled in */
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

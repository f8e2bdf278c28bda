/* state_move.c - finds a state again among other states of the same automaton, so that the memory of old states can be
 * freed while texts go on.
 *
 * A state refers only to states that are older and have smaller ids. So the state and all that are below it are listed
 * and made again in the order of their ids, each from frames that refer to those made before. */
#include "grammar/states.h"

#include <stdlib.h>

typedef struct Move {
    const GrammarState **moved; /* [n_ids] by the old id; NULL: not moved */
    const GrammarState **found; /* [n_found] the state and all states below it */
    uint32_t n_found;
} Move;

/* Lists the state and all states below it, each once; `moved` marks those that have been listed. */
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
    size_t n_ids = (size_t)state->id + 1; /* states below are older and have smaller ids */
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

/* mask_plan.c - candidates now, or masks for the next step?
 *
 * The problem. A row of the target either verifies a candidate or reads a mask. Masks are useful only after the node
 * that turns out to be the last accepted one, which nobody knows beforehand. SPACE gives every node of its chain a full
 * group: k candidates and (k + 1) k masks.
 *
 * The idea: both are worth tokens. A candidate adds p_accept tokens to this step. Mask j after node v adds gain[j]
 * tokens to the next step if v is the last accepted node, which has the probability
 *
 *     last(v) = p_accept(v) - sum over its children of p_accept
 *
 * so it is worth last(v) gain[j]. For a given set of candidates the best masks are those of greatest value; the number
 * of candidates is the one with the greatest sum of both. It is at least one, so that a wrong estimate does not end
 * drafting.
 *
 *     budget 5, gain .6 .3:   the ── cat .5       candidate cat .5, masks after `the` .5 * .6 and .5 * .3, after `cat` the
 *                                                 same: .5 + .9 = 1.4; without the candidate .6 + .3 = .9
 *
 * Gains are means over held-out text, so they are right on average; a step at which little was drafted is worth less
 * than gain says. Test: test_draft_space.c, against all sets of masks. */
#include "draft/learned/mask_plan.h"

#include <stdlib.h>

static int better_first(const void *a, const void *b) {
    const PlannedMask *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->node != y->node ? x->node - y->node : x->mask - y->mask;
}

int32_t mask_plan(const Tree *t, int32_t n_nodes, const double *gain, int32_t n_masks, PlannedMask *out) {
    double last[TREE_MAX_NODES];
    int32_t n = 0;
    for (int32_t i = 0; i < n_nodes; i++) {
        last[i] = (double)t->nodes[i].p_accept;
        if (i > 0) last[t->nodes[i].parent] -= (double)t->nodes[i].p_accept;
    }
    for (int32_t i = 0; i < n_nodes; i++)
        for (int32_t j = 0; j < n_masks; j++) out[n++] = (PlannedMask){i, j, last[i] > 0 ? last[i] * gain[j] : 0};
    qsort(out, (size_t)n, sizeof *out, better_first);
    return n;
}

int32_t mask_plan_candidates(const Tree *t, const double *gain, int32_t n_masks, int32_t budget, PlannedMask *scratch) {
    int32_t best = 0;
    double best_sum = -1, accepted = 0;
    for (int32_t c = 1; c < t->n && c <= budget; c++) {
        int32_t n = mask_plan(t, c + 1, gain, n_masks, scratch);
        double sum = accepted += (double)t->nodes[c].p_accept;
        for (int32_t i = 0; i < n && i < budget - c; i++) sum += scratch[i].value;
        if (sum > best_sum) best = c, best_sum = sum;
    }
    return best;
}

/* budget_allocator.c - chooses which drafted nodes get a row.
 *
 * The problem: every node costs time, T(n + 1) - T(n), which is next to nothing while a forward waits for memory, and
 * the work of a whole row where it waits for arithmetic. Every node brings a token with probability p_accept. The right
 * size of a tree depends on the machine, the model, the batch and the text, and changes from step to step. A fixed
 * budget is wrong most of the time, and on a model that fits into the cache it makes generation slower than plain
 * decoding.
 *
 * The idea: time can be counted in tokens. At R tokens per second, a forward that takes dT longer costs R dT tokens, so
 * a set S of nodes gains
 *
 *     G(S) = sum over S of p_accept - R (T(base + |S|) - T(base))
 *
 * Maximising G in each step maximises tokens per second in the long run, when R is the rate so reached (Dinkelbach
 * 1967, on ratios of sums). Maximising (1 + sum p_accept) / T of the step by itself would stop too early in good steps.
 * The cost depends on |S| only, so for each size the best set is the one with the largest p_accept over all trees.
 * Because p_accept never rises along a path, that set is a tree within each tree. So the allocator sorts the nodes,
 * walks down the list, and keeps the size with the largest G. It does not stop where G falls: T rises in stairs (a row
 * that fills up a tile is free), and several nodes can pay where one does not. The empty set has G = 0, so nothing is
 * drafted that is expected to lose. (vLLM's adaptive verification ranks the positions of chains in the same way.)
 *
 *     p_accept 0.9 0.5 0.3, R T(1) = 1, R T(2..4) = 1.4 1.5 2.2:   G = 0.5, 0.9, 0.5: two nodes
 *
 * Invariant: the nodes kept are the best set by G, as brute force finds it (tests/engine/test_budget_allocator.c).
 * Cost: a sort of all nodes. The choice is as good as p_accept and T are, which calibration.c and cost_curve.c keep
 * true. */
#include "engine/budget_allocator.h"

#include <stdlib.h>

static int better_first(const void *a, const void *b) {
    const BudgetNode *x = a, *y = b;
    if (x->p_accept != y->p_accept) return x->p_accept > y->p_accept ? -1 : 1;
    return x->tree - y->tree;
}

int32_t allocate_budgets(const BudgetInput *in, int32_t *budgets) {
    int32_t n = 0, n_best = 0;
    for (int i = 0; i < in->n_trees; i++) {
        budgets[i] = 0;
        for (int32_t k = 1; k < in->trees[i]->n; k++)
            in->scratch[n++] = (BudgetNode){in->trees[i]->nodes[k].p_accept, i};
    }
    if (n == 0) return 0;
    qsort(in->scratch, (size_t)n, sizeof *in->scratch, better_first);
    double base_s = cost_curve_at(in->cost, in->n_base_rows), sum = 0, best = 0;
    for (int32_t k = 1; k <= n; k++) {
        double extra_s = cost_curve_at(in->cost, in->n_base_rows + k) - base_s;
        if (extra_s > in->max_extra_s) break;
        sum += (double)in->scratch[k - 1].p_accept;
        double gain = sum - in->tokens_per_s * extra_s;
        if (gain > best) best = gain, n_best = k;
    }
    for (int32_t k = 0; k < n_best; k++) budgets[in->scratch[k].tree]++;
    return n_best;
}

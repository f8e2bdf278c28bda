/* static_tree.c - trees whose shape is fixed in advance, in ranks and not in tokens (Medusa: Cai et al. 2024, arXiv
 * 2401.10774, section 2.3.3; EAGLE: Li et al. 2024, arXiv 2401.15077, whose tree is of this kind, too).
 *
 * The problem: which nodes are worth a row of the target, before the drafter has computed anything?
 *
 * The idea: "the second most probable token below the most probable one" is a node that can be named without knowing
 * the tokens: a path of ranks. If the token of rank r at depth d is right with chance a_d(r), whatever its ancestors
 * are, then the node is reached with the product of these chances along its path, and a tree of b nodes accepts the
 * sum of its nodes' products on average. The best tree consists of the b greatest products. It is a tree because
 * products never grow along a path, and it is found greedily, one node at a time: each node offers its next child.
 *
 *     a_1 = .6 .24, a_2 = .6 .24        0 ── 1: rank 0, .6 ── 2: rank 0, .36
 *                                        └─ 3: rank 1, .24     then rank 1 below node 1 and rank 0 below node 3, .144 each
 *
 * So the trees of all budgets are prefixes of one order, computed once. Of equal products the child of the earlier
 * node comes first. When it loses: it cannot use that a distribution at hand is sharp or flat, as the dynamic trees
 * of eagle and medusa do. Cost: n^2 / 2 comparisons for n nodes, once. Proof: tests/tree/test_static_tree.c, against
 * all paths. */
#include "tree/static_tree.h"

#include <math.h>

void static_tree_prior(double *chance, int32_t n_levels, int32_t n_ranks) {
    for (int32_t i = 0; i < n_levels * n_ranks; i++) chance[i] = 0.6 * pow(0.4, i % n_ranks);
}

void static_tree_build(StaticTree *t, const double *chance, int32_t n_levels, int32_t n_ranks, int32_t max_parents) {
    int32_t next_rank[TREE_MAX_NODES] = {0}, n_parents[TREE_MAX_NODES] = {0}; /* of each node; of each depth */
    t->nodes[0] = (StaticNode){.parent = -1};
    for (t->n = 1; t->n < TREE_MAX_NODES; t->n++) {
        int32_t best = -1;
        double best_log_chance = -INFINITY;
        for (int32_t i = 0; i < t->n; i++) {
            const StaticNode *node = &t->nodes[i];
            if (node->depth == n_levels || next_rank[i] == n_ranks) continue;
            if (next_rank[i] == 0 && n_parents[node->depth] == max_parents) continue;
            double sum = node->log_chance + log(chance[node->depth * n_ranks + next_rank[i]]);
            if (sum > best_log_chance) best = i, best_log_chance = sum;
        }
        if (best < 0) return;
        int32_t depth = t->nodes[best].depth;
        n_parents[depth] += next_rank[best] == 0;
        t->nodes[t->n] =
            (StaticNode){.parent = best, .rank = next_rank[best]++, .depth = depth + 1, .log_chance = best_log_chance};
    }
}

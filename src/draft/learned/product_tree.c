/* product_tree.c - the best products of the levels' probabilities, grown best first: each node offers its next child, by
 * rank, and the best offer of all is taken. A child's product is at most its parent's, so no better node comes later.
 * Tests: test_draft_medusa.c, against all products. */
#include "draft/learned/product_tree.h"

#include <math.h>

void product_tree_grow(const ProductRanks *r, int32_t budget, int32_t source, Tree *t) {
    double log_p[TREE_MAX_NODES] = {0};
    int32_t next_rank[TREE_MAX_NODES] = {0};
    for (int32_t n = 0; n < budget && t->n < TREE_MAX_NODES; n++) {
        int32_t best = -1;
        double best_log_p = -INFINITY;
        for (int32_t i = 0; i < t->n; i++) {
            int32_t depth = t->nodes[i].depth;
            if (depth == r->n_levels || next_rank[i] == r->n_tokens[depth]) continue;
            double sum = log_p[i] + r->log_p[depth * r->n_ranks + next_rank[i]];
            if (sum > best_log_p) best = i, best_log_p = sum;
        }
        if (best < 0) return;
        int32_t token = r->tokens[t->nodes[best].depth * r->n_ranks + next_rank[best]++];
        int32_t child = tree_add(t, best, token, (float)exp(best_log_p), source);
        log_p[child] = best_log_p;
        next_rank[child] = 0;
    }
}

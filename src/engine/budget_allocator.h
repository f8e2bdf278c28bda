/* budget_allocator.h - chooses which drafted nodes get a row of the forward, over all sequences, by the time that they
 * are expected to save. */
#ifndef ENGINE_BUDGET_ALLOCATOR_H
#define ENGINE_BUDGET_ALLOCATOR_H

#include "compute/cost.h"
#include "tree/tree.h"

typedef struct BudgetNode {
    float p_accept;
    int32_t tree;
} BudgetNode;

typedef struct BudgetInput {
    const Tree *const *trees; /* [n_trees], with calibrated p_accept; borrowed */
    int n_trees;
    int32_t n_base_rows; /* rows of the forward besides these drafted nodes: roots, prompts, trees with fixed budgets */
    const CostCurve *cost; /* not empty */
    double tokens_per_s;   /* R: what all sequences together generate now */
    double max_extra_s;    /* forward time that drafted nodes may add at most, however probable they are */
    BudgetNode *scratch;   /* room for all nodes below the roots of all trees */
} BudgetInput;

/* Sets budgets[i] to the number of drafted nodes that tree i should keep: its most probable ones, which union_prune
 * keeps. Returns the sum. */
int32_t allocate_budgets(const BudgetInput *in, int32_t *budgets);

#endif

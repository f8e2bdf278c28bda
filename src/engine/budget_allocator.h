/* budget_allocator.h - which drafted nodes get a row: over all sequences, by what they are expected to bring per second. */
#ifndef ENGINE_BUDGET_ALLOCATOR_H
#define ENGINE_BUDGET_ALLOCATOR_H

#include "backend/cost_curve.h"
#include "spec/tree/tree.h"

typedef struct BudgetNode {
    float p_accept;
    int32_t tree;
} BudgetNode;

typedef struct BudgetInput {
    const Tree *const *trees; /* [n_trees], p_accept calibrated */
    int n_trees;
    int32_t n_base_rows;      /* rows of the forward without any drafted node: roots, prompts, trees that are not planned */
    const CostCurve *cost;    /* not empty */
    double tokens_per_s;      /* what all sequences together make now: the price of a second */
    double max_extra_s;       /* forward time that drafts may add at most, however promising */
    BudgetNode *scratch;        /* room for all nodes below the roots of all trees */
} BudgetInput;

/* budgets[i]: how many nodes tree i keeps, its best (union_prune). Returns their number over all trees. */
int32_t allocate_budgets(const BudgetInput *in, int32_t *budgets);

#endif

/* plan.h - which drafted nodes get a row: over all sequences, by what they are expected to bring per second. */
#ifndef SPEC_PLAN_H
#define SPEC_PLAN_H

#include "model/cost_curve.h"
#include "spec/tree.h"

typedef struct PlanNode {
    float est;
    int32_t tree;
} PlanNode;

typedef struct PlanInput {
    const Tree *const *trees; /* [n_trees], est calibrated */
    int n_trees;
    int32_t n_base_rows;      /* rows of the forward without any drafted node: roots, prompts, trees that are not planned */
    const CostCurve *cost;    /* not empty */
    double tokens_per_s;      /* what all sequences together make now: the price of a second */
    double max_extra_s;       /* forward time that drafts may add at most, however promising */
    PlanNode *scratch;        /* room for all nodes below the roots of all trees */
} PlanInput;

/* budgets[i]: how many nodes tree i keeps, its best (union_prune). Returns their number over all trees. */
int32_t plan_nodes(const PlanInput *in, int32_t *budgets);

#endif

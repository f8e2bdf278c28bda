/* mask_plan.h - for the drafter `space`: how many rows of a step verify candidates, and which nodes get masks. */
#ifndef LEARNED_MASK_PLAN_H
#define LEARNED_MASK_PLAN_H

#include "draft/learned/space.h"
#include "tree/tree.h"

/* Mask `mask` (from 0) of the group after a node. */
typedef struct PlannedMask {
    int32_t node, mask;
    double value; /* tokens that it is expected to add to the next step */
} PlannedMask;

/* All masks of the first n_nodes nodes of a tree, those of greatest value first; the masks of a node come in order.
 * gain: [n_masks] what the masks after the last accepted node add, never rising. out: [n_nodes * n_masks]; returns that
 * number. */
int32_t mask_plan(const Tree *t, int32_t n_nodes, const double *gain, int32_t n_masks, PlannedMask *out);

/* How many of the drafted nodes 1 .. t->n - 1, which stand in the order of falling p_accept, are worth their rows where
 * the nodes and the masks share `budget` rows: at least one. scratch: [t->n * n_masks]. */
int32_t mask_plan_candidates(const Tree *t, const double *gain, int32_t n_masks, int32_t budget, PlannedMask *scratch);

#endif

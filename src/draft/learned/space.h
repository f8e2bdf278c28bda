/* space.h - how the drafter `space` divides its rows: how many verify candidates, and which nodes get masks. */
#ifndef LEARNED_SPACE_H
#define LEARNED_SPACE_H

#include "tree/tree.h"

/* Mask `mask` (from 0) of the group after a node. */
typedef struct PlannedMask {
    int32_t node, mask;
    double value; /* tokens that it is expected to add to the next step */
} PlannedMask;

/* Lists all masks of the first n_nodes nodes of a tree in `out` [n_nodes * n_masks], those of greatest value first; the
 * masks of a node come in order. gain [n_masks] is how many tokens each mask after the last accepted node adds; it
 * never rises. Returns the number of masks. */
int32_t mask_plan(const Tree *t, int32_t n_nodes, const double *gain, int32_t n_masks, PlannedMask *out);

/* Returns how many of the drafted nodes 1 .. t->n - 1 are worth their rows if nodes and masks share `budget` rows: at
 * least one. The nodes are in falling order of p_accept. scratch: [t->n * n_masks]. */
int32_t mask_plan_candidates(const Tree *t, const double *gain, int32_t n_masks, int32_t budget, PlannedMask *scratch);

#endif

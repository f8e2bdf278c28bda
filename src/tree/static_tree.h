/* static_tree.h - the shape of a draft tree that is chosen before any token is known: the trees of EAGLE-1 and
 * Medusa. */
#ifndef TREE_STATIC_TREE_H
#define TREE_STATIC_TREE_H

#include "tree/tree.h"

/* The child of `parent` that is the token of rank `rank` (from 0) by probability there. */
typedef struct StaticNode {
    int32_t parent, rank, depth;
    double log_chance; /* the sum along its path */
} StaticNode;

/* Nodes in the order in which a growing budget takes them; node 0 is the pending token. The shape for a budget of b is
 * nodes[0..b]. */
typedef struct StaticTree {
    int32_t n;
    StaticNode nodes[TREE_MAX_NODES];
} StaticTree;

/* chance: [n_levels][n_ranks], in [0,1]: the probability that the token of rank r at depth d + 1 is right if its
 * parent is. At most max_parents nodes of a level get children. Nodes of chance 0 are left out. */
void static_tree_build(StaticTree *t, const double *chance, int32_t n_levels, int32_t n_ranks, int32_t max_parents);

/* Assumed for a drafter without measurements: rank r is right with chance 0.6 * 0.4^r at every depth. */
void static_tree_prior(double *chance, int32_t n_levels, int32_t n_ranks);

#endif

/* tree_shapes.h - two ways to give a draft tree its shape: a shape that is chosen before any token is known (EAGLE-1
 * and Medusa), and the candidates of a beam search, in which each shared prefix is stored once (ReDrafter). */
#ifndef TREE_TREE_SHAPES_H
#define TREE_TREE_SHAPES_H

#include "tree/tree.h"

#include <stdint.h>

/* The child of `parent` that is the token of rank `rank` (from 0) by probability there. */
typedef struct StaticNode {
    int32_t parent, rank, depth;
    double log_chance; /* the sum along its path */
} StaticNode;

/* The nodes are in the order in which they are added as the budget grows; node 0 is the pending token. The shape for
 * a budget of b is nodes[0..b]. */
typedef struct StaticTree {
    int32_t n;
    StaticNode nodes[TREE_MAX_NODES];
} StaticTree;

/* chance: [n_levels][n_ranks], in [0,1]: the probability that the token of rank r at depth d + 1 is right if its
 * parent is. At most max_parents nodes of a level get children. Nodes of chance 0 are left out. */
void static_tree_build(StaticTree *t, const double *chance, int32_t n_levels, int32_t n_ranks, int32_t max_parents);

/* Fills the chances that are assumed for a drafter without measurements: 0.6 * 0.4^r for rank r at every depth. */
void static_tree_prior(double *chance, int32_t n_levels, int32_t n_ranks);

/* beam: [n][length] tokens. Sets prefix[i][j] to the least k such that candidates k and i have the same first j + 1
 * tokens. */
void beam_dedup_prefix(const int32_t *beam, int32_t n, int32_t length, int32_t *prefix);

/* The packed sequence of a beam, parents first. The arrays belong to the caller and have room for n * length. */
typedef struct PackedBeam {
    int32_t n;        /* tokens in it */
    int32_t *tokens;  /* [n] */
    int32_t *parents; /* [n] indices into the packed sequence; -1: the token before all candidates */
    int32_t *depths;  /* [n] position after the context: 0 for the first token of a candidate */
    int32_t *places;  /* [beam n][length] index of each token of each candidate */
} PackedBeam;

void beam_pack(const int32_t *beam, const int32_t *prefix, int32_t n, int32_t length, PackedBeam *out);

#endif

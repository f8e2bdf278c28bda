/* draw.h - drawing children of tree nodes without replacement: Gumbel-top-k, and stochastic beam search. All
 * functions are pure functions of a distribution and of keyed noise. */
#ifndef SAMPLING_DRAW_H
#define SAMPLING_DRAW_H

#include "verify/gumbel.h"

#include <stdbool.h>

/* The noise of one node's children: G of token x is gumbel_noise(seed, stream, position, x). */
typedef struct DrawNoise {
    bool silent; /* G = 0: greedy */
    RngStream stream;
    uint64_t seed, position;
} DrawNoise;

/* A node whose children are drawn. At the root of a tree log_q and psi are 0. */
typedef struct DrawParent {
    double log_q; /* of the node's path, below the root of the tree */
    double psi;   /* its perturbed value, truncated by its ancestors' */
    DrawNoise noise;
} DrawParent;

typedef struct DrawChild {
    int32_t parent; /* for the caller: which parent it is */
    int32_t path;   /* for the caller: which of several independent paths drew it; not set by these functions */
    float chance;   /* for the caller: how likely it is to be accepted; not set by these functions */
    int32_t token;
    float q;      /* probability of the token at its parent */
    double value; /* log q + G, by which the children of one parent are ranked */
    double log_q; /* of the path */
    double psi;   /* falls among the children of a parent; never above the parent's, except with silent noise */
} DrawChild;

/* The k tokens of greatest log q + G under the distribution q [n_vocab], never one of probability 0: k draws without
 * replacement, in their order. Writes at most k children, with DrawChild.parent = i_parent, and returns their number.
 * */
int32_t draw_children(const float *q, int32_t n_vocab, const DrawParent *parent, int32_t i_parent, int32_t k,
                      DrawChild *out);

/* Sorts the children of all nodes of a beam by falling psi and keeps `width` of them: if each parent contributed its
 * `width` best, this is one level of stochastic beam search. Siblings stay in the order in which they were drawn.
 * Returns how many are left. */
int32_t draw_beam(DrawChild *children, int32_t n, int32_t width);

#endif

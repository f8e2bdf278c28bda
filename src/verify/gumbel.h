/* gumbel.h - drawing the children of tree nodes without replacement with Gumbel noise (Gumbel-top-k, stochastic beam
 * search). The noise is that of base/gumbel_row.h, with which the target draws its token. */
#ifndef SAMPLING_GUMBEL_H
#define SAMPLING_GUMBEL_H

#include "base/gumbel_row.h"

/* The noise of one node's children: G of token x is gumbel_noise(seed, stream, position, x). */
typedef struct DrawNoise {
    bool silent; /* G = 0: greedy */
    RngStream stream;
    uint64_t seed, position;
} DrawNoise;

/* The node whose children are drawn. At the root of a tree log_q and psi are 0. */
typedef struct DrawParent {
    double log_q; /* the log-probability of the path from the root of the tree to the node */
    double psi;   /* the perturbed value of that path, truncated by the values of its ancestors */
    DrawNoise noise;
} DrawParent;

typedef struct DrawChild {
    int32_t parent; /* the caller's index of the parent */
    /* The caller may use these two: which of several independent paths drew it, and how likely it is to be accepted. */
    int32_t path;
    float chance;
    int32_t token;
    float q;      /* probability of the token at its parent */
    double value; /* log q + G, by which the children of one parent are ranked */
    double log_q; /* the log-probability of its path */
    double psi;   /* falls among the children of a parent; never above the parent's, except with silent noise */
} DrawChild;

enum { DRAW_MAX_CHILDREN = 64 }; /* the most children of one node */

/* Working memory for draws from distributions over n_vocab tokens: 4 bytes for each. It keeps the random words of the
 * last draw, so that draws with the same noise, in a row, compute them once. */
typedef struct DrawCache DrawCache;
DrawCache *draw_cache_new(int32_t n_vocab, const RowKernels *rows); /* NULL without memory */
void draw_cache_free(DrawCache *c);                                 /* NULL is allowed */

/* Draws k <= DRAW_MAX_CHILDREN tokens from the distribution q [n_vocab] without replacement, in order: those with the
 * greatest log q + G. A token of probability 0 is never drawn. Writes at most k children, with DrawChild.parent =
 * i_parent, and returns their number. */
int32_t draw_children(DrawCache *c, const float *q, const DrawParent *parent, int32_t i_parent, int32_t k,
                      DrawChild *out);

/* Sorts the children of all nodes of a beam by falling psi and keeps `width` of them: if each parent contributed its
 * `width` best, this is one level of stochastic beam search. Siblings stay in the order in which they were drawn.
 * Returns how many are left. */
int32_t draw_beam(DrawChild *children, int32_t n, int32_t width);

#endif

/* gumbel.h - the Gumbel noise of one position, one number for each token, keyed by (seed, stream, position, token); and
 * drawing the children of tree nodes without replacement with such noise (Gumbel-top-k, stochastic beam search).
 *
 * G = -log(-log(1 - v)) with v uniform in (0, 1). Small v are large G, with which improbable tokens win; they have 64
 * bits of their own (gumbel.c). Callers that compare noise before they take logarithms use v itself: G >= d requires
 * v <= e^-d, because v <= -log(1 - v). */
#ifndef SAMPLING_GUMBEL_H
#define SAMPLING_GUMBEL_H

#include "base/math_functions.h"
#include "base/row_kernels.h"

#include <stdbool.h>

#define GUMBEL_RARE 0x1p-16     /* the chance that the noise of a token is rare: v < GUMBEL_RARE */
#define GUMBEL_COMMON_MAX 11.1  /* no G that is not rare exceeds it */
#define GUMBEL_MAX 56.2         /* no G exceeds it */
enum { GUMBEL_ROW_RARE = 128 }; /* a row of 4 million tokens has 64 rare ones on average */

typedef struct GumbelRow {
    uint64_t seed, position;
    RngStream stream;
    int32_t n_rare;                   /* tokens whose noise is rare, usually none or one */
    int32_t rare_id[GUMBEL_ROW_RARE]; /* ascending */
    double rare_v[GUMBEL_ROW_RARE];
} GumbelRow;

/* Begins the noise of tokens 0 .. n_vocab - 1. A row for more tokens begins with the same numbers. */
void gumbel_row_begin(GumbelRow *g, uint64_t seed, RngStream stream, uint64_t position, int32_t n_vocab);
/* Fills v for the four tokens from `first` on, which is a multiple of 4. */
void gumbel_row_block(const GumbelRow *g, int32_t first, double v[4]);
double gumbel_row_v(const GumbelRow *g, int32_t token);
/* Returns the first token from `token` on whose noise is rare; INT32_MAX if there is none. */
int32_t gumbel_row_next_rare(const GumbelRow *g, int32_t token);

/* v of a token whose noise is not rare, computed from its word of rng_words(seed, stream, position, token / 4). */
static inline double gumbel_common_v(uint32_t word) {
    return GUMBEL_RARE + (1 - GUMBEL_RARE) * (((double)word + 0.5) * 0x1p-32);
}
static inline double gumbel_of(double v) { return -math_log(-math_log1p(-v)); }
/* Returns the noise of one token, for callers without a row. */
double gumbel_noise(uint64_t seed, RngStream stream, uint64_t position, int32_t token);

/* ---- draws without replacement ---------------------------------------------------------------------- */

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

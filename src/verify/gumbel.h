/* gumbel.h - the Gumbel noise of one position: one number for each token, keyed by (seed, stream, position, token).
 *
 * G = -log(-log(1 - v)) with v uniform in (0, 1). Small v are large G, with which improbable tokens win; they have 64
 * bits of their own (gumbel.c). Callers that compare noise before they take logarithms use v itself: G >= d requires
 * v <= e^-d, because v <= -log(1 - v). */
#ifndef SAMPLING_GUMBEL_H
#define SAMPLING_GUMBEL_H

#include "base/rng.h"

#include <math.h>

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

/* The noise of tokens 0 .. n_vocab - 1. A row for more tokens begins with the same numbers. */
void gumbel_row_begin(GumbelRow *g, uint64_t seed, RngStream stream, uint64_t position, int32_t n_vocab);
/* v of the four tokens from `first` on, which is a multiple of 4. */
void gumbel_row_block(const GumbelRow *g, int32_t first, double v[4]);
double gumbel_row_v(const GumbelRow *g, int32_t token);
/* The first token from `token` on whose noise is rare; INT32_MAX: there is none. */
int32_t gumbel_row_next_rare(const GumbelRow *g, int32_t token);

/* v of a token whose noise is not rare, by its word of rng_words(seed, stream, position, token / 4). */
static inline double gumbel_common_v(uint32_t word) {
    return GUMBEL_RARE + (1 - GUMBEL_RARE) * (((double)word + 0.5) * 0x1p-32);
}
static inline double gumbel_of(double v) { return -log(-log1p(-v)); }
/* The noise of one token, for callers without a row. */
double gumbel_noise(uint64_t seed, RngStream stream, uint64_t position, int32_t token);

#endif

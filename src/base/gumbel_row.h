/* gumbel_row.h - the Gumbel noise of one position, one number for each token, keyed by (seed, stream, position, token);
 * and the token of a row of logits that wins with it.
 *
 * G = -log(-log(1 - v)) with v uniform in (0, 1). Small v are large G, with which improbable tokens win; they have 64
 * bits of their own (gumbel_row.c). Callers that compare noise before they take logarithms use v itself: G >= d
 * requires v <= e^-d, because v <= -log(1 - v). */
#ifndef BASE_GUMBEL_ROW_H
#define BASE_GUMBEL_ROW_H

#include "base/math_functions.h"
#include "base/row_kernels.h"

#include <math.h>
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

/* ---- the token that wins ------------------------------------------------------------------------------ */

/* The tokens of a row that take part in a draw: those from `first` to `last`, which are multiples of 4, or the end of
 * the row; of these, those that do not come after a certain token in falling order of their logits, in which equal ones
 * are in rising order of their ids; and of these, those whose logit is at least min_logit. -inf and NaN never take
 * part. */
typedef struct GumbelField {
    int32_t first, last;
    float last_logit; /* -inf: the order rules out no token */
    int32_t last_id;
    double min_logit; /* -inf: none is too low */
} GumbelField;

static inline GumbelField gumbel_field(int32_t first, int32_t last) {
    return (GumbelField){.first = first, .last = last, .last_logit = -INFINITY, .min_logit = -INFINITY};
}

enum { GUMBEL_DISTANCES = 57, GUMBEL_CHUNK = 2048 /* tokens that are looked at together */ };

/* A draw of the token with the greatest logit / temperature + G; ties go to the lowest id. */
typedef struct GumbelMax {
    GumbelRow noise;
    double temperature, max;
    double best;
    int32_t best_id;
    double tail[GUMBEL_DISTANCES]; /* e^-k for each k */
    uint32_t blocks[GUMBEL_CHUNK / 4], words[GUMBEL_CHUNK];
    int32_t at[GUMBEL_CHUNK];
} GumbelMax;

/* Begins a draw from logits of n_vocab tokens, with the noise RNG_TARGET and a temperature above 0. Token max_id takes
 * part at once; its logit `max` is finite, and none of those that will take part is greater. */
void gumbel_max_begin(GumbelMax *d, uint64_t seed, uint64_t position, float temperature, int32_t n_vocab, float max,
                      int32_t max_id);
/* Lets token `id`, whose noise is v, take part. */
void gumbel_max_consider(GumbelMax *d, float logit, int32_t id, double v);
/* Lets the tokens of a field of a row take part. */
void gumbel_max_consider_row(GumbelMax *d, const RowKernels *rows, const float *row, const GumbelField *field);

#endif

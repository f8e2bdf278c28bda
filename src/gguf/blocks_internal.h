/* blocks_internal.h - what the files of the block formats share: the functions of each type, which the table in
 * tensor_type.c names, helpers for single values, and the search for good scales (quant_search.c). */
#ifndef GGUF_BLOCKS_INTERNAL_H
#define GGUF_BLOCKS_INTERNAL_H

#include "gguf/tensor_type.h"

#include <math.h>
#include <string.h>

/* For each type NAME_decode, NAME_encode and NAME_search (the columns of tensor_type.h). */
#define DECLARE(NAME, name, ...) \
    void name##_decode(const uint8_t *src, float *dst); \
    void name##_encode(const float *src, uint8_t *dst); \
    void name##_search(const float *x, const float *w, uint8_t *dst);
EACH_TYPE(DECLARE)
#undef DECLARE

/* ---- single values ------------------------------------------------------------------------------------------- */

static inline float load_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return half_to_float(h);
}

/* Stores f as a finite half, and returns the value that a reader will get; quantisers continue with that value. */
static inline float store_half(uint8_t *p, float f) {
    uint16_t h = float_to_half(f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f);
    memcpy(p, &h, sizeof h);
    return half_to_float(h);
}

static inline float inverse(float f) { return f != 0.0f ? 1.0f / f : 0.0f; }

/* Returns the integer in [low, high] nearest to x; NaN gives low. */
static inline int nearest(float x, int low, int high) {
    if (!(x > (float)low)) return low;
    if (x >= (float)high) return high;
    return (int)(x - (float)low + 0.5f) + low; /* truncation of a positive number: rounds halves up */
}

/* Returns the element of largest magnitude, with its sign. */
static inline float extreme_of(const float *x, int n) {
    float best = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(best)) best = x[i];
    return best;
}

/* Sets bits that are zero in a byte. */
static inline void add_bits(uint8_t *p, int bits) { *p = (uint8_t)(*p | bits); }

/* ---- the search for a scale, and perhaps an offset, of a few numbers (quant_search.c) ------------------------ */

enum { FIT_MAX = 32 }; /* numbers that share a scale; always a multiple of 8 */

/* x is about scale * q + low. */
typedef struct Fit {
    float scale, low;
} Fit;

/* Codes q of x [n] for a given fit: the nearest integers in [least, most], as floats. All zeros where the scale is
 * 0. */
void fit_codes(Fit fit, const float *x, int n, float least, float most, float *q);
/* The same with the nearest of 16 ascending values in place of the nearest integer. */
void fit_values(Fit fit, const float *x, int n, const float values[16], float *q);
/* Returns the sum of w (x - scale q - low)^2. */
double fit_error(Fit fit, const float *x, const float *w, int n, const float *q);

/* Returns the scale that minimises that sum for codes in [least, most], where -least >= most; low is 0. */
Fit fit_scale(const float *x, const float *w, int n, float least, float most);
/* The same for 16 ascending values, from a negative to a positive one. */
Fit fit_codebook(const float *x, const float *w, int n, const float values[16]);
/* Scale and low for codes in [0, most]. low_is_negative: low must not be positive, as in the K types. */
Fit fit_range(const float *x, const float *w, int n, float most, bool low_is_negative);

/* ---- the same for super-blocks: 256 numbers in sub-blocks, whose scales are small integers over one or two halves */

enum { SUPER_N = 256, SUPER_SUBS_MAX = 16 };

/* x is about (d s) q - dmin m. */
typedef struct RangeSuper {
    const float *x, *w;
    int sub, s_max; /* numbers in a sub-block; the largest s and m */
    float most;     /* the largest code; the smallest is 0 */
    float d, dmin;  /* found: halves */
    int s[SUPER_SUBS_MAX], m[SUPER_SUBS_MAX];
    float q[SUPER_N];
} RangeSuper;

/* x is about (d s) q. */
typedef struct ScaleSuper {
    const float *x, *w;
    int sub, s_least, s_most;
    float least, most;   /* the codes are the integers in between, */
    const float *values; /* or, unless this is NULL, these 16 ascending numbers */
    float d;             /* found: a half */
    int s[SUPER_SUBS_MAX];
    float q[SUPER_N];
} ScaleSuper;

/* Fill in d (and dmin), the integers s (and m) and the codes q; the caller sets the other fields. */
void range_super_search(RangeSuper *k);
void scale_super_search(ScaleSuper *k);

#endif

/* ref.h - the constants and small functions that table "ref" shares with the other tables. */
#ifndef KERNELS_REF_H
#define KERNELS_REF_H

#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/layout.h"

#include <math.h>
#include <string.h>

/* A block of activations whose largest magnitude is below this becomes zeros: levels/amax must not
 * overflow. */
#define ACT_TINY 0x1p-100f

/* Returns the integer that the largest magnitude of a block becomes. */
static inline float act_levels(ActForm form) { return form == ACT_Q16 ? 127.0f * 256 : 127.0f; }

/* The constants of exp(x), which ref.c explains. Below EXP_LOW the result is 0, above EXP_HIGH it is that of
 * EXP_HIGH. */
#define EXP_LOW -87.33f
#define EXP_HIGH 88.37f
#define EXP_LOG2E 0x1.715476p+0f /* 1/ln 2 */
#define EXP_ROUND 0x1.8p23f      /* adding it rounds to an integer, which is then in the low bits */
#define EXP_LN2_HIGH 0x1.62e4p-1f
#define EXP_LN2_LOW 0x1.7f7d1cp-20f
/* exp(r) ~ 1 + r + r^2 (C2 + C3 r + C4 r^2 + C5 r^3 + C6 r^4), |r| <= ln(2)/2: interpolated at the Chebyshev
 * nodes of that interval, relative error 1.1e-8 */
#define EXP_C2 0x1p-1f
#define EXP_C3 0x1.5554dcp-3f
#define EXP_C4 0x1.55551ap-5f
#define EXP_C5 0x1.120ba2p-7f
#define EXP_C6 0x1.6d113cp-10f

/* The constants of GELU by tanh: 2 sqrt(2/pi), and 0.044715 times that. */
#define GELU_A 1.5957691f
#define GELU_B 0.07135481f

/* The function Kernels.rope of every table; it is compiled once for each instruction set. */
static inline void rope_rotate(RopeStyle style, float *x, int64_t n_heads, int64_t head_dim, int64_t n_rot,
                               const float *cos_sin) {
    int64_t stride = style == ROPE_PAIRS ? 2 : 1, partner = style == ROPE_PAIRS ? 1 : n_rot / 2;
    for (int64_t h = 0; h < n_heads; h++, x += head_dim)
        for (int64_t i = 0; i < n_rot / 2; i++) {
            float *a = x + i * stride, *b = a + partner, a0 = *a, b0 = *b;
            float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
            *a = fmaf(a0, c, -(b0 * s));
            *b = fmaf(a0, s, b0 * c);
        }
}

/* The terms of a softmax do not exceed 1, except that exp(NaN) is computed as exp(EXP_HIGH). So a sum above this
 * limit shows that a score is NaN or that the greatest score is infinite. */
#define SOFTMAX_SUM_MAX 1e30f
/* The remainder of the division of a number by such a sum is exact if the number is at least this: 2^-64. */
#define SOFTMAX_TINY 0x1p-64f

/* Writes what a block with NaN or infinity becomes: zeros with a scale of NaN, which make every output NaN that uses
 * the block. */
static inline void act_block_not_finite(ActForm form, ActBlock *b) {
    memset(b, 0, act_block_bytes(form));
    b->scale = b->scaled_sum = NAN;
}
/* The same for a block of a KV_Q8 row. */
static inline void kv_block_not_finite(unsigned char *block) {
    static const uint16_t nan = 0x7e00;
    memset(block, 0, KV_BLOCK_BYTES);
    memcpy(block, &nan, sizeof nan);
}

/* Returns whether all numbers are finite. */
bool ref_is_finite(const float *x, int64_t n);
float ref_exp(float x); /* the exp of all tables */
/* Kernels.act_convert and Kernels.matmul of table "ref" (ref_matmul.c). */
void ref_act_convert(ActForm form, const float *x, int64_t n, void *out);
void ref_matmul(const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride, int64_t tile_begin,
                int64_t tile_end);

#endif

/* quant_codebook.c - the types whose 4-bit codes stand for 16 values (format/codebook.h, format/blocks_codebook.c).
 *
 *     IQ4_NL   x is about d v[q]                  a half for 32 numbers
 *     IQ4_XS   x is about (d s) v[q]              s in -32..31 for 32 numbers, a half for 256
 *     MXFP4    x is about 2^(e - 128) v[q]        an exponent for 32 numbers
 *     NVFP4    x is about e v[q]                  e a float of 7 bits for 16 numbers
 *
 * The first two are searched like the other types, with the nearest of the values in place of the nearest integer. For
 * MXFP4 there are few exponents to try: that of the standard, with which the largest number lies between 4 and 8 times
 * the smallest normal step, the two below it, with which it is clipped, and the one above it. The scales of NVFP4 are as few: of
 * those around that of plain rounding, from half to half as much again, each is tried.
 * Proof: tests/gguf/test_quant.c. */
#include "gguf/quant.h"
#include "gguf/quant_fit.h"
#include "gguf/quant_super.h"

#include "gguf/blocks.h"
#include "gguf/codebook.h"

#include <math.h>
#include <string.h>

enum { N = 32, HALF_N = N / 2 };

static const float iq4_floats[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* Zero twice, so that there are 16; both are written as code 0. */
static const float mxfp4_floats[16] = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};

static int code_of(const int8_t values[16], float value) {
    int code = 0;
    while (code < 15 && (float)values[code] != value) code++;
    return code;
}

static void pack(const int8_t values[16], const float *q, uint8_t *dst) {
    for (int j = 0; j < HALF_N; j++) dst[j] = (uint8_t)(code_of(values, q[j]) | code_of(values, q[j + HALF_N]) << 4);
}

void quant_iq4_nl(const float *x, const float *w, uint8_t *dst) {
    float q[N];
    Fit fit = fit_codebook(x, w, N, iq4_floats);
    fit.scale = quant_store_half(dst, fit.scale);
    fit_values(fit, x, N, iq4_floats, q);
    pack(iq4_values, q, dst + 2);
}

void quant_iq4_xs(const float *x, const float *w, uint8_t *dst) {
    ScaleSuper k = {.x = x, .w = w, .sub = N, .s_least = -32, .s_most = 31, .values = iq4_floats};
    scale_super_search(&k);
    (void)quant_store_half(dst, k.d);
    memset(dst + 2, 0, 6);
    for (int b = 0; b < SUPER_N / N; b++) {
        int s = k.s[b] + 32;
        uint8_t *high = &dst[2 + b / 4], *low = &dst[4 + b / 2];
        *high = (uint8_t)(*high | s >> 4 << b % 4 * 2);
        *low = (uint8_t)(*low | (s & 15) << b % 2 * 4);
        pack(iq4_values, k.q + b * N, dst + 8 + b * HALF_N);
    }
}

void quant_mxfp4(const float *x, const float *w, uint8_t *dst) {
    float most = 0, q[N];
    for (int i = 0; i < N; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    int wanted = most > 0 ? ilogbf(most) - 2 + 127 : 0;
    double best = INFINITY;
    for (int e = wanted - 2; e <= wanted + 1; e++) {
        uint8_t exponent = (uint8_t)(e < 0 ? 0 : e > MXFP4_EXPONENT_MAX ? MXFP4_EXPONENT_MAX : e);
        Fit fit = {mxfp4_scale(exponent), 0};
        fit_values(fit, x, N, mxfp4_floats, q);
        double error = fit_error(fit, x, w, N, q);
        if (!(error < best)) continue;
        best = error;
        dst[0] = exponent;
        pack(mxfp4_values, q, dst + 1);
    }
}

/* 16 numbers, and their half of the block: input j of 8 in the low, input j + 8 in the high nibble. */
static void quant_nvfp4_sub(const float *x, const float *w, int rounded, uint8_t *scale, uint8_t *codes) {
    enum { N_SUB = 16, BELOW = 8, ABOVE = 4 };
    double best = INFINITY;
    float q[N_SUB];
    for (int e = rounded - BELOW; e <= rounded + ABOVE; e++) {
        uint8_t code = (uint8_t)(e < 0 ? 0 : e > NVFP4_SCALE_MAX ? NVFP4_SCALE_MAX : e);
        Fit fit = {nvfp4_scale(code), 0};
        fit_values(fit, x, N_SUB, mxfp4_floats, q);
        double error = fit_error(fit, x, w, N_SUB, q);
        if (!(error < best)) continue;
        best = error;
        *scale = code;
        for (int j = 0; j < N_SUB / 2; j++)
            codes[j] = (uint8_t)(code_of(mxfp4_values, q[j]) | code_of(mxfp4_values, q[j + N_SUB / 2]) << 4);
    }
}

void quant_nvfp4(const float *x, const float *w, uint8_t *dst) {
    enum { SUBS = 4, N_SUB = 16 };
    uint8_t rounded[SUBS + SUBS * N_SUB / 2];
    blocks_quantize(TYPE_NVFP4, x, SUBS * N_SUB, rounded);
    for (int b = 0; b < SUBS; b++)
        quant_nvfp4_sub(x + b * N_SUB, w + b * N_SUB, rounded[b], &dst[b], dst + SUBS + b * N_SUB / 2);
}

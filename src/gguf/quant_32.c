/* quant_32.c - the types with blocks of 32 numbers and one scale, with or without an offset (format/blocks.c draws
 * them). The scale and the offset are found by quant_fit.c and rounded to halves; then the codes are chosen for the
 * rounded ones. */
#include "gguf/quant.h"
#include "gguf/quant_fit.h"

#include <string.h>

enum { N = 32, HALF_N = N / 2 };

/* Byte j has the low four bits of the codes j and j + 16; h, where it is given, has the fifth bits. */
static void pack(const float *codes, uint8_t *h, uint8_t *q) {
    for (int j = 0; j < HALF_N; j++) q[j] = (uint8_t)(((int)codes[j] & 15) | ((int)codes[j + HALF_N] & 15) << 4);
    if (!h) return;
    memset(h, 0, N / 8);
    for (int i = 0; i < N; i++) h[i / 8] = (uint8_t)(h[i / 8] | ((int)codes[i] >> 4 & 1) << i % 8);
}

/* Codes -zero .. zero - 1, stored from 0 on. */
static void encode_signed(const float *x, const float *w, float zero, uint8_t *dst, uint8_t *h, uint8_t *q) {
    float codes[N];
    Fit fit = fit_scale(x, w, N, -zero, zero - 1);
    fit.scale = quant_store_half(dst, fit.scale);
    fit_codes(fit, x, N, -zero, zero - 1, codes);
    for (int i = 0; i < N; i++) codes[i] += zero;
    pack(codes, h, q);
}

static void encode_ranged(const float *x, const float *w, float most, uint8_t *dst, uint8_t *h, uint8_t *q) {
    float codes[N];
    Fit fit = fit_range(x, w, N, most, false);
    fit.scale = quant_store_half(dst, fit.scale);
    fit.low = quant_store_half(dst + 2, fit.low);
    fit_codes(fit, x, N, 0, most, codes);
    pack(codes, h, q);
}

void quant_q4_0(const float *x, const float *w, uint8_t *dst) { encode_signed(x, w, 8, dst, NULL, dst + 2); }
void quant_q4_1(const float *x, const float *w, uint8_t *dst) { encode_ranged(x, w, 15, dst, NULL, dst + 4); }
void quant_q5_0(const float *x, const float *w, uint8_t *dst) { encode_signed(x, w, 16, dst, dst + 2, dst + 6); }
void quant_q5_1(const float *x, const float *w, uint8_t *dst) { encode_ranged(x, w, 31, dst, dst + 4, dst + 8); }

/* quant_k.c - the K types: super-blocks of 256 numbers, whose sub-blocks have scales of 4 to 8 bits over one half
 * (format/blocks_k.c and blocks_k_low.c draw them).
 *
 *     Q2_K         x is about (d s) q - dmin m     16 sub-blocks of 16; s, m in 0..15,     q in 0..3
 *     Q4_K, Q5_K   the same                        8 sub-blocks of 32;  s, m in 0..63,     q in 0..15 or 0..31
 *     Q3_K, Q6_K   x is about (d s) q              16 sub-blocks of 16; s in -32..31 or -128..127, q in -4..3 or -32..31
 *
 * quant_super.c finds the numbers; here they are written. Proof: tests/gguf/test_quant.c. */
#include "gguf/quant.h"
#include "gguf/quant_super.h"

#include <string.h>

enum { N = SUPER_N };

/* Sets bits of a byte that are zero there. */
static void add_bits(uint8_t *p, int bits) { *p = (uint8_t)(*p | bits); }

/* ---- Q4_K and Q5_K ----------------------------------------------------------------------------------- */

static void pack_scales(const RangeSuper *k, uint8_t *p) {
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(k->s[i] | k->s[i + 4] >> 4 << 6);
        p[i + 4] = (uint8_t)(k->m[i] | k->m[i + 4] >> 4 << 6);
        p[i + 8] = (uint8_t)((k->s[i + 4] & 15) | (k->m[i + 4] & 15) << 4);
    }
}

static void encode_range(const float *x, const float *w, float most, uint8_t *dst, uint8_t *h, uint8_t *q) {
    RangeSuper k = {.x = x, .w = w, .sub = 32, .s_max = 63, .most = most};
    range_super_search(&k);
    (void)quant_store_half(dst, k.d);
    (void)quant_store_half(dst + 2, k.dmin);
    pack_scales(&k, dst + 4);
    memset(q, 0, N / 2);
    if (h) memset(h, 0, 32);
    for (int i = 0; i < N; i++) {
        int b = i / 32, l = i % 32, code = (int)k.q[i];
        add_bits(&q[b / 2 * 32 + l], (code & 15) << b % 2 * 4);
        if (h) add_bits(&h[l], code >> 4 << b);
    }
}

void quant_q4_k(const float *x, const float *w, uint8_t *dst) { encode_range(x, w, 15, dst, NULL, dst + 16); }
void quant_q5_k(const float *x, const float *w, uint8_t *dst) { encode_range(x, w, 31, dst, dst + 16, dst + 48); }

/* ---- Q6_K -------------------------------------------------------------------------------------------- */

void quant_q6_k(const float *x, const float *w, uint8_t *dst) {
    ScaleSuper k = {.x = x, .w = w, .sub = 16, .s_least = -128, .s_most = 127, .least = -32, .most = 31};
    scale_super_search(&k);
    memset(dst, 0, 192);
    (void)quant_store_half(dst + 208, k.d);
    for (int b = 0; b < N / 16; b++) dst[192 + b] = (uint8_t)k.s[b];
    for (int i = 0; i < N; i++) {
        int code = (int)k.q[i] + 32, half = i / 128, part = i % 128 / 32, l = i % 32;
        add_bits(&dst[half * 64 + (part & 1) * 32 + l], (code & 15) << part / 2 * 4);
        add_bits(&dst[128 + half * 32 + l], code >> 4 << part * 2);
    }
}

/* ---- Q2_K and Q3_K ----------------------------------------------------------------------------------- */

static void add_low_bits(uint8_t *q, int i, int code) {
    add_bits(&q[i / 128 * 32 + i % 32], (code & 3) << i % 128 / 32 * 2);
}

void quant_q2_k(const float *x, const float *w, uint8_t *dst) {
    RangeSuper k = {.x = x, .w = w, .sub = 16, .s_max = 15, .most = 3};
    range_super_search(&k);
    memset(dst, 0, 80);
    (void)quant_store_half(dst + 80, k.d);
    (void)quant_store_half(dst + 82, k.dmin);
    for (int b = 0; b < N / 16; b++) dst[b] = (uint8_t)(k.s[b] | k.m[b] << 4);
    for (int i = 0; i < N; i++) add_low_bits(dst + 16, i, (int)k.q[i]);
}

void quant_q3_k(const float *x, const float *w, uint8_t *dst) {
    ScaleSuper k = {.x = x, .w = w, .sub = 16, .s_least = -32, .s_most = 31, .least = -4, .most = 3};
    uint8_t *scales = dst + 96;
    scale_super_search(&k);
    memset(dst, 0, 108);
    (void)quant_store_half(dst + 108, k.d);
    for (int b = 0; b < N / 16; b++) {
        add_bits(&scales[b % 8], ((k.s[b] + 32) & 15) << b / 8 * 4);
        add_bits(&scales[8 + b % 4], (k.s[b] + 32) >> 4 << b / 4 * 2);
    }
    for (int i = 0; i < N; i++) {
        int code = (int)k.q[i] + 4;
        add_low_bits(dst + 32, i, code);
        add_bits(&dst[i % 32], code >> 2 << i / 32);
    }
}

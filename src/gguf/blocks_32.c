/* blocks_32.c - the plain types, and the blocks of 32 elements with one scale.
 *
 * A block of 32 (numbers are bytes; d and m are halves):
 *
 *     Q8_0   d:2  q:32             x = d q              q in -128..127
 *     Q4_0   d:2  q:16             x = d (q - 8)        q in 0..15
 *     Q4_1   d:2  m:2  q:16        x = d q + m
 *     Q5_0   d:2  h:4  q:16        x = d (q - 16)       q in 0..31
 *     Q5_1   d:2  m:2  h:4  q:16   x = d q + m
 *
 * In the 4-bit and 5-bit types byte j holds element j in its low and element j+16 in its high nibble; bit i of h is the
 * fifth bit of element i. d q is exact in a float (11 + 8 bits at most), so each x is rounded once at most
 * and the value does not depend on how the formula is written.
 *
 * The searches find scale and offset with quant_search.c, round them to halves, and then choose the codes for the
 * rounded ones. Proof: tests/gguf/test_blocks.c, tests/gguf/test_quant.c. */
#include "gguf/blocks_internal.h"

enum { N = 32, HALF_N = N / 2 };

/* ---- decode ---------------------------------------------------------------------------------- */

void f32_decode(const uint8_t *src, float *dst) { memcpy(dst, src, sizeof *dst); }
void f16_decode(const uint8_t *src, float *dst) { *dst = load_half(src); }

void bf16_decode(const uint8_t *src, float *dst) {
    uint16_t h;
    memcpy(&h, src, sizeof h);
    *dst = bf16_to_float(h);
}

void q8_0_decode(const uint8_t *src, float *dst) {
    float d = load_half(src);
    for (int i = 0; i < N; i++) dst[i] = d * (float)(int8_t)src[2 + i];
}

static int nibble(const uint8_t *q, int i) { return i < HALF_N ? q[i] & 15 : q[i - HALF_N] >> 4; }

static int nibble_and_bit(const uint8_t *h, const uint8_t *q, int i) {
    return nibble(q, i) | (h[i / 8] >> i % 8 & 1) << 4;
}

void q4_0_decode(const uint8_t *src, float *dst) {
    float d = load_half(src);
    for (int i = 0; i < N; i++) dst[i] = d * (float)(nibble(src + 2, i) - 8);
}

void q4_1_decode(const uint8_t *src, float *dst) {
    float d = load_half(src), m = load_half(src + 2);
    for (int i = 0; i < N; i++) dst[i] = d * (float)nibble(src + 4, i) + m;
}

void q5_0_decode(const uint8_t *src, float *dst) {
    float d = load_half(src);
    for (int i = 0; i < N; i++) dst[i] = d * (float)(nibble_and_bit(src + 2, src + 6, i) - 16);
}

void q5_1_decode(const uint8_t *src, float *dst) {
    float d = load_half(src), m = load_half(src + 2);
    for (int i = 0; i < N; i++) dst[i] = d * (float)nibble_and_bit(src + 4, src + 8, i) + m;
}

/* ---- encode ---------------------------------------------------------------------------------- */

void f32_encode(const float *src, uint8_t *dst) { memcpy(dst, src, sizeof *src); }

void f16_encode(const float *src, uint8_t *dst) {
    uint16_t h = float_to_half(*src);
    memcpy(dst, &h, sizeof h);
}

void bf16_encode(const float *src, uint8_t *dst) {
    uint16_t h = float_to_bf16(*src);
    memcpy(dst, &h, sizeof h);
}

static void range(const float *src, float *low, float *high) {
    *low = *high = src[0];
    for (int i = 1; i < N; i++) {
        if (src[i] < *low) *low = src[i];
        if (src[i] > *high) *high = src[i];
    }
}

void q8_0_encode(const float *src, uint8_t *dst) {
    float id = inverse(store_half(dst, fabsf(extreme_of(src, N)) / 127));
    for (int i = 0; i < N; i++) dst[2 + i] = (uint8_t)nearest(src[i] * id, -127, 127);
}

/* Writes 4-bit codes and, where h is given, their fifth bits. */
static void pack(const int *codes, uint8_t *h, uint8_t *q) {
    for (int j = 0; j < HALF_N; j++) q[j] = (uint8_t)((codes[j] & 15) | (codes[j + HALF_N] & 15) << 4);
    if (!h) return;
    memset(h, 0, N / 8);
    for (int i = 0; i < N; i++) add_bits(&h[i / 8], (codes[i] >> 4 & 1) << i % 8);
}

/* Codes around a zero point in their middle; the extreme element gets the code 0. */
static void encode_signed(const float *src, int zero, uint8_t *d, uint8_t *h, uint8_t *q) {
    float id = inverse(store_half(d, extreme_of(src, N) / (float)-zero));
    int codes[N];
    for (int i = 0; i < N; i++) codes[i] = nearest(src[i] * id + (float)zero, 0, 2 * zero - 1);
    pack(codes, h, q);
}

/* Codes from a minimum upwards. */
static void encode_ranged(const float *src, int code_max, uint8_t *d, uint8_t *h, uint8_t *q) {
    float low, high;
    range(src, &low, &high);
    float id = inverse(store_half(d, (high - low) / (float)code_max)), m = store_half(d + 2, low);
    int codes[N];
    for (int i = 0; i < N; i++) codes[i] = nearest((src[i] - m) * id, 0, code_max);
    pack(codes, h, q);
}

void q4_0_encode(const float *src, uint8_t *dst) { encode_signed(src, 8, dst, NULL, dst + 2); }
void q4_1_encode(const float *src, uint8_t *dst) { encode_ranged(src, 15, dst, NULL, dst + 4); }
void q5_0_encode(const float *src, uint8_t *dst) { encode_signed(src, 16, dst, dst + 2, dst + 6); }
void q5_1_encode(const float *src, uint8_t *dst) { encode_ranged(src, 31, dst, dst + 4, dst + 8); }

/* ---- search ---------------------------------------------------------------------------------- */

static void pack_floats(const float *codes, int zero, uint8_t *h, uint8_t *q) {
    int whole[N];
    for (int i = 0; i < N; i++) whole[i] = (int)codes[i] + zero;
    pack(whole, h, q);
}

/* Codes from -zero to zero - 1, which are stored with `zero` added. */
static void search_signed(const float *x, const float *w, int zero, uint8_t *d, uint8_t *h, uint8_t *q) {
    float codes[N], least = (float)-zero, most = (float)(zero - 1);
    Fit fit = fit_scale(x, w, N, least, most);
    fit.scale = store_half(d, fit.scale);
    fit_codes(fit, x, N, least, most, codes);
    pack_floats(codes, zero, h, q);
}

static void search_ranged(const float *x, const float *w, float most, uint8_t *d, uint8_t *h, uint8_t *q) {
    float codes[N];
    Fit fit = fit_range(x, w, N, most, false);
    fit.scale = store_half(d, fit.scale);
    fit.low = store_half(d + 2, fit.low);
    fit_codes(fit, x, N, 0, most, codes);
    pack_floats(codes, 0, h, q);
}

void q4_0_search(const float *x, const float *w, uint8_t *dst) { search_signed(x, w, 8, dst, NULL, dst + 2); }
void q4_1_search(const float *x, const float *w, uint8_t *dst) { search_ranged(x, w, 15, dst, NULL, dst + 4); }
void q5_0_search(const float *x, const float *w, uint8_t *dst) { search_signed(x, w, 16, dst, dst + 2, dst + 6); }
void q5_1_search(const float *x, const float *w, uint8_t *dst) { search_ranged(x, w, 31, dst, dst + 4, dst + 8); }

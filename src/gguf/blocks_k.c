/* blocks_k.c - the "K" types: super-blocks of 256 elements whose sub-block scales are quantised themselves.
 *
 *     Q4_K   d:2  dmin:2  scales:12        q:128                8 sub-blocks of 32, x = d s q - dmin m
 *     Q5_K   d:2  dmin:2  scales:12  h:32  q:128                the same with a fifth bit
 *     Q6_K   q:128  h:64  scales:16  d:2                        16 sub-blocks of 16, x = d s (q - 32)
 *
 * Q4_K, Q5_K: the 32 bytes q[32 c ...] hold sub-block 2c in their low and 2c+1 in their high nibbles; bit b
 * of h[l] is the fifth bit of element l of sub-block b. The 12 scale bytes hold eight 6-bit scales s and
 * eight 6-bit minima m: those of sub-blocks 0-3 in the low six bits of bytes 0-3 and 4-7; those of 4-7 with
 * their low four bits in bytes 8-11 (s low nibble, m high) and their upper two bits on top of bytes 0-3 and
 * 4-7.
 *
 * Q6_K: each half of 128 elements has 64 bytes of q and 32 of h. Element 32 k + l of the half (k in 0..3)
 * takes its low four bits from q[32 (k & 1) + l], the low nibble for k < 2, and its upper two from bits 2k of
 * h[l].
 *
 * d s and d s q are exact in a float (11 + 8 + 4 bits) but for Q6_K's product (25 bits), which is rounded
 * once.
 */
#include "gguf/blocks_internal.h"

#include <math.h>

enum { N = 256, SUB32 = N / 32, SUB16 = N / 16 };

/* ---- Q4_K and Q5_K --------------------------------------------------------------------------- */

enum { AT_SCALES = 4, AT_Q4 = 16, AT_H5 = 16, AT_Q5 = 48 };

static void unpack_scales(const uint8_t *p, int s[SUB32], int m[SUB32]) {
    for (int i = 0; i < 4; i++) {
        s[i] = p[i] & 63;
        m[i] = p[i + 4] & 63;
        s[i + 4] = (p[i + 8] & 15) | p[i] >> 6 << 4;
        m[i + 4] = p[i + 8] >> 4 | p[i + 4] >> 6 << 4;
    }
}

static void pack_scales(const int s[SUB32], const int m[SUB32], uint8_t *p) {
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(s[i] | s[i + 4] >> 4 << 6);
        p[i + 4] = (uint8_t)(m[i] | m[i + 4] >> 4 << 6);
        p[i + 8] = (uint8_t)((s[i + 4] & 15) | (m[i + 4] & 15) << 4);
    }
}

/* h is NULL for four bits. */
static void k45_decode(const uint8_t *src, const uint8_t *h, const uint8_t *q, float *dst) {
    float d = load_half(src), dmin = load_half(src + 2);
    int s[SUB32], m[SUB32];
    unpack_scales(src + AT_SCALES, s, m);
    for (int b = 0; b < SUB32; b++) {
        float scale = d * (float)s[b], low = dmin * (float)m[b];
        for (int l = 0; l < 32; l++) {
            int code = q[b / 2 * 32 + l] >> b % 2 * 4 & 15;
            if (h) code |= (h[l] >> b & 1) << 4;
            dst[b * 32 + l] = scale * (float)code - low;
        }
    }
}

void q4_k_decode(const uint8_t *src, float *dst) { k45_decode(src, NULL, src + AT_Q4, dst); }
void q5_k_decode(const uint8_t *src, float *dst) { k45_decode(src, src + AT_H5, src + AT_Q5, dst); }

/* Scales and minima of the sub-blocks: each spans its range, a minimum above zero counting as zero. */
static void measure(const float *src, int code_max, float scale[SUB32], float low[SUB32]) {
    for (int b = 0; b < SUB32; b++) {
        float least = 0, most = src[b * 32];
        for (int l = 0; l < 32; l++) {
            float x = src[b * 32 + l];
            if (x < least) least = x;
            if (x > most) most = x;
        }
        if (most < least) most = least;
        scale[b] = (most - least) / (float)code_max;
        low[b] = -least;
    }
}

/* Eight non-negative floats to 6-bit numbers with a common half factor, which is returned as stored. */
static float quantize_scales(const float v[SUB32], uint8_t *factor, int out[SUB32]) {
    float most = 0;
    for (int b = 0; b < SUB32; b++)
        if (v[b] > most) most = v[b];
    float d = store_half(factor, most / 63), id = inverse(d);
    for (int b = 0; b < SUB32; b++) out[b] = nearest(v[b] * id, 0, 63);
    return d;
}

static void k45_encode(const float *src, int code_max, uint8_t *dst, uint8_t *h, uint8_t *q) {
    float scale[SUB32], low[SUB32];
    int s[SUB32], m[SUB32];
    measure(src, code_max, scale, low);
    float d = quantize_scales(scale, dst, s), dmin = quantize_scales(low, dst + 2, m);
    pack_scales(s, m, dst + AT_SCALES);
    memset(q, 0, N / 2);
    if (h) memset(h, 0, 32);
    for (int b = 0; b < SUB32; b++) {
        float inv = inverse(d * (float)s[b]), add = dmin * (float)m[b];
        for (int l = 0; l < 32; l++) {
            int code = nearest((src[b * 32 + l] + add) * inv, 0, code_max);
            uint8_t *byte = &q[b / 2 * 32 + l];
            *byte = (uint8_t)(*byte | (code & 15) << b % 2 * 4);
            if (h) h[l] = (uint8_t)(h[l] | code >> 4 << b);
        }
    }
}

void q4_k_encode(const float *src, uint8_t *dst) { k45_encode(src, 15, dst, NULL, dst + AT_Q4); }
void q5_k_encode(const float *src, uint8_t *dst) { k45_encode(src, 31, dst, dst + AT_H5, dst + AT_Q5); }

/* ---- Q6_K ------------------------------------------------------------------------------------ */

enum { AT_H6 = 128, AT_SCALES6 = 192, AT_D6 = 208 };

/* Where element i of the block keeps its bits. */
typedef struct Place6 {
    int q_byte, q_shift, h_byte, h_shift;
} Place6;

static Place6 place6(int i) {
    int half = i / 128, k = i % 128 / 32, l = i % 32;
    return (Place6){half * 64 + (k & 1) * 32 + l, k / 2 * 4, half * 32 + l, k * 2};
}

void q6_k_decode(const uint8_t *src, float *dst) {
    float d = load_half(src + AT_D6);
    for (int b = 0; b < SUB16; b++) {
        float scale = d * (float)(int8_t)src[AT_SCALES6 + b];
        for (int i = b * 16; i < b * 16 + 16; i++) {
            Place6 at = place6(i);
            int code = (src[at.q_byte] >> at.q_shift & 15) | (src[AT_H6 + at.h_byte] >> at.h_shift & 3) << 4;
            dst[i] = scale * (float)(code - 32);
        }
    }
}

/* Of each sub-block the scale that gives its extreme element the code -32. */
static void measure6(const float *src, float scale[SUB16]) {
    for (int b = 0; b < SUB16; b++) {
        float best = 0;
        for (int i = b * 16; i < b * 16 + 16; i++)
            if (fabsf(src[i]) > fabsf(best)) best = src[i];
        scale[b] = best / -32;
    }
}

static void pack6(const float *src, const float inv[SUB16], uint8_t *dst) {
    for (int i = 0; i < N; i++) {
        int code = nearest(src[i] * inv[i / 16], -32, 31) + 32;
        Place6 at = place6(i);
        uint8_t *q = &dst[at.q_byte], *h = &dst[AT_H6 + at.h_byte];
        *q = (uint8_t)(*q | (code & 15) << at.q_shift);
        *h = (uint8_t)(*h | code >> 4 << at.h_shift);
    }
}

void q6_k_encode(const float *src, uint8_t *dst) {
    float scale[SUB16], inv[SUB16], most = 0;
    measure6(src, scale);
    for (int b = 0; b < SUB16; b++)
        if (fabsf(scale[b]) > fabsf(most)) most = scale[b];
    memset(dst, 0, AT_SCALES6);
    float d = store_half(dst + AT_D6, most / -128), id = inverse(d);
    for (int b = 0; b < SUB16; b++) {
        int s = nearest(scale[b] * id, -128, 127);
        dst[AT_SCALES6 + b] = (uint8_t)s;
        inv[b] = inverse(d * (float)s);
    }
    pack6(src, inv, dst);
}

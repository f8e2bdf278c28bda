/* blocks_k.c - the "K" types: super-blocks of 256 elements whose sub-block scales are quantised themselves.
 *
 *     Q2_K   scales:16  q:64  d:2  dmin:2                 16 sub-blocks of 16, x = d s q - dmin m
 *     Q3_K   h:32  q:64  scales:12  d:2                   16 sub-blocks of 16, x = d (s - 32) (q - 4)
 *     Q4_K   d:2  dmin:2  scales:12        q:128          8 sub-blocks of 32, x = d s q - dmin m
 *     Q5_K   d:2  dmin:2  scales:12  h:32  q:128          the same with a fifth bit
 *     Q6_K   q:128  h:64  scales:16  d:2                  16 sub-blocks of 16, x = d s (q - 32)
 *
 * Q4_K, Q5_K: the 32 bytes q[32 c ...] hold sub-block 2c in their low and 2c+1 in their high nibbles; bit b
 * of h[l] is the fifth bit of element l of sub-block b. The 12 scale bytes hold eight 6-bit scales s and
 * eight 6-bit minima m. Those of sub-blocks 0-3 are in the low six bits of bytes 0-3 (s) and 4-7 (m). Those of
 * sub-blocks 4-7 have their low four bits in bytes 8-11 (s in the low nibble, m in the high one) and their upper two
 * bits at the top of bytes 0-3 and 4-7.
 *
 * Q6_K: each half of 128 elements has 64 bytes of q and 32 of h. Element 32 k + l of the half (k in 0..3)
 * takes its low four bits from q[32 (k & 1) + l], the low nibble for k < 2, and its upper two from bits 2k and 2k+1 of
 * h[l].
 *
 * Q2_K, Q3_K: element i has its low two bits in bits 2p, 2p+1 of q[32 (i / 128) + i % 32], where p = i % 128 / 32. In
 * Q3_K, bit i / 32 of h[i % 32] is the third one. The scale of sub-block b of Q2_K is the low nibble of scales[b], and
 * its minimum is the high nibble. The 6-bit scale of sub-block b of Q3_K has its low four bits in byte b % 8 of the
 * scales (the low nibble if b < 8), and its upper two in bits 2 (b / 4) and 2 (b / 4) + 1 of byte 8 + b % 4.
 *
 * d s and d s q are exact in a float (11 + 8 + 4 bits) except for the product of Q6_K (25 bits), so that each x is
 * rounded once at most. quant_search.c finds the numbers of the searches.
 * Proof: tests/gguf/test_blocks.c, tests/gguf/test_quant.c. */
#include "gguf/blocks_internal.h"

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

/* Writes the code of element i into q and h, which begin as zeros. In these functions h is NULL for four bits. */
static void add_code45(int i, int code, uint8_t *h, uint8_t *q) {
    int b = i / 32, l = i % 32;
    add_bits(&q[b / 2 * 32 + l], (code & 15) << b % 2 * 4);
    if (h) add_bits(&h[l], code >> 4 << b);
}

static void decode45(const uint8_t *src, const uint8_t *h, const uint8_t *q, float *dst) {
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

/* Scales and minima of the sub-blocks: each spans its range, a minimum above zero counting as zero. */
static void measure45(const float *src, int code_max, float scale[SUB32], float low[SUB32]) {
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

/* Stores the half that makes the largest of n non-negative numbers `most_code`, and returns it as it is stored. */
static float store_factor(const float *v, int n, float most_code, uint8_t *dst) {
    float most = 0;
    for (int b = 0; b < n; b++)
        if (v[b] > most) most = v[b];
    return store_half(dst, most / most_code);
}

/* Eight non-negative floats to 6-bit numbers with a common half factor, which is returned as stored. */
static float quantize_scales(const float v[SUB32], uint8_t *factor, int out[SUB32]) {
    float d = store_factor(v, SUB32, 63, factor), id = inverse(d);
    for (int b = 0; b < SUB32; b++) out[b] = nearest(v[b] * id, 0, 63);
    return d;
}

static void encode45(const float *src, int code_max, uint8_t *dst, uint8_t *h, uint8_t *q) {
    float scale[SUB32], low[SUB32];
    int s[SUB32], m[SUB32];
    measure45(src, code_max, scale, low);
    float d = quantize_scales(scale, dst, s), dmin = quantize_scales(low, dst + 2, m);
    pack_scales(s, m, dst + AT_SCALES);
    memset(q, 0, N / 2);
    if (h) memset(h, 0, 32);
    for (int b = 0; b < SUB32; b++) {
        float inv = inverse(d * (float)s[b]), add = dmin * (float)m[b];
        for (int i = b * 32; i < b * 32 + 32; i++) add_code45(i, nearest((src[i] + add) * inv, 0, code_max), h, q);
    }
}

static void search45(const float *x, const float *w, float most, uint8_t *dst, uint8_t *h, uint8_t *q) {
    RangeSuper k = {.x = x, .w = w, .sub = 32, .s_max = 63, .most = most};
    range_super_search(&k);
    (void)store_half(dst, k.d);
    (void)store_half(dst + 2, k.dmin);
    pack_scales(k.s, k.m, dst + AT_SCALES);
    memset(q, 0, N / 2);
    if (h) memset(h, 0, 32);
    for (int i = 0; i < N; i++) add_code45(i, (int)k.q[i], h, q);
}

void q4_k_decode(const uint8_t *src, float *dst) { decode45(src, NULL, src + AT_Q4, dst); }
void q5_k_decode(const uint8_t *src, float *dst) { decode45(src, src + AT_H5, src + AT_Q5, dst); }
void q4_k_encode(const float *src, uint8_t *dst) { encode45(src, 15, dst, NULL, dst + AT_Q4); }
void q5_k_encode(const float *src, uint8_t *dst) { encode45(src, 31, dst, dst + AT_H5, dst + AT_Q5); }
void q4_k_search(const float *x, const float *w, uint8_t *dst) { search45(x, w, 15, dst, NULL, dst + AT_Q4); }
void q5_k_search(const float *x, const float *w, uint8_t *dst) { search45(x, w, 31, dst, dst + AT_H5, dst + AT_Q5); }

/* ---- Q3_K and Q6_K: scales with signs, no minima ---------------------------------------------- */

/* For each of the 16 sub-blocks the scale that gives its extreme element the code `least`. Returns the scale of largest
 * magnitude. */
static float measure36(const float *src, float least, float scale[SUB16]) {
    float most = 0;
    for (int b = 0; b < SUB16; b++) {
        scale[b] = extreme_of(src + b * 16, 16) / least;
        if (fabsf(scale[b]) > fabsf(most)) most = scale[b];
    }
    return most;
}

enum { AT_H6 = 128, AT_SCALES6 = 192, AT_D6 = 208 };

/* Where element i of the block keeps its bits. */
typedef struct Place6 {
    int q_byte, q_shift, h_byte, h_shift;
} Place6;

static Place6 place6(int i) {
    int half = i / 128, k = i % 128 / 32, l = i % 32;
    return (Place6){half * 64 + (k & 1) * 32 + l, k / 2 * 4, AT_H6 + half * 32 + l, k * 2};
}

static void add_code6(int i, int code, uint8_t *dst) {
    Place6 at = place6(i);
    add_bits(&dst[at.q_byte], (code & 15) << at.q_shift);
    add_bits(&dst[at.h_byte], code >> 4 << at.h_shift);
}

void q6_k_decode(const uint8_t *src, float *dst) {
    float d = load_half(src + AT_D6);
    for (int b = 0; b < SUB16; b++) {
        float scale = d * (float)(int8_t)src[AT_SCALES6 + b];
        for (int i = b * 16; i < b * 16 + 16; i++) {
            Place6 at = place6(i);
            int code = (src[at.q_byte] >> at.q_shift & 15) | (src[at.h_byte] >> at.h_shift & 3) << 4;
            dst[i] = scale * (float)(code - 32);
        }
    }
}

void q6_k_encode(const float *src, uint8_t *dst) {
    float scale[SUB16], most = measure36(src, -32, scale);
    memset(dst, 0, AT_SCALES6);
    float d = store_half(dst + AT_D6, most / -128), id = inverse(d);
    for (int b = 0; b < SUB16; b++) {
        int s = nearest(scale[b] * id, -128, 127);
        float inv = inverse(d * (float)s);
        dst[AT_SCALES6 + b] = (uint8_t)s;
        for (int i = b * 16; i < b * 16 + 16; i++) add_code6(i, nearest(src[i] * inv, -32, 31) + 32, dst);
    }
}

void q6_k_search(const float *x, const float *w, uint8_t *dst) {
    ScaleSuper k = {.x = x, .w = w, .sub = 16, .s_least = -128, .s_most = 127, .least = -32, .most = 31};
    scale_super_search(&k);
    memset(dst, 0, AT_SCALES6);
    (void)store_half(dst + AT_D6, k.d);
    for (int b = 0; b < SUB16; b++) dst[AT_SCALES6 + b] = (uint8_t)k.s[b];
    for (int i = 0; i < N; i++) add_code6(i, (int)k.q[i] + 32, dst);
}

/* Q2_K and Q3_K: the low two bits of element i. */
static int low_bits(const uint8_t *q, int i) { return q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }
static void add_low_bits(uint8_t *q, int i, int code) {
    add_bits(&q[i / 128 * 32 + i % 32], (code & 3) << i % 128 / 32 * 2);
}

enum { AT_Q3 = 32, AT_SCALES3 = 96, AT_D3 = 108 };

static int scale3(const uint8_t *scales, int b) {
    return (scales[b % 8] >> b / 8 * 4 & 15) | (scales[8 + b % 4] >> b / 4 * 2 & 3) << 4;
}

static void add_scale3(uint8_t *scales, int b, int s) {
    add_bits(&scales[b % 8], (s & 15) << b / 8 * 4);
    add_bits(&scales[8 + b % 4], s >> 4 << b / 4 * 2);
}

static void add_code3(int i, int code, uint8_t *dst) {
    add_low_bits(dst + AT_Q3, i, code);
    add_bits(&dst[i % 32], code >> 2 << i / 32);
}

void q3_k_decode(const uint8_t *src, float *dst) {
    float d = load_half(src + AT_D3);
    for (int i = 0; i < N; i++) {
        int code = low_bits(src + AT_Q3, i) | (src[i % 32] >> i / 32 & 1) << 2;
        dst[i] = d * (float)(scale3(src + AT_SCALES3, i / 16) - 32) * (float)(code - 4);
    }
}

void q3_k_encode(const float *src, uint8_t *dst) {
    float scale[SUB16], most = measure36(src, -4, scale);
    memset(dst, 0, AT_D3);
    float d = store_half(dst + AT_D3, most / -32), id = inverse(d);
    for (int b = 0; b < SUB16; b++) {
        int s = nearest(scale[b] * id, -32, 31);
        float inv = inverse(d * (float)s);
        add_scale3(dst + AT_SCALES3, b, s + 32);
        for (int i = b * 16; i < b * 16 + 16; i++) add_code3(i, nearest(src[i] * inv, -4, 3) + 4, dst);
    }
}

void q3_k_search(const float *x, const float *w, uint8_t *dst) {
    ScaleSuper k = {.x = x, .w = w, .sub = 16, .s_least = -32, .s_most = 31, .least = -4, .most = 3};
    scale_super_search(&k);
    memset(dst, 0, AT_D3);
    (void)store_half(dst + AT_D3, k.d);
    for (int b = 0; b < SUB16; b++) add_scale3(dst + AT_SCALES3, b, k.s[b] + 32);
    for (int i = 0; i < N; i++) add_code3(i, (int)k.q[i] + 4, dst);
}

/* ---- Q2_K ------------------------------------------------------------------------------------ */

enum { AT_Q2 = 16, AT_D2 = 80, AT_DMIN2 = 82 };

void q2_k_decode(const uint8_t *src, float *dst) {
    float d = load_half(src + AT_D2), dmin = load_half(src + AT_DMIN2);
    for (int i = 0; i < N; i++) {
        int s = src[i / 16] & 15, m = src[i / 16] >> 4;
        dst[i] = d * (float)s * (float)low_bits(src + AT_Q2, i) - dmin * (float)m;
    }
}

/* Measures the range of each sub-block, a minimum above zero counting as zero: its scale, and how far its minimum is
 * below zero. */
static void measure2(const float *src, float scale[SUB16], float low[SUB16]) {
    for (int b = 0; b < SUB16; b++) {
        float least = 0, most = 0;
        for (int i = b * 16; i < b * 16 + 16; i++) {
            if (src[i] < least) least = src[i];
            if (src[i] > most) most = src[i];
        }
        scale[b] = (most - least) / 3;
        low[b] = -least;
    }
}

void q2_k_encode(const float *src, uint8_t *dst) {
    float scale[SUB16], low[SUB16];
    measure2(src, scale, low);
    memset(dst, 0, AT_D2);
    float d = store_factor(scale, SUB16, 15, dst + AT_D2), dmin = store_factor(low, SUB16, 15, dst + AT_DMIN2);
    for (int b = 0; b < SUB16; b++) {
        int s = nearest(scale[b] * inverse(d), 0, 15), m = nearest(low[b] * inverse(dmin), 0, 15);
        float inv = inverse(d * (float)s), add = dmin * (float)m;
        dst[b] = (uint8_t)(s | m << 4);
        for (int i = b * 16; i < b * 16 + 16; i++) add_low_bits(dst + AT_Q2, i, nearest((src[i] + add) * inv, 0, 3));
    }
}

void q2_k_search(const float *x, const float *w, uint8_t *dst) {
    RangeSuper k = {.x = x, .w = w, .sub = 16, .s_max = 15, .most = 3};
    range_super_search(&k);
    memset(dst, 0, AT_D2);
    (void)store_half(dst + AT_D2, k.d);
    (void)store_half(dst + AT_DMIN2, k.dmin);
    for (int b = 0; b < SUB16; b++) dst[b] = (uint8_t)(k.s[b] | k.m[b] << 4);
    for (int i = 0; i < N; i++) add_low_bits(dst + AT_Q2, i, (int)k.q[i]);
}

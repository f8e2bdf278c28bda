/* blocks_k_low.c - the "K" types of two and three bits: super-blocks of 256 elements, 16 sub-blocks of 16.
 *
 *     Q2_K   scales:16  q:64  d:2  dmin:2              x = d s q - dmin m        q in 0..3;   s, m in 0..15
 *     Q3_K   h:32  q:64  scales:12  d:2                x = d (s - 32) (q - 4)    q in 0..7;   s in 0..63
 *
 * Element i has its low two bits in bits 2p, 2p+1 of q[32 (i / 128) + i % 32], where p = i % 128 / 32. Of Q3_K, bit
 * i / 32 of h[i % 32] is the third one.
 *
 * Q2_K: scales[b] has s of sub-block b in its low and m in its high nibble. Q3_K: s of sub-block b has its low four bits in
 * byte b % 8 of the scales (b < 8: the low nibble), and its upper two in bits 2 (b / 4) and the next of byte 8 + b % 4.
 *
 * All products are exact in a float (11 + 6 + 3 bits), so each x is rounded once at most.
 */
#include "gguf/blocks_internal.h"

#include <math.h>

enum { N = 256, SUB = 16, SUBS = N / SUB };
enum { AT_Q2 = 16, AT_D2 = 80, AT_DMIN2 = 82, AT_Q3 = 32, AT_SCALES3 = 96, AT_D3 = 108 };

/* Where element i keeps its low two bits. */
static int byte_of(int i) { return i / 128 * 32 + i % 32; }
static int shift_of(int i) { return i % 128 / 32 * 2; }

static int low_bits(const uint8_t *q, int i) { return q[byte_of(i)] >> shift_of(i) & 3; }
static void add_low_bits(uint8_t *q, int i, int code) {
    q[byte_of(i)] = (uint8_t)(q[byte_of(i)] | (code & 3) << shift_of(i));
}

/* ---- Q2_K ------------------------------------------------------------------------------------ */

void q2_k_decode(const uint8_t *src, float *dst) {
    float d = load_half(src + AT_D2), dmin = load_half(src + AT_DMIN2);
    for (int i = 0; i < N; i++) {
        int s = src[i / SUB] & 15, m = src[i / SUB] >> 4;
        dst[i] = d * (float)s * (float)low_bits(src + AT_Q2, i) - dmin * (float)m;
    }
}

/* The range of each sub-block, a minimum above zero counting as zero: its scale, and how far its minimum is below zero. */
static void measure2(const float *src, float scale[SUBS], float low[SUBS]) {
    for (int b = 0; b < SUBS; b++) {
        float least = 0, most = 0;
        for (int i = b * SUB; i < (b + 1) * SUB; i++) {
            if (src[i] < least) least = src[i];
            if (src[i] > most) most = src[i];
        }
        scale[b] = (most - least) / 3;
        low[b] = -least;
    }
}

/* A half that makes the largest number `most_code`. */
static float factor(const float v[SUBS], float most_code, uint8_t *dst) {
    float most = 0;
    for (int b = 0; b < SUBS; b++)
        if (v[b] > most) most = v[b];
    return store_half(dst, most / most_code);
}

void q2_k_encode(const float *src, uint8_t *dst) {
    float scale[SUBS], low[SUBS];
    measure2(src, scale, low);
    memset(dst, 0, AT_D2);
    float d = factor(scale, 15, dst + AT_D2), dmin = factor(low, 15, dst + AT_DMIN2);
    for (int b = 0; b < SUBS; b++) {
        int s = nearest(scale[b] * inverse(d), 0, 15), m = nearest(low[b] * inverse(dmin), 0, 15);
        float inv = inverse(d * (float)s), add = dmin * (float)m;
        dst[b] = (uint8_t)(s | m << 4);
        for (int i = b * SUB; i < (b + 1) * SUB; i++) add_low_bits(dst + AT_Q2, i, nearest((src[i] + add) * inv, 0, 3));
    }
}

/* ---- Q3_K ------------------------------------------------------------------------------------ */

static int scale3(const uint8_t *scales, int b) {
    return (scales[b % 8] >> b / 8 * 4 & 15) | (scales[8 + b % 4] >> b / 4 * 2 & 3) << 4;
}

static void add_scale3(uint8_t *scales, int b, int s) {
    scales[b % 8] = (uint8_t)(scales[b % 8] | (s & 15) << b / 8 * 4);
    scales[8 + b % 4] = (uint8_t)(scales[8 + b % 4] | s >> 4 << b / 4 * 2);
}

void q3_k_decode(const uint8_t *src, float *dst) {
    float d = load_half(src + AT_D3);
    for (int i = 0; i < N; i++) {
        int code = low_bits(src + AT_Q3, i) | (src[i % 32] >> i / 32 & 1) << 2;
        dst[i] = d * (float)(scale3(src + AT_SCALES3, i / SUB) - 32) * (float)(code - 4);
    }
}

/* Of each sub-block the scale that gives its extreme element the code -4. Returns the largest by magnitude. */
static float measure3(const float *src, float scale[SUBS]) {
    float most = 0;
    for (int b = 0; b < SUBS; b++) {
        float best = 0;
        for (int i = b * SUB; i < (b + 1) * SUB; i++)
            if (fabsf(src[i]) > fabsf(best)) best = src[i];
        scale[b] = best / -4;
        if (fabsf(scale[b]) > fabsf(most)) most = scale[b];
    }
    return most;
}

void q3_k_encode(const float *src, uint8_t *dst) {
    float scale[SUBS], most = measure3(src, scale);
    memset(dst, 0, AT_D3);
    float d = store_half(dst + AT_D3, most / -32), id = inverse(d);
    for (int b = 0; b < SUBS; b++) {
        int s = nearest(scale[b] * id, -32, 31);
        float inv = inverse(d * (float)s);
        add_scale3(dst + AT_SCALES3, b, s + 32);
        for (int i = b * SUB; i < (b + 1) * SUB; i++) {
            int code = nearest(src[i] * inv, -4, 3) + 4;
            add_low_bits(dst + AT_Q3, i, code);
            dst[i % 32] = (uint8_t)(dst[i % 32] | code >> 2 << i / 32);
        }
    }
}

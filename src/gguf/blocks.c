/* blocks.c - the plain types, and the blocks of 32 elements with one scale.
 *
 * A block of 32 (numbers are bytes; d and m are halves):
 *
 *     Q8_0   d:2  q:32             x = d q              q in -128..127
 *     Q4_0   d:2  q:16             x = d (q - 8)        q in 0..15
 *     Q4_1   d:2  m:2  q:16        x = d q + m
 *     Q5_0   d:2  h:4  q:16        x = d (q - 16)       q in 0..31
 *     Q5_1   d:2  m:2  h:4  q:16   x = d q + m
 *
 * Of the 4-bit types byte j holds element j in its low and element j+16 in its high nibble; bit i of h is the
 * fifth bit of element i. d q is exact in a float (11 + 8 bits at most), so each x is rounded once at most
 * and the value does not depend on how the formula is written.
 */
#include "gguf/blocks_internal.h"

#include "base/error.h"

#include <math.h>

enum { N = 32, HALF_N = N / 2 };

/* ---- decode ---------------------------------------------------------------------------------- */

static void f32_decode(const uint8_t *src, float *dst) { memcpy(dst, src, sizeof *dst); }
static void f16_decode(const uint8_t *src, float *dst) { *dst = load_half(src); }

static void bf16_decode(const uint8_t *src, float *dst) {
    uint16_t h;
    memcpy(&h, src, sizeof h);
    *dst = bf16_to_float(h);
}

static void q8_0_decode(const uint8_t *src, float *dst) {
    float d = load_half(src);
    for (int i = 0; i < N; i++) dst[i] = d * (float)(int8_t)src[2 + i];
}

static int nibble(const uint8_t *q, int i) { return i < HALF_N ? q[i] & 15 : q[i - HALF_N] >> 4; }

static int nibble_and_bit(const uint8_t *h, const uint8_t *q, int i) {
    return nibble(q, i) | (h[i / 8] >> i % 8 & 1) << 4;
}

static void q4_0_decode(const uint8_t *src, float *dst) {
    float d = load_half(src);
    for (int i = 0; i < N; i++) dst[i] = d * (float)(nibble(src + 2, i) - 8);
}

static void q4_1_decode(const uint8_t *src, float *dst) {
    float d = load_half(src), m = load_half(src + 2);
    for (int i = 0; i < N; i++) dst[i] = d * (float)nibble(src + 4, i) + m;
}

static void q5_0_decode(const uint8_t *src, float *dst) {
    float d = load_half(src);
    for (int i = 0; i < N; i++) dst[i] = d * (float)(nibble_and_bit(src + 2, src + 6, i) - 16);
}

static void q5_1_decode(const uint8_t *src, float *dst) {
    float d = load_half(src), m = load_half(src + 2);
    for (int i = 0; i < N; i++) dst[i] = d * (float)nibble_and_bit(src + 4, src + 8, i) + m;
}

/* ---- encode ---------------------------------------------------------------------------------- */

static void f32_encode(const float *src, uint8_t *dst) { memcpy(dst, src, sizeof *src); }

static void f16_encode(const float *src, uint8_t *dst) {
    uint16_t h = float_to_half(*src);
    memcpy(dst, &h, sizeof h);
}

static void bf16_encode(const float *src, uint8_t *dst) {
    uint16_t h = float_to_bf16(*src);
    memcpy(dst, &h, sizeof h);
}

/* The element of largest magnitude, with its sign. */
static float extreme(const float *src) {
    float best = 0;
    for (int i = 0; i < N; i++)
        if (fabsf(src[i]) > fabsf(best)) best = src[i];
    return best;
}

static void range(const float *src, float *low, float *high) {
    *low = *high = src[0];
    for (int i = 1; i < N; i++) {
        if (src[i] < *low) *low = src[i];
        if (src[i] > *high) *high = src[i];
    }
}

static void q8_0_encode(const float *src, uint8_t *dst) {
    float id = inverse(store_half(dst, fabsf(extreme(src)) / 127));
    for (int i = 0; i < N; i++) dst[2 + i] = (uint8_t)nearest(src[i] * id, -127, 127);
}

/* Writes 4-bit codes and, where h is given, their fifth bits. */
static void pack(const int *codes, uint8_t *h, uint8_t *q) {
    for (int j = 0; j < HALF_N; j++) q[j] = (uint8_t)((codes[j] & 15) | (codes[j + HALF_N] & 15) << 4);
    if (!h) return;
    memset(h, 0, N / 8);
    for (int i = 0; i < N; i++) h[i / 8] = (uint8_t)(h[i / 8] | (codes[i] >> 4 & 1) << i % 8);
}

/* Codes around a zero point: it lies in the middle, and the extreme element gets the code 0. */
static void encode_signed(const float *src, int zero, uint8_t *d, uint8_t *h, uint8_t *q) {
    float id = inverse(store_half(d, extreme(src) / (float)-zero));
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

static void q4_0_encode(const float *src, uint8_t *dst) { encode_signed(src, 8, dst, NULL, dst + 2); }
static void q4_1_encode(const float *src, uint8_t *dst) { encode_ranged(src, 15, dst, NULL, dst + 4); }
static void q5_0_encode(const float *src, uint8_t *dst) { encode_signed(src, 16, dst, dst + 2, dst + 6); }
static void q5_1_encode(const float *src, uint8_t *dst) { encode_ranged(src, 31, dst, dst + 4, dst + 8); }

/* ---- all types ------------------------------------------------------------------------------- */

static const struct {
    BlockDecode decode;
    BlockEncode encode;
} types[TYPE_COUNT] = {
    [TYPE_F32] = {f32_decode, f32_encode},
    [TYPE_F16] = {f16_decode, f16_encode},
    [TYPE_BF16] = {bf16_decode, bf16_encode},
    [TYPE_Q8_0] = {q8_0_decode, q8_0_encode},
    [TYPE_Q4_0] = {q4_0_decode, q4_0_encode},
    [TYPE_Q4_1] = {q4_1_decode, q4_1_encode},
    [TYPE_Q5_0] = {q5_0_decode, q5_0_encode},
    [TYPE_Q5_1] = {q5_1_decode, q5_1_encode},
    [TYPE_Q4_K] = {q4_k_decode, q4_k_encode},
    [TYPE_Q5_K] = {q5_k_decode, q5_k_encode},
    [TYPE_Q6_K] = {q6_k_decode, q6_k_encode},
    [TYPE_Q2_K] = {q2_k_decode, q2_k_encode},
    [TYPE_Q3_K] = {q3_k_decode, q3_k_encode},
    [TYPE_IQ4_NL] = {iq4_nl_decode, iq4_nl_encode},
    [TYPE_IQ4_XS] = {iq4_xs_decode, iq4_xs_encode},
    [TYPE_MXFP4] = {mxfp4_decode, mxfp4_encode},
    [TYPE_IQ2_XXS] = {iq2_xxs_decode, iq2_xxs_encode},
    [TYPE_IQ2_XS] = {iq2_xs_decode, iq2_xs_encode},
    [TYPE_IQ2_S] = {iq2_s_decode, iq2_s_encode},
    [TYPE_IQ3_XXS] = {iq3_xxs_decode, iq3_xxs_encode},
    [TYPE_IQ3_S] = {iq3_s_decode, iq3_s_encode},
    [TYPE_IQ1_S] = {iq1_s_decode, iq1_s_encode},
    [TYPE_IQ1_M] = {iq1_m_decode, iq1_m_encode},
    [TYPE_NVFP4] = {nvfp4_decode, nvfp4_encode},
};

void blocks_dequantize(TensorType type, const void *src, int64_t n, float *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    fr_assert(n >= 0 && n % info->block_n == 0);
    const uint8_t *bytes = src;
    for (int64_t i = 0; i < n; i += info->block_n, bytes += info->block_bytes) types[type].decode(bytes, dst + i);
}

void blocks_quantize(TensorType type, const float *src, int64_t n, void *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    fr_assert(n >= 0 && n % info->block_n == 0);
    uint8_t *bytes = dst;
    for (int64_t i = 0; i < n; i += info->block_n, bytes += info->block_bytes) types[type].encode(src + i, bytes);
}

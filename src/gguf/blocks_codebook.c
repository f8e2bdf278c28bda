/* blocks_codebook.c - the types whose 4-bit codes are places in a table of 16 values (codebook.h).
 *
 *     IQ4_NL   d:2  q:16                                  32 elements, x = d v[q]
 *     IQ4_XS   d:2  high:2  low:4  q:128                  8 sub-blocks of 32, x = d (s - 32) v[q]
 *     MXFP4    e:1  q:16                                  32 elements, x = 2^(e - 128) v[q]
 *     NVFP4    e:4  q:32                                  4 sub-blocks of 16, x = (e / 2) v[q], e a small float
 *
 * Byte j of the 16 of 32 elements holds element j in its low and element j+16 in its high nibble; of NVFP4, byte j of the 8 of
 * 16 elements j and j+8. IQ4_XS: the 6-bit scale
 * s of sub-block b has its low four bits in nibble b%2 of low[b/2], and its upper two in bits 2b, 2b+1 of `high`.
 *
 * d (s - 32) is exact in a float (11 + 6 bits); its product with a value is rounded once (25 bits). MXFP4 is the format
 * of the Open Compute Project's Microscaling specification; its products are exact unless they are subnormal. Published
 * files of NVFP4 have a further scale for each tensor, which is a tensor of its own (model/arch.c).
 */
#include "gguf/blocks_internal.h"
#include "gguf/codebook.h"

#include <math.h>

enum {
    N = 32,
    HALF_N = N / 2,
    SUPER = 256,
    SUBS = SUPER / N,
    NV_SUB = 16,
    NV_SUBS = 4,
    AT_HIGH = 2,
    AT_LOW = 4,
    AT_Q = 8
};

float mxfp4_scale(uint8_t exponent) {
    uint32_t bits = exponent == 0 ? 0x00400000 : (uint32_t)exponent << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f * 0.5f;
}

float nvfp4_scale(uint8_t code) {
    uint32_t bits = (uint32_t)(code & NVFP4_SCALE_BITS) << 20; /* the exponent's bias is 127 here, and 7 in the file */
    float f;
    memcpy(&f, &bits, sizeof f);
    return f * 0x1p119f;
}

/* ---- decode ---------------------------------------------------------------------------------- */

static void decode_32(float scale, const int8_t values[16], const uint8_t *q, float *dst) {
    for (int j = 0; j < HALF_N; j++) {
        dst[j] = scale * (float)values[q[j] & 15];
        dst[j + HALF_N] = scale * (float)values[q[j] >> 4];
    }
}

void iq4_nl_decode(const uint8_t *src, float *dst) { decode_32(load_half(src), iq4_values, src + 2, dst); }
void mxfp4_decode(const uint8_t *src, float *dst) { decode_32(mxfp4_scale(src[0]), mxfp4_values, src + 1, dst); }

void nvfp4_decode(const uint8_t *src, float *dst) {
    for (int b = 0; b < NV_SUBS; b++, dst += NV_SUB) {
        const uint8_t *q = src + NV_SUBS + b * NV_SUB / 2;
        float scale = nvfp4_scale(src[b]);
        for (int j = 0; j < NV_SUB / 2; j++) {
            dst[j] = scale * (float)mxfp4_values[q[j] & 15];
            dst[j + NV_SUB / 2] = scale * (float)mxfp4_values[q[j] >> 4];
        }
    }
}

void iq4_xs_decode(const uint8_t *src, float *dst) {
    float d = load_half(src);
    for (int b = 0; b < SUBS; b++) {
        int low = src[AT_LOW + b / 2] >> b % 2 * 4 & 15, high = src[AT_HIGH + b / 4] >> b % 4 * 2 & 3;
        decode_32(d * (float)((low | high << 4) - 32), iq4_values, src + AT_Q + b * HALF_N, dst + b * N);
    }
}

/* ---- encode ---------------------------------------------------------------------------------- */

static float extreme_of(const float *src, int n) {
    float best = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(src[i]) > fabsf(best)) best = src[i];
    return best;
}

static float extreme(const float *src) { return extreme_of(src, N); }

/* The code whose value is nearest to x; NaN gets that of zero or nearly zero. */
static unsigned nearest_value(const int8_t values[16], float x) {
    unsigned best = values == iq4_values ? 8 : 0;
    for (unsigned c = 0; c < 16; c++)
        if (fabsf(x - (float)values[c]) < fabsf(x - (float)values[best])) best = c;
    return best;
}

static void encode_32(const float *src, float scale, const int8_t values[16], uint8_t *q) {
    float inv = inverse(scale);
    for (int j = 0; j < HALF_N; j++)
        q[j] = (uint8_t)(nearest_value(values, src[j] * inv) | nearest_value(values, src[j + HALF_N] * inv) << 4);
}

/* The extreme element gets the value of largest magnitude, which is -127. */
void iq4_nl_encode(const float *src, uint8_t *dst) {
    encode_32(src, store_half(dst, extreme(src) / -127), iq4_values, dst + 2);
}

void iq4_xs_encode(const float *src, uint8_t *dst) {
    float scale[SUBS], most = 0;
    for (int b = 0; b < SUBS; b++) {
        scale[b] = extreme(src + b * N) / -127;
        if (fabsf(scale[b]) > fabsf(most)) most = scale[b];
    }
    memset(dst, 0, AT_Q);
    float d = store_half(dst, most / -32), id = inverse(d);
    for (int b = 0; b < SUBS; b++) {
        int s = nearest(scale[b] * id, -32, 31);
        uint8_t *low = &dst[AT_LOW + b / 2], *high = &dst[AT_HIGH + b / 4];
        *low = (uint8_t)(*low | ((s + 32) & 15) << b % 2 * 4);
        *high = (uint8_t)(*high | (s + 32) >> 4 << b % 4 * 2);
        encode_32(src + b * N, d * (float)s, iq4_values, dst + AT_Q + b * HALF_N);
    }
}

/* The exponent of the standard: that of the extreme element becomes the largest exponent of a code, which is 2. */
void mxfp4_encode(const float *src, uint8_t *dst) {
    float most = fabsf(extreme(src));
    int e = most > 0 && isfinite(most) ? ilogbf(most) - 2 + 127 : most > 0 ? MXFP4_EXPONENT_MAX : 0;
    dst[0] = (uint8_t)(e < 0 ? 0 : e > MXFP4_EXPONENT_MAX ? MXFP4_EXPONENT_MAX : e);
    encode_32(src, mxfp4_scale(dst[0]), mxfp4_values, dst + 1);
}

/* The nearest scale by its bits; the largest for all that is larger. */
static uint8_t nvfp4_nearest_scale(float scale) {
    float f = scale * 0x1p-119f;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + (1u << 19)) >> 20;
    return (uint8_t)(bits > NVFP4_SCALE_MAX ? NVFP4_SCALE_MAX : bits);
}

/* The extreme element of 16 gets the value of largest magnitude, which is 12. */
void nvfp4_encode(const float *src, uint8_t *dst) {
    for (int b = 0; b < NV_SUBS; b++, src += NV_SUB) {
        uint8_t *q = dst + NV_SUBS + b * NV_SUB / 2;
        dst[b] = nvfp4_nearest_scale(fabsf(extreme_of(src, NV_SUB)) / 12);
        float inv = inverse(nvfp4_scale(dst[b]));
        for (int j = 0; j < NV_SUB / 2; j++)
            q[j] = (uint8_t)(nearest_value(mxfp4_values, src[j] * inv) |
                             nearest_value(mxfp4_values, src[j + NV_SUB / 2] * inv) << 4);
    }
}

/* blocks_codebook.c - the types whose 4-bit codes are places in a table of 16 values (codebook.h).
 *
 *     IQ4_NL   d:2  q:16                                  32 elements, x = d v[q]
 *     IQ4_XS   d:2  high:2  low:4  q:128                  8 sub-blocks of 32, x = d (s - 32) v[q]
 *     MXFP4    e:1  q:16                                  32 elements, x = 2^(e - 128) v[q]
 *     NVFP4    e:4  q:32                                  4 sub-blocks of 16, x = (e / 2) v[q], e a small float
 *
 * Byte j of the 16 bytes of 32 elements holds element j in its low and element j+16 in its high nibble; in NVFP4, byte
 * j of the 8 bytes of 16 elements holds elements j and j+8. In IQ4_XS the 6-bit scale s of sub-block b has its low four
 * bits in nibble b%2 of low[b/2], and its upper two in bits 2b, 2b+1 of `high`.
 *
 * d (s - 32) is exact in a float (11 + 6 bits); its product with a value is rounded once (25 bits). MXFP4 is the format
 * of the Open Compute Project's Microscaling specification; its products are exact unless they are subnormal. Published
 * files of NVFP4 have a further scale for each tensor, which is a tensor of its own (model/arch.c).
 *
 * The searches of the IQ4 types are those of the other types (quant_search.c), with the nearest of the values in
 * place of the nearest integer. MXFP4 has few exponents to try: the exponent of the standard, with which the largest
 * number lies between 4 and 8 times the smallest normal step, the two below it, with which the largest number is
 * clipped, and the one above it. NVFP4 has few scales, too: the search tries each of those around the scale of plain
 * rounding, from half of it to one and a half times as much. Proof: tests/gguf/test_blocks.c,
 * tests/gguf/test_quant.c. */
#include "gguf/blocks_internal.h"
#include "gguf/codebook.h"

enum { N = 32, HALF_N = N / 2, SUPER = 256, SUBS = SUPER / N };
enum { AT_HIGH = 2, AT_LOW = 4, AT_Q = 8 };                                       /* in a block of IQ4_XS */
enum { NV_SUB = 16, NV_HALF = NV_SUB / 2, NV_SUBS = 4, NV_N = NV_SUBS * NV_SUB }; /* NVFP4 */

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
        const uint8_t *q = src + NV_SUBS + b * NV_HALF;
        float scale = nvfp4_scale(src[b]);
        for (int j = 0; j < NV_HALF; j++) {
            dst[j] = scale * (float)mxfp4_values[q[j] & 15];
            dst[j + NV_HALF] = scale * (float)mxfp4_values[q[j] >> 4];
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

/* Returns the code whose value is nearest to x; NaN gets that of zero or nearly zero. */
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
    encode_32(src, store_half(dst, extreme_of(src, N) / -127), iq4_values, dst + 2);
}

/* Writes the scale s, from -32 to 31, of sub-block b into a block of IQ4_XS whose scales begin as zeros. */
static void add_xs_scale(uint8_t *dst, int b, int s) {
    add_bits(&dst[AT_LOW + b / 2], ((s + 32) & 15) << b % 2 * 4);
    add_bits(&dst[AT_HIGH + b / 4], (s + 32) >> 4 << b % 4 * 2);
}

void iq4_xs_encode(const float *src, uint8_t *dst) {
    float scale[SUBS], most = 0;
    for (int b = 0; b < SUBS; b++) {
        scale[b] = extreme_of(src + b * N, N) / -127;
        if (fabsf(scale[b]) > fabsf(most)) most = scale[b];
    }
    memset(dst, 0, AT_Q);
    float d = store_half(dst, most / -32), id = inverse(d);
    for (int b = 0; b < SUBS; b++) {
        int s = nearest(scale[b] * id, -32, 31);
        add_xs_scale(dst, b, s);
        encode_32(src + b * N, d * (float)s, iq4_values, dst + AT_Q + b * HALF_N);
    }
}

static uint8_t exponent_in_range(int e) {
    return (uint8_t)(e < 0 ? 0 : e > MXFP4_EXPONENT_MAX ? MXFP4_EXPONENT_MAX : e);
}

/* Returns the exponent by the standard's rule: the extreme element gets the largest exponent of a code, which is 2. */
static int standard_exponent(const float *src) {
    float most = fabsf(extreme_of(src, N));
    return most > 0 && isfinite(most) ? ilogbf(most) - 2 + 127 : most > 0 ? MXFP4_EXPONENT_MAX : 0;
}

void mxfp4_encode(const float *src, uint8_t *dst) {
    dst[0] = exponent_in_range(standard_exponent(src));
    encode_32(src, mxfp4_scale(dst[0]), mxfp4_values, dst + 1);
}

/* Returns the nearest scale, found by its bits; the largest one for anything larger. */
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
        uint8_t *q = dst + NV_SUBS + b * NV_HALF;
        dst[b] = nvfp4_nearest_scale(fabsf(extreme_of(src, NV_SUB)) / 12);
        float inv = inverse(nvfp4_scale(dst[b]));
        for (int j = 0; j < NV_HALF; j++)
            q[j] = (uint8_t)(nearest_value(mxfp4_values, src[j] * inv) |
                             nearest_value(mxfp4_values, src[j + NV_HALF] * inv) << 4);
    }
}

/* ---- search ---------------------------------------------------------------------------------- */

static const float iq4_floats[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* Zero twice, so that there are 16; both are written as code 0. */
static const float mxfp4_floats[16] = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};

static int code_of(const int8_t values[16], float value) {
    int code = 0;
    while (code < 15 && (float)values[code] != value) code++;
    return code;
}

/* 2 n values to the codes of n bytes: value j in the low, value j + n in the high nibble. */
static void pack(const int8_t values[16], const float *q, int n, uint8_t *dst) {
    for (int j = 0; j < n; j++) dst[j] = (uint8_t)(code_of(values, q[j]) | code_of(values, q[j + n]) << 4);
}

void iq4_nl_search(const float *x, const float *w, uint8_t *dst) {
    float q[N];
    Fit fit = fit_codebook(x, w, N, iq4_floats);
    fit.scale = store_half(dst, fit.scale);
    fit_values(fit, x, N, iq4_floats, q);
    pack(iq4_values, q, HALF_N, dst + 2);
}

void iq4_xs_search(const float *x, const float *w, uint8_t *dst) {
    ScaleSuper k = {.x = x, .w = w, .sub = N, .s_least = -32, .s_most = 31, .values = iq4_floats};
    scale_super_search(&k);
    memset(dst, 0, AT_Q);
    (void)store_half(dst, k.d);
    for (int b = 0; b < SUBS; b++) {
        add_xs_scale(dst, b, k.s[b]);
        pack(iq4_values, k.q + b * N, HALF_N, dst + AT_Q + b * HALF_N);
    }
}

/* Rounds n numbers with the scale; writes their codes and returns true if the error is below *best, which it
 * becomes. */
static bool try_scale(float scale, const float *x, const float *w, int n, double *best, uint8_t *codes) {
    float q[N];
    Fit fit = {scale, 0};
    fit_values(fit, x, n, mxfp4_floats, q);
    double error = fit_error(fit, x, w, n, q);
    if (!(error < *best)) return false;
    *best = error;
    pack(mxfp4_values, q, n / 2, codes);
    return true;
}

void mxfp4_search(const float *x, const float *w, uint8_t *dst) {
    int standard = standard_exponent(x);
    double best = INFINITY;
    for (int e = standard - 2; e <= standard + 1; e++) {
        uint8_t exponent = exponent_in_range(e);
        if (try_scale(mxfp4_scale(exponent), x, w, N, &best, dst + 1)) dst[0] = exponent;
    }
}

void nvfp4_search(const float *x, const float *w, uint8_t *dst) {
    enum { BELOW = 8, ABOVE = 4 }; /* scales to try in addition to that of plain rounding */
    uint8_t rounded[NV_SUBS + NV_N / 2];
    nvfp4_encode(x, rounded);
    for (int b = 0; b < NV_SUBS; b++) {
        double best = INFINITY;
        for (int s = rounded[b] - BELOW; s <= rounded[b] + ABOVE; s++) {
            uint8_t code = (uint8_t)(s < 0 ? 0 : s > NVFP4_SCALE_MAX ? NVFP4_SCALE_MAX : s);
            uint8_t *codes = dst + NV_SUBS + b * NV_HALF;
            if (try_scale(nvfp4_scale(code), x + b * NV_SUB, w + b * NV_SUB, NV_SUB, &best, codes)) dst[b] = code;
        }
    }
}

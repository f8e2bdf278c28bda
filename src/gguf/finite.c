/* finite.c - whether numbers are finite, by the bits of their exponents.
 *
 * All exponent bits of a number are ones exactly if it is NaN or infinite. Every weight is checked when a model is
 * loaded and every row of logits that decides a token, so this must cost little: numbers are taken in blocks of 64
 * without a branch, which compilers turn into vector code. Of a block of a quantised type only the halves can be other
 * than finite, or the exponent of MXFP4, or a scale of NVFP4. Proof: tests/gguf/test_finite.c. */
#include "gguf/finite.h"

#include "gguf/codebook.h"

#include <string.h>

enum { BLOCK = 64 };

static bool words_are_finite(const char *src, int64_t n) {
    for (uint32_t words[BLOCK] = {0}, bad; n > 0; n -= BLOCK, src += sizeof words) {
        memcpy(words, src, n < BLOCK ? (size_t)n * sizeof *words : sizeof words);
        bad = 0;
        for (int i = 0; i < BLOCK; i++) bad |= (words[i] & 0x7f800000) == 0x7f800000;
        if (bad) return false;
    }
    return true;
}

/* exponent: the mask of its bits, for F16 or BF16. */
static bool halves_are_finite(const char *src, int64_t n, uint16_t exponent) {
    for (uint16_t halves[BLOCK] = {0}, bad; n > 0; n -= BLOCK, src += sizeof halves) {
        memcpy(halves, src, n < BLOCK ? (size_t)n * sizeof *halves : sizeof halves);
        bad = 0;
        for (int i = 0; i < BLOCK; i++) bad |= (halves[i] & exponent) == exponent;
        if (bad) return false;
    }
    return true;
}

static bool half_is_finite(const char *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return (h & 0x7c00) != 0x7c00;
}

/* The four nibbles of its half are spread over four words (lattice.c): three bits of the exponent are in the last byte. */
static bool iq1_m_is_finite(const char *block) { return (block[55] & 0x70) != 0x70 || (block[53] & 0xc0) != 0xc0; }

/* Where the halves of a block are, in bytes; the second may be the first again. */
static const struct {
    uint8_t first, second;
} scales_at[TYPE_COUNT] = {
    [TYPE_Q4_1] = {0, 2},     [TYPE_Q5_1] = {0, 2},   [TYPE_Q4_K] = {0, 2},     [TYPE_Q5_K] = {0, 2},
    [TYPE_Q6_K] = {208, 208}, [TYPE_Q2_K] = {80, 82}, [TYPE_Q3_K] = {108, 108},
};

bool finite_floats(const float *x, int64_t n) { return words_are_finite((const char *)x, n); }

bool finite_weights(TensorType type, const void *src, int64_t n) {
    const char *p = src;
    if (type == TYPE_F32) return words_are_finite(p, n);
    if (type == TYPE_F16) return halves_are_finite(p, n, 0x7c00);
    if (type == TYPE_BF16) return halves_are_finite(p, n, 0x7f80);
    const TensorTypeInfo *info = tensor_type_info(type);
    if (type == TYPE_MXFP4) {
        for (int64_t i = 0; i < n; i += info->block_n, p += info->block_bytes)
            if ((uint8_t)*p > MXFP4_EXPONENT_MAX) return false;
        return true;
    }
    if (type == TYPE_NVFP4) {
        for (int64_t i = 0; i < n; i += info->block_n, p += info->block_bytes)
            for (int s = 0; s < 4; s++)
                if ((p[s] & NVFP4_SCALE_BITS) == NVFP4_SCALE_BITS) return false;
        return true;
    }
    if (type == TYPE_IQ1_M) {
        for (int64_t i = 0; i < n; i += info->block_n, p += info->block_bytes)
            if (!iq1_m_is_finite(p)) return false;
        return true;
    }
    for (int64_t i = 0; i < n; i += info->block_n, p += info->block_bytes)
        if (!half_is_finite(p + scales_at[type].first) || !half_is_finite(p + scales_at[type].second)) return false;
    return true;
}

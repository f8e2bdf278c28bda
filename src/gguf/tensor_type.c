/* tensor_type.c - the table of element types and look-ups in it, blocks to floats and back, and whether numbers are
 * finite.
 *
 * Every weight is checked for NaN and infinities when a model is loaded, and so is every row of logits that decides a
 * token; so this must cost little. All exponent bits of a number are ones exactly if it is NaN or infinite. Numbers are
 * taken in pieces of 64 without a branch, which compilers turn into vector code. Only the scale of a quantised block
 * can be other than finite: its halves, or the exponent of MXFP4, or the small floats of NVFP4. Proof:
 * tests/gguf/test_finite.c. */
#include "gguf/blocks_internal.h"
#include "gguf/codebook.h"

#include "base/error.h"
#include "base/mem.h"

#include <string.h>
#include <strings.h>

/* ---- which blocks are finite: the functions of the column `finite` ------------------------------------------- */

enum { PIECE = 64 };

static bool words_are_finite(const char *src, int64_t n) {
    for (uint32_t words[PIECE] = {0}, bad; n > 0; n -= PIECE, src += sizeof words) {
        memcpy(words, src, n < PIECE ? (size_t)n * sizeof *words : sizeof words);
        bad = 0;
        for (int i = 0; i < PIECE; i++) bad |= (words[i] & 0x7f800000) == 0x7f800000;
        if (bad) return false;
    }
    return true;
}

/* 16-bit floats whose exponent has the bits of the mask. */
static bool shorts_are_finite(const char *src, int64_t n, uint16_t exponent) {
    for (uint16_t shorts[PIECE] = {0}, bad; n > 0; n -= PIECE, src += sizeof shorts) {
        memcpy(shorts, src, n < PIECE ? (size_t)n * sizeof *shorts : sizeof shorts);
        bad = 0;
        for (int i = 0; i < PIECE; i++) bad |= (shorts[i] & exponent) == exponent;
        if (bad) return false;
    }
    return true;
}

static bool finite_in_floats(const TensorTypeInfo *info, const char *src, int64_t n) {
    (void)info;
    return words_are_finite(src, n);
}

static bool finite_in_f16(const TensorTypeInfo *info, const char *src, int64_t n) {
    (void)info;
    return shorts_are_finite(src, n, 0x7c00);
}

static bool finite_in_bf16(const TensorTypeInfo *info, const char *src, int64_t n) {
    (void)info;
    return shorts_are_finite(src, n, 0x7f80);
}

static bool half_is_finite(const char *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return (h & 0x7c00) != 0x7c00;
}

static bool finite_in_halves(const TensorTypeInfo *info, const char *src, int64_t n) {
    for (int64_t i = 0; i < n; i += info->block_n, src += info->block_bytes)
        if (!half_is_finite(src + info->half_at[0]) || !half_is_finite(src + info->half_at[1])) return false;
    return true;
}

static bool finite_in_exponents(const TensorTypeInfo *info, const char *src, int64_t n) {
    for (int64_t i = 0; i < n; i += info->block_n, src += info->block_bytes)
        if ((uint8_t)*src > MXFP4_EXPONENT_MAX) return false;
    return true;
}

static bool finite_in_small_floats(const TensorTypeInfo *info, const char *src, int64_t n) {
    for (int64_t i = 0; i < n; i += info->block_n, src += info->block_bytes)
        for (int s = 0; s < 4; s++)
            if ((src[s] & NVFP4_SCALE_BITS) == NVFP4_SCALE_BITS) return false;
    return true;
}

/* The half of an IQ1_M block is spread over four words, a nibble in each (blocks_lattice.c); three bits of its exponent
 * are in the last byte of the block, and two are in the byte that ends the word before. */
static bool finite_in_spread_half(const TensorTypeInfo *info, const char *src, int64_t n) {
    for (int64_t i = 0; i < n; i += info->block_n, src += info->block_bytes)
        if ((src[55] & 0x70) == 0x70 && (src[53] & 0xc0) == 0xc0) return false;
    return true;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

#define ROW(NAME, lower, id, n, bytes, search_fn, finite, at, at2) \
    [TYPE_##NAME] = {.name = #NAME, \
                     .gguf_id = id, \
                     .block_n = n, \
                     .block_bytes = bytes, \
                     .half_at = {at, at2}, \
                     .decode = lower##_decode, \
                     .encode = lower##_encode, \
                     .search = search_fn, \
                     .is_finite = finite_in_##finite},
static const TensorTypeInfo infos[TYPE_COUNT] = {EACH_TYPE(ROW)};
#undef ROW

const TensorTypeInfo *tensor_type_info(TensorType type) {
    fr_assert((unsigned)type < TYPE_COUNT);
    return &infos[type];
}

bool tensor_type_from_gguf(uint32_t gguf_id, TensorType *out) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (infos[i].gguf_id == gguf_id) {
            *out = (TensorType)i;
            return true;
        }
    return false;
}

bool tensor_type_from_name(const char *name, TensorType *out) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (strcasecmp(infos[i].name, name) == 0) {
            *out = (TensorType)i;
            return true;
        }
    return false;
}

bool tensor_type_row_bytes(TensorType type, int64_t n, size_t *out) {
    const TensorTypeInfo *info = tensor_type_info(type);
    if (n < 0 || n % info->block_n != 0) return false;
    return size_mul((size_t)(n / info->block_n), info->block_bytes, out);
}

/* ---- rows of blocks ------------------------------------------------------------------------------------------ */

void blocks_dequantize(TensorType type, const void *src, int64_t n, float *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    fr_assert(n >= 0 && n % info->block_n == 0);
    const uint8_t *bytes = src;
    for (int64_t i = 0; i < n; i += info->block_n, bytes += info->block_bytes) info->decode(bytes, dst + i);
}

void blocks_quantize(TensorType type, const float *src, int64_t n, void *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    fr_assert(n >= 0 && n % info->block_n == 0);
    uint8_t *bytes = dst;
    for (int64_t i = 0; i < n; i += info->block_n, bytes += info->block_bytes) info->encode(src + i, bytes);
}

bool finite_floats(const float *x, int64_t n) { return words_are_finite((const char *)x, n); }

bool finite_weights(TensorType type, const void *src, int64_t n) {
    const TensorTypeInfo *info = tensor_type_info(type);
    return info->is_finite(info, src, n);
}

/* ---- names of numeric choices -------------------------------------------------------------------------------- */

static const char *const kv_names[KV_TYPE_COUNT] = {[KV_F16] = "f16", [KV_F32] = "f32", [KV_Q8] = "q8"};
static const char *const act_names[ACT_PRECISION_COUNT] = {[ACT_PRECISION_Q16] = "q16", [ACT_PRECISION_Q8] = "q8"};

const char *kv_type_name(KvType t) { return kv_names[t]; }

const char *act_precision_name(ActPrecision p) { return act_names[p]; }

bool act_precision_from_name(const char *name, ActPrecision *out) {
    int i = ACT_PRECISION_Q16;
    if (name)
        for (i = 0; i < ACT_PRECISION_COUNT && strcmp(name, act_names[i]) != 0;) i++;
    if (i == ACT_PRECISION_COUNT) return false;
    *out = (ActPrecision)i;
    return true;
}

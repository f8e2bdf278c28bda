/* layout.h - the layout of packed weights and quantised activations in memory; pack.c draws it.
 *
 * Private to src/compute/cpu/kernels: the rest of the program sees PackedMatrix and act_row_bytes. */
#ifndef KERNELS_LAYOUT_H
#define KERNELS_LAYOUT_H

#include "compute/cpu/kernels/kernels.h"

/* 32 activations in the form for block types. A row of ACT_Q16 or ACT_Q8 is n/32 of these.
 *
 * With amax = max|x| of the 32:  q = x * (levels/amax) to the nearest integer (ties to even), x ~ scale * q.
 *
 *   ACT_Q16  levels = 32512. Two planes of signed bytes, q = 256 * plane[0] + plane[1], for the byte products of
 *            the machine. Both lie within -127..127, so that the sign of either can be turned: a low byte of
 *            -128 becomes -127, and q one more.                                                      80 bytes
 *   ACT_Q8   levels = 127, one plane, q = plane[0].                                                 48 bytes */
typedef struct ActBlock {
    float scale;           /* amax/levels */
    float scaled_sum;      /* scale * (float)(sum of q): what a minimum per block is multiplied with */
    int32_t minus_sum;     /* of q: what the bias of codes is multiplied with */
    int32_t minus_sum_low; /* of q[0..15] */
    int8_t plane[][ACT_BLOCK];
} ActBlock;

static inline int act_planes(ActForm form) { return form == ACT_Q16 ? 2 : 1; }
static inline size_t act_block_bytes(ActForm form) { return sizeof(ActBlock) + (size_t)act_planes(form) * ACT_BLOCK; }
static inline bool act_is_blocks(ActForm form) { return form == ACT_Q16 || form == ACT_Q8; }

/* How one slice along k is coded: 32 inputs for the block types, which is an ActBlock. */
typedef struct SliceForm {
    uint32_t n;             /* inputs per slice */
    uint32_t code_bytes;    /* of one slice of a tile (16 rows) */
    uint32_t bias;          /* weight = (code - bias) * scale; a codebook's values have it added */
    uint32_t high_bits;     /* bits of a code beyond the low_bits in the first planes; 0 for Q8_0 too */
    uint32_t scale_slices;  /* slices that share one item of scales */
    uint32_t scale_bytes;   /* of one item of scales of a tile, 0: none */
    uint32_t record_slices; /* slices in a record: their codes, then their scales, up to whole cache lines */
} SliceForm;

static const SliceForm slice_forms[TYPE_COUNT] = {
    [TYPE_F32] = {1, 64, 0, 0, 1, 0, 1},          [TYPE_F16] = {1, 32, 0, 0, 1, 0, 2},
    [TYPE_BF16] = {2, 64, 0, 0, 1, 0, 1},         [TYPE_Q8_0] = {32, 512, 128, 0, 1, 32, 2},
    [TYPE_Q4_0] = {32, 256, 8, 0, 1, 32, 2},      [TYPE_Q4_1] = {32, 256, 0, 0, 1, 64, 1},
    [TYPE_Q5_0] = {32, 320, 16, 1, 1, 32, 2},     [TYPE_Q5_1] = {32, 320, 0, 1, 1, 64, 1},
    [TYPE_Q4_K] = {32, 256, 0, 0, 8, 320, 8},     [TYPE_Q5_K] = {32, 320, 0, 1, 8, 320, 8},
    [TYPE_Q6_K] = {32, 384, 32, 2, 8, 288, 8},    [TYPE_Q2_K] = {32, 128, 0, 0, 8, 320, 8},
    [TYPE_Q3_K] = {32, 192, 4, 1, 8, 288, 8},     [TYPE_IQ4_NL] = {32, 256, 128, 0, 1, 32, 2},
    [TYPE_IQ4_XS] = {32, 256, 128, 0, 8, 160, 8}, [TYPE_MXFP4] = {32, 256, 16, 0, 1, 16, 4},
    [TYPE_IQ2_XXS] = {32, 192, 64, 1, 8, 160, 8}, [TYPE_IQ2_XS] = {32, 192, 64, 1, 8, 160, 8},
    [TYPE_IQ2_S] = {32, 192, 64, 1, 8, 160, 8},   [TYPE_IQ3_XXS] = {32, 256, 64, 0, 8, 160, 8},
    [TYPE_IQ3_S] = {32, 256, 16, 0, 8, 160, 8},   [TYPE_IQ1_S] = {32, 192, 16, 1, 8, 160, 8},
    [TYPE_IQ1_M] = {32, 192, 16, 1, 8, 160, 8},   [TYPE_NVFP4] = {32, 256, 16, 0, 2, 64, 2},
};

/* Bits of a code in the first planes, in which the codes of several groups share a byte. */
static inline int low_bits(TensorType type) {
    return type == TYPE_Q8_0 ? 8 : slice_forms[type].code_bytes < 256 ? 2 : 4;
}
/* The types of format/lattice.h, whose scales are (2 s + 1) d unit. */
static inline bool is_lattice(TensorType type) { return type >= TYPE_IQ2_XXS && type <= TYPE_IQ1_M; }
/* Sub-blocks in a slice, each with a scale of its own. */
static inline int scale_parts(TensorType type) {
    bool has_two = type == TYPE_Q6_K || type == TYPE_Q2_K || type == TYPE_Q3_K || type == TYPE_IQ2_XS ||
                   type == TYPE_IQ2_S || type == TYPE_IQ1_M || type == TYPE_NVFP4;
    return has_two ? 2 : 1;
}
/* Whether something is added to (code - bias) * scale. */
static inline bool has_min(TensorType type) {
    return type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q4_K || type == TYPE_Q5_K || type == TYPE_Q2_K;
}

/* The values that codes stand for (format/codebook.h, format/lattice.c), each with the bias added. */
static const uint8_t iq4_codes[16] = {128 - 127, 128 - 104, 128 - 83, 128 - 65, 128 - 49, 128 - 35,
                                      128 - 22,  128 - 10,  128 + 1,  128 + 13, 128 + 25, 128 + 38,
                                      128 + 53,  128 + 69,  128 + 89, 128 + 113};
static const uint8_t mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
static const uint8_t iq2_codes[16] = {64 + 8, 64 + 25, 64 + 43, 64, 64 - 8, 64 - 25, 64 - 43, 64};
static const uint8_t iq3_xxs_codes[16] = {64 + 4, 64 + 12, 64 + 20, 64 + 28, 64 + 36, 64 + 44, 64 + 52, 64 + 62,
                                          64 - 4, 64 - 12, 64 - 20, 64 - 28, 64 - 36, 64 - 44, 64 - 52, 64 - 62};
static const uint8_t iq3_s_codes[16] = {17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1};
static const uint8_t iq1_codes[16] = {16 - 7, 16 + 1, 16 + 9, 16, 16 - 9, 16 - 1, 16 + 7, 16};
/* NULL: the codes are the numbers themselves. */
static inline const uint8_t *codebook_codes(TensorType type) {
    switch (type) {
    case TYPE_IQ4_NL:
    case TYPE_IQ4_XS: return iq4_codes;
    case TYPE_MXFP4:
    case TYPE_NVFP4: return mxfp4_codes;
    case TYPE_IQ2_XXS:
    case TYPE_IQ2_XS:
    case TYPE_IQ2_S: return iq2_codes;
    case TYPE_IQ3_XXS: return iq3_xxs_codes;
    case TYPE_IQ3_S: return iq3_s_codes;
    case TYPE_IQ1_S:
    case TYPE_IQ1_M: return iq1_codes;
    default: return NULL;
    }
}
/* What the scales of the lattice types are multiplied with, a power of two. */
static inline float lattice_unit(TensorType type) {
    return type == TYPE_IQ3_S ? 1 : type == TYPE_IQ3_XXS ? 0.25f : 0.125f;
}
/* The largest code that is multiplied. */
static inline uint32_t code_max_of(TensorType type) {
    if (type == TYPE_Q8_0 || codebook_codes(type)) return 2 * slice_forms[type].bias - 1;
    return (1u << ((uint32_t)low_bits(type) + slice_forms[type].high_bits)) - 1;
}

static inline int64_t tile_n_slices(TensorType type, int64_t n_in) {
    return (n_in + slice_forms[type].n - 1) / slice_forms[type].n;
}

static inline size_t record_bytes(TensorType type) {
    const SliceForm *f = &slice_forms[type];
    return (f->record_slices * f->code_bytes + f->record_slices / f->scale_slices * f->scale_bytes + 63) & ~(size_t)63;
}

/* Offsets in a tile of the codes of slice i, and of the scales that it shares with other slices of its record. */
static inline size_t codes_offset(TensorType type, int64_t i) {
    const SliceForm *f = &slice_forms[type];
    return (size_t)(i / f->record_slices) * record_bytes(type) + (size_t)(i % f->record_slices) * f->code_bytes;
}
static inline size_t scales_offset(TensorType type, int64_t i) {
    const SliceForm *f = &slice_forms[type];
    return (size_t)(i / f->record_slices) * record_bytes(type) + f->record_slices * f->code_bytes +
           (size_t)(i % f->record_slices / f->scale_slices) * f->scale_bytes;
}

static inline size_t tile_size(TensorType type, int64_t n_in) {
    uint32_t n = slice_forms[type].record_slices;
    return (size_t)((tile_n_slices(type, n_in) + n - 1) / n) * record_bytes(type);
}

static inline unsigned char *packed_tile(const PackedMatrix *m, int64_t i_tile) {
    return (unsigned char *)m->data + (size_t)i_tile * m->tile_bytes;
}

#endif

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
 *            -128 becomes -127, and q one more. A table without exact byte products (ACTS_ARE_WORDS) has q as words
 *            in their place: four inputs k to k + 3 as q[k], q[k + 2], q[k + 1], q[k + 3].           80 bytes
 *   ACT_Q8   levels = 127, one plane, q = plane[0].                                                 48 bytes */
typedef struct ActBlock {
    float scale;           /* amax/levels */
    float scaled_sum;      /* scale * (float)(sum of q), the factor of the minimum of a block */
    int32_t minus_sum;     /* -(sum of q), the factor of the bias of the codes */
    int32_t minus_sum_low; /* -(sum of q[0..15]) */
    int8_t plane[][ACT_BLOCK];
} ActBlock;

static inline int act_planes(ActForm form) { return form == ACT_Q16 ? 2 : 1; }
static inline size_t act_block_bytes(ActForm form) { return sizeof(ActBlock) + (size_t)act_planes(form) * ACT_BLOCK; }
static inline bool act_is_blocks(ActForm form) { return form == ACT_Q16 || form == ACT_Q8; }

/* ---- how each type is coded ---------------------------------------------------------------------------------- */

/* What an item of scales holds. Every field is 16 rows wide; "each slice" and "each half" mean one field for each of
 * the slices that share the item, or for each 16 inputs of these. */
typedef enum ScaleForm {
    SCALES_NONE,        /* plain types */
    SCALES_HALF,        /* half d */
    SCALES_HALF_MIN,    /* half d, half m */
    SCALES_BYTE_MINS,   /* half d, half dmin; each slice: u8 scale, u8 min */
    SCALES_NIBBLE_MINS, /* half d, half dmin; each half: u8, the scale in its low nibble and the min in its high one */
    SCALES_SIGNED,      /* half d; each slice: i8 scale */
    SCALES_SIGNED_HALVES, /* half d; each half: i8 scale */
    SCALES_ODD,           /* half d; each slice: u8 s. The scale is (2 s + 1) d unit, as in all lattice types */
    SCALES_ODD_HALVES,    /* half d; each slice: u8, s of the first 16 inputs in the low nibble and of the others in the
                             high one */
    SCALES_EXPONENT,      /* each slice: u8 exponent */
    SCALES_SMALL_FLOATS,  /* each half: u8, a float of seven bits */
} ScaleForm;

/* How one slice along k is coded: 32 inputs for the block types, which is an ActBlock. */
typedef struct SliceForm {
    uint32_t n;              /* inputs per slice */
    uint32_t low_bits;       /* bits of a code in the first planes, in which the codes of several groups share a byte */
    uint32_t high_bits;      /* bits of a code in the planes after these */
    uint32_t code_bytes;     /* bytes of one slice of a tile (16 rows) */
    uint32_t bias;           /* weight = (code - bias) * scale; the values of a codebook include the bias */
    const uint8_t *codebook; /* the value of each code; NULL: the codes are the values themselves */
    ScaleForm scales;
    uint32_t scale_slices;  /* slices that share one item of scales */
    uint32_t record_slices; /* slices in a record: their codes, then their scales, up to whole cache lines */
    float unit;             /* a factor of the scales of lattice types, a power of two */
} SliceForm;

/* The value of each code (gguf/codebook.h, gguf/blocks_lattice.c), with the bias added. */
static const uint8_t iq4_codes[16] = {128 - 127, 128 - 104, 128 - 83, 128 - 65, 128 - 49, 128 - 35,
                                      128 - 22,  128 - 10,  128 + 1,  128 + 13, 128 + 25, 128 + 38,
                                      128 + 53,  128 + 69,  128 + 89, 128 + 113};
static const uint8_t mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
static const uint8_t iq2_codes[16] = {64 + 8, 64 + 25, 64 + 43, 64, 64 - 8, 64 - 25, 64 - 43, 64};
static const uint8_t iq3_xxs_codes[16] = {64 + 4, 64 + 12, 64 + 20, 64 + 28, 64 + 36, 64 + 44, 64 + 52, 64 + 62,
                                          64 - 4, 64 - 12, 64 - 20, 64 - 28, 64 - 36, 64 - 44, 64 - 52, 64 - 62};
static const uint8_t iq3_s_codes[16] = {17, 19, 21, 23, 25, 27, 29, 31, 15, 13, 11, 9, 7, 5, 3, 1};
static const uint8_t iq1_codes[16] = {16 - 7, 16 + 1, 16 + 9, 16, 16 - 9, 16 - 1, 16 + 7, 16};

/* One row for each type of gguf/tensor_type.h; the assertion below finds a type without a row. */
/* clang-format off */
#define EACH_SLICE_FORM(X) \
    /*NAME      n  bits of a code  bias  codebook       scales                 slices of an item, unit       */ \
    /*             low  high                                                   and of a record               */ \
    X(F32,      1,  32,  0,         0,   NULL,          SCALES_NONE,           1,  1,             0)  \
    X(F16,      1,  16,  0,         0,   NULL,          SCALES_NONE,           1,  2,             0)  \
    X(BF16,     2,  16,  0,         0,   NULL,          SCALES_NONE,           1,  1,             0)  \
    X(Q8_0,    32,   8,  0,       128,   NULL,          SCALES_HALF,           1,  2,             0)  \
    X(Q4_0,    32,   4,  0,         8,   NULL,          SCALES_HALF,           1,  2,             0)  \
    X(Q4_1,    32,   4,  0,         0,   NULL,          SCALES_HALF_MIN,       1,  1,             0)  \
    X(Q5_0,    32,   4,  1,        16,   NULL,          SCALES_HALF,           1,  2,             0)  \
    X(Q5_1,    32,   4,  1,         0,   NULL,          SCALES_HALF_MIN,       1,  1,             0)  \
    X(Q4_K,    32,   4,  0,         0,   NULL,          SCALES_BYTE_MINS,      8,  8,             0)  \
    X(Q5_K,    32,   4,  1,         0,   NULL,          SCALES_BYTE_MINS,      8,  8,             0)  \
    X(Q6_K,    32,   4,  2,        32,   NULL,          SCALES_SIGNED_HALVES,  8,  8,             0)  \
    X(Q2_K,    32,   2,  0,         0,   NULL,          SCALES_NIBBLE_MINS,    8,  8,             0)  \
    X(Q3_K,    32,   2,  1,         4,   NULL,          SCALES_SIGNED_HALVES,  8,  8,             0)  \
    X(IQ4_NL,  32,   4,  0,       128,   iq4_codes,     SCALES_HALF,           1,  2,             0)  \
    X(IQ4_XS,  32,   4,  0,       128,   iq4_codes,     SCALES_SIGNED,         8,  8,             0)  \
    X(MXFP4,   32,   4,  0,        16,   mxfp4_codes,   SCALES_EXPONENT,       1,  4,             0)  \
    X(IQ2_XXS, 32,   2,  1,        64,   iq2_codes,     SCALES_ODD,            8,  8,        0.125f)  \
    X(IQ2_XS,  32,   2,  1,        64,   iq2_codes,     SCALES_ODD_HALVES,     8,  8,        0.125f)  \
    X(IQ2_S,   32,   2,  1,        64,   iq2_codes,     SCALES_ODD_HALVES,     8,  8,        0.125f)  \
    X(IQ3_XXS, 32,   4,  0,        64,   iq3_xxs_codes, SCALES_ODD,            8,  8,         0.25f)  \
    X(IQ3_S,   32,   4,  0,        16,   iq3_s_codes,   SCALES_ODD,            8,  8,             1)  \
    X(IQ1_S,   32,   2,  1,        16,   iq1_codes,     SCALES_ODD,            8,  8,        0.125f)  \
    X(IQ1_M,   32,   2,  1,        16,   iq1_codes,     SCALES_ODD_HALVES,     8,  8,        0.125f)  \
    X(NVFP4,   32,   4,  0,        16,   mxfp4_codes,   SCALES_SMALL_FLOATS,   2,  2,             0)
/* clang-format on */

#define SLICE_FORM(NAME, n, low, high, bias, codebook, scales, item, record, unit) \
    [TYPE_##NAME] = {n, low, high, 2 * (n) * ((low) + (high)), bias, codebook, scales, item, record, unit},
static const SliceForm slice_forms[TYPE_COUNT] = {EACH_SLICE_FORM(SLICE_FORM)};
#undef SLICE_FORM
#define COUNT_ONE(...) +1
_Static_assert(0 EACH_SLICE_FORM(COUNT_ONE) == TYPE_COUNT, "a type has no row in EACH_SLICE_FORM");

static inline int low_bits(TensorType type) { return (int)slice_forms[type].low_bits; }
static inline const uint8_t *codebook_codes(TensorType type) { return slice_forms[type].codebook; }
static inline bool is_lattice(TensorType type) {
    ScaleForm s = slice_forms[type].scales;
    return s == SCALES_ODD || s == SCALES_ODD_HALVES;
}
/* Returns the number of parts of a slice that have a scale of their own. */
static inline int scale_parts(TensorType type) {
    ScaleForm s = slice_forms[type].scales;
    bool has_two = s == SCALES_NIBBLE_MINS || s == SCALES_SIGNED_HALVES || s == SCALES_ODD_HALVES ||
                   s == SCALES_SMALL_FLOATS;
    return has_two ? 2 : 1;
}
/* Returns whether a minimum is added to (code - bias) * scale. */
static inline bool has_min(TensorType type) {
    ScaleForm s = slice_forms[type].scales;
    return s == SCALES_HALF_MIN || s == SCALES_BYTE_MINS || s == SCALES_NIBBLE_MINS;
}
/* Returns the number of half-precision numbers at the beginning of an item of scales. */
static inline uint32_t scale_halves(TensorType type) {
    ScaleForm s = slice_forms[type].scales;
    return s == SCALES_NONE || s == SCALES_EXPONENT || s == SCALES_SMALL_FLOATS ? 0 : has_min(type) ? 2 : 1;
}
/* Returns the bytes of one item of scales of a tile. */
static inline uint32_t scale_bytes(TensorType type) {
    static const uint32_t bytes_of_slice[] = {
        [SCALES_NONE] = 0,        [SCALES_HALF] = 0,     [SCALES_HALF_MIN] = 0,      [SCALES_BYTE_MINS] = 2,
        [SCALES_NIBBLE_MINS] = 2, [SCALES_SIGNED] = 1,   [SCALES_SIGNED_HALVES] = 2, [SCALES_ODD] = 1,
        [SCALES_ODD_HALVES] = 1,  [SCALES_EXPONENT] = 1, [SCALES_SMALL_FLOATS] = 2,
    };
    const SliceForm *f = &slice_forms[type];
    return TILE_ROWS * (2 * scale_halves(type) + f->scale_slices * bytes_of_slice[f->scales]);
}
/* Returns the largest code that is multiplied. */
static inline uint32_t code_max_of(TensorType type) {
    const SliceForm *f = &slice_forms[type];
    if (f->low_bits == 8 || f->codebook) return 2 * f->bias - 1;
    return (1u << (f->low_bits + f->high_bits)) - 1;
}

/* ---- where it is in a tile ----------------------------------------------------------------------------------- */

static inline int64_t tile_n_slices(TensorType type, int64_t n_in) {
    return (n_in + slice_forms[type].n - 1) / slice_forms[type].n;
}

static inline size_t record_bytes(TensorType type) {
    const SliceForm *f = &slice_forms[type];
    return (f->record_slices * f->code_bytes + f->record_slices / f->scale_slices * scale_bytes(type) + 63) &
           ~(size_t)63;
}

/* These return the offsets in a tile of the codes of slice i, and of the item of scales that it uses. */
static inline size_t codes_offset(TensorType type, int64_t i) {
    const SliceForm *f = &slice_forms[type];
    return (size_t)(i / f->record_slices) * record_bytes(type) + (size_t)(i % f->record_slices) * f->code_bytes;
}
static inline size_t scales_offset(TensorType type, int64_t i) {
    const SliceForm *f = &slice_forms[type];
    return (size_t)(i / f->record_slices) * record_bytes(type) + f->record_slices * f->code_bytes +
           (size_t)(i % f->record_slices / f->scale_slices) * scale_bytes(type);
}

static inline size_t tile_size(TensorType type, int64_t n_in) {
    uint32_t n = slice_forms[type].record_slices;
    return (size_t)((tile_n_slices(type, n_in) + n - 1) / n) * record_bytes(type);
}

static inline unsigned char *packed_tile(const PackedMatrix *m, int64_t i_tile) {
    return (unsigned char *)m->data + (size_t)i_tile * m->tile_bytes;
}

/* ---- what pack.c and pack_lattice.c share -------------------------------------------------------------------- */

/* Each converts a block of a lattice type between the form of a file and row `row` of a record. */
void lattice_to_tile(TensorType type, const unsigned char *block, int row, unsigned char *record);
void lattice_from_tile(TensorType type, const unsigned char *record, int row, unsigned char *block);
/* Each copies the codes of one row, a byte each, into a slice of a tile or out of it. */
void slice_write_codes(TensorType type, const unsigned char codes[ACT_BLOCK], int row, unsigned char *slice);
void slice_read_codes(TensorType type, const unsigned char *slice, int row, unsigned char codes[ACT_BLOCK]);

#endif

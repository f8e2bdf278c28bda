/* pack.c - weights repacked so that one vector load brings the same inputs of 16 outputs, and read back.
 *
 * The problem. A file stores a matrix row by row. A kernel that follows a row sums many products into the
 * lanes of one vector and must fold the lanes at the end; how it folds depends on the width of the vector,
 * and so do the last bits of the result. And a 4-bit code is unpacked again for each activation row.
 *
 * The idea. Let a vector lane be an output. 16 output rows form a tile, and within the tile the inputs of
 * the 16 rows are interleaved along k. Each lane then adds up its own output in ascending k: there is no
 * folding, and vectors of 16, 8 or 1 lanes give the same bits. The activation is the same for all lanes, so it is
 * broadcast. Codes are unpacked once per slice and used for all activation rows of the call.
 *
 * A tile is a sequence of records. A record is the codes of a few slices and, for the block types, their scales
 * after them, filled up to whole cache lines:
 *
 *     [codes of slice 0][slice 1]...[scales][padding]   [codes of the next slice]...
 *
 * So all bytes are read in ascending order, which is the fastest way to read memory. (With the scales of a whole tile
 * after its codes there were two streams, which ended with each tile: research/DIARY.md.)
 *
 * F32, F16. A slice is one input: the 16 rows' weights of input k.     r0 r1 r2 ... r15
 * BF16. A slice is two inputs, in pairs for vdpbf16ps:                  r0k0 r0k1 r1k0 r1k1 ... r15k1
 *   The last input is paired with zero when n_in is odd. Subnormal weights become zero: the instruction
 *   treats them as zero, and the other tables must agree with it.
 * Block types. A slice is 32 inputs, cut into 8 groups of 4 neighbours: the 4 bytes that vpdpbusd multiplies
 *   and adds in one lane. Every weight becomes an unsigned code; weight = (code - bias) * scale.
 *
 *     byte of group g:      | row 0: k=4g 4g+1 4g+2 4g+3 | row 1: ... | ... | row 15 |     = 64 bytes
 *
 *   Q8_0: 8 such groups, whole bytes (bias 128).                                           512 bytes per slice
 *   4-bit types: 4 groups; the low nibbles are group g, the high nibbles group g+4,        256 bytes
 *     that is inputs k and k+16, as in the files of Q4_0.
 *   5-bit types: the same and one more 64-byte group; bit g of byte (row, j) is the fifth
 *     bit of input 4g+j. Shifted and masked, it joins its nibble in the same byte.        320 bytes
 *   Q6_K: the same with two more groups; bits 2g, 2g+1 of the first belong to groups 0-3,
 *     of the second to groups 4-7.                                                         384 bytes
 *   Q2_K: two groups of 64 bytes; bits 2g, 2g+1 of the first are group g, of the second group 4+g: 128 bytes
 *   Q3_K: the same and one more group for the third bits, as the fifth bits of a 5-bit type.       192 bytes
 *   IQ4_NL, IQ4_XS, MXFP4: as the 4-bit types. A code is looked up in a table of 16 bytes in a register when a slice
 *     is unpacked, which costs one shuffle for 4 codes of each row: as bytes, they would take twice the memory. The
 *     table has the bias in it: 128 for the IQ4 types, 16 for MXFP4, whose codes then have five bits.
 *   NVFP4: the same. IQ1, IQ2 and IQ3 types: as Q3_K (IQ1, IQ2) or IQ4_XS (IQ3), and looked up; see pack_lattice.c.
 *
 * The scales of a record, each item 16 rows wide; the slices of a record are 2, 1 and 8:
 *   Q8_0 Q4_0 Q5_0   half d[16]                                                            each slice
 *   Q4_1 Q5_1        half d[16], half m[16]                                                each slice
 *   Q4_K Q5_K        half d[16], half dmin[16], then 8 x { u8 scale[16], u8 min[16] }      every 8 slices
 *   Q6_K Q3_K        half d[16], then 8 x { i8 scale of inputs 0-15 [16], of 16-31 [16] }  every 8 slices
 *   Q2_K             half d[16], half dmin[16], then 8 x { u8 of inputs 0-15 [16], of 16-31 [16] }, each with the
 *                    scale in its low nibble and the minimum in its high one               every 8 slices
 *   IQ4_NL           half d[16]                                                            each slice
 *   IQ4_XS           half d[16], then 8 x { i8 scale [16] }                                every 8 slices
 *   MXFP4            u8 exponent[16]                                                       each slice, 4 in a record
 *   NVFP4            u8 scale of inputs 0-15 [16], of 16-31 [16], twice                    every 2 slices
 *   IQ1 IQ2 IQ3      half d[16], then 8 x { u8 scales [16] }                               every 8 slices
 *
 * Example. Q4_0, row 3 of a tile, its first 32 inputs coded 0,1,2,...,15,0,1,2,...,15: input 5 is in group 1,
 * j = 1, so it is the low nibble of byte 64*1 + 4*3 + 1 = 77; input 21 is its high nibble: byte 77 = 0x55.
 *
 * Cost: a weight takes as many bytes as in the file, with few exceptions. 256 weights of Q4_K take 148 bytes in place
 * of 144, and those of Q5_K 180 in place of 176, because their 6-bit scales are unpacked to bytes; Q6_K takes 212 in
 * place of 210 because of padding; Q3_K (116 for 110) and IQ4_XS (140 for 136) have both. The last record of a type
 * that has two or four slices in one may lack some of them. Rows missing in the last tile are zero bytes, so their
 * scale is 0.
 *
 * Quantised activations are an array of ActBlock (layout.h), one for each slice.
 *
 * Rows are read back where the output matrix of a model is also its embedding. They are kept once, packed, and the row
 * of a token is read out of its tile: some hundred words, each in a cache line of its own. That is slow compared with
 * reading a row of the file, but a negligible part of a forward. The result is the bytes of the file, so that the
 * numbers are the same; the only exception is BF16, whose subnormal weights are packed as zeros. Proof:
 * tests/compute/test_pack.c unpacks every type and compares with blocks_dequantize, and reads back every row.
 */
#include "compute/cpu/kernels/layout.h"

#include "base/mem.h"

#include <string.h>

/* The functions between a block and a tile are inlined into a pair of functions for each type (DEFINE_PACKER), in which
 * everything that the tables hold about the type is constant. */
#define INLINE static inline __attribute__((always_inline))

int packed_shape(PackedMatrix *m, TensorType type, ActForm blocks, int64_t n_out, int64_t n_in, fr_error *err) {
    size_t row_bytes, bytes;
    memset(m, 0, sizeof *m);
    if (n_out < 1 || n_in < 1 || n_in > INT32_MAX || n_out > INT32_MAX ||
        !tensor_type_row_bytes(type, n_in, &row_bytes))
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "a %lld x %lld matrix cannot be of type %s: its rows are not whole blocks", (long long)n_out,
                         (long long)n_in, tensor_type_info(type)->name);
    m->type = type;
    m->act = act_form(type, blocks);
    m->n_out = n_out;
    m->n_in = n_in;
    m->scale = 1;
    m->tile_bytes = tile_size(type, n_in);
    return size_mul(m->tile_bytes, (size_t)packed_n_tiles(m), &bytes) ? FR_OK
                                                                      : error_memory(err, "a weight matrix", SIZE_MAX);
}

int packed_init(PackedMatrix *m, TensorType type, ActForm blocks, int64_t n_out, int64_t n_in, fr_error *err) {
    int status = packed_shape(m, type, blocks, n_out, n_in, err);
    if (!status && !(m->data = mem_alloc(packed_bytes(m))))
        status = error_memory(err, "a weight matrix", packed_bytes(m));
    return status;
}

void packed_free(PackedMatrix *m) {
    mem_free(m->data);
    memset(m, 0, sizeof *m);
}

/* ---- how a block of each type looks in a file (gguf/blocks_*.c draw them) ------------------------------------ */

/* The ways in which a block holds the codes of a slice. */
typedef enum FileCodes {
    CODES_PLAIN,   /* the type has no blocks: floats or halves */
    CODES_BF16,    /* BF16, which has no blocks and is packed in pairs */
    CODES_BYTES,   /* 32 signed bytes */
    CODES_NIBBLES, /* 16 bytes for each slice: input j low, input j+16 high; bit j of the 32 high bits is of input j */
    CODES_NV_NIBBLES, /* 16 bytes for each slice: among 16 inputs, input j is low and input j+8 is high */
    CODES_K_NIBBLES,  /* 32 bytes for each two slices, the even one low; the high bit of slice s is bit s of 32 bytes */
    CODES_K_PAIRS, /* 32 bytes for each four slices, two bits of each; the high bit of slice s is bit s of 32 bytes */
    CODES_K_SIX,   /* Q6_K: 64 bytes of nibbles, and 32 of high bits, for each four slices */
    CODES_LATTICE, /* indices of points and signs */
} FileCodes;

/* The ways in which a block holds scales that are not halves. */
typedef enum FileScales {
    FILE_NONE,
    FILE_BYTES,      /* n bytes, one for each field, as in the record */
    FILE_SIX_MINS,   /* Q4_K, Q5_K: eight scales and minima of six bits in 12 bytes */
    FILE_SIX_HALVES, /* Q3_K: sixteen scales of six bits in 12 bytes */
    FILE_SIX,        /* IQ4_XS: eight scales of six bits in 6 bytes */
} FileScales;

typedef struct FileForm {
    FileCodes codes;
    uint8_t low_at, high_at; /* where the low bits of the codes are in a block, in bytes, and where the high bits are */
    FileScales scales;
    uint8_t scales_at, n_scales; /* n_scales: the number of bytes if the form is FILE_BYTES */
} FileForm;

/* This table has one row for each type of gguf/tensor_type.h. */
/* clang-format off */
#define EACH_FILE_FORM(X) \
    /*NAME     codes             low_at high_at  scales           at  n    */ \
    X(F32,     CODES_PLAIN,         0,     0,    FILE_NONE,        0,  0) \
    X(F16,     CODES_PLAIN,         0,     0,    FILE_NONE,        0,  0) \
    X(BF16,    CODES_BF16,          0,     0,    FILE_NONE,        0,  0) \
    X(Q8_0,    CODES_BYTES,         2,     0,    FILE_NONE,        0,  0) \
    X(Q4_0,    CODES_NIBBLES,       2,     0,    FILE_NONE,        0,  0) \
    X(Q4_1,    CODES_NIBBLES,       4,     0,    FILE_NONE,        0,  0) \
    X(Q5_0,    CODES_NIBBLES,       6,     2,    FILE_NONE,        0,  0) \
    X(Q5_1,    CODES_NIBBLES,       8,     4,    FILE_NONE,        0,  0) \
    X(Q4_K,    CODES_K_NIBBLES,    16,     0,    FILE_SIX_MINS,    4,  0) \
    X(Q5_K,    CODES_K_NIBBLES,    48,    16,    FILE_SIX_MINS,    4,  0) \
    X(Q6_K,    CODES_K_SIX,         0,   128,    FILE_BYTES,     192, 16) \
    X(Q2_K,    CODES_K_PAIRS,      16,     0,    FILE_BYTES,       0, 16) \
    X(Q3_K,    CODES_K_PAIRS,      32,     0,    FILE_SIX_HALVES, 96,  0) \
    X(IQ4_NL,  CODES_NIBBLES,       2,     0,    FILE_NONE,        0,  0) \
    X(IQ4_XS,  CODES_NIBBLES,       8,     0,    FILE_SIX,         2,  0) \
    X(MXFP4,   CODES_NIBBLES,       1,     0,    FILE_BYTES,       0,  1) \
    X(IQ2_XXS, CODES_LATTICE,       0,     0,    FILE_NONE,        0,  0) \
    X(IQ2_XS,  CODES_LATTICE,       0,     0,    FILE_NONE,        0,  0) \
    X(IQ2_S,   CODES_LATTICE,       0,     0,    FILE_NONE,        0,  0) \
    X(IQ3_XXS, CODES_LATTICE,       0,     0,    FILE_NONE,        0,  0) \
    X(IQ3_S,   CODES_LATTICE,       0,     0,    FILE_NONE,        0,  0) \
    X(IQ1_S,   CODES_LATTICE,       0,     0,    FILE_NONE,        0,  0) \
    X(IQ1_M,   CODES_LATTICE,       0,     0,    FILE_NONE,        0,  0) \
    X(NVFP4,   CODES_NV_NIBBLES,    4,     0,    FILE_BYTES,       0,  4)
/* clang-format on */

#define FILE_FORM(NAME, ...) [TYPE_##NAME] = {__VA_ARGS__},
static const FileForm file_forms[TYPE_COUNT] = {EACH_FILE_FORM(FILE_FORM)};
#undef FILE_FORM
_Static_assert(0 EACH_FILE_FORM(COUNT_ONE) == TYPE_COUNT, "a type has no row in EACH_FILE_FORM");

/* ---- codes --------------------------------------------------------------------------------------------------- */

/* A slice of a row as eight words of four codes each: word g holds inputs 4g to 4g+3, a byte each. Words are
 * loaded and stored as bytes, and shifts are masked to stay within them, so their byte order does not matter. */
typedef struct Codes {
    uint32_t word[8];
} Codes;

static const uint32_t LOW_1 = 0x01010101, LOW_2 = 0x03030303, LOW_4 = 0x0f0f0f0f, SIGNS = 0x80808080;

static uint32_t load_word(const unsigned char *p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

/* Sets bits of the four bytes, which must be zero before. */
static void add_word(unsigned char *p, uint32_t bits) {
    bits |= load_word(p);
    memcpy(p, &bits, 4);
}

/* The place of word g of a slice in a block. low and high are offsets in bytes from low_at and high_at; the high bits
 * have a place only in types with a byte of them for each byte of codes. */
typedef struct WordPlace {
    int low, low_shift, high, high_shift;
} WordPlace;

INLINE WordPlace word_place(FileCodes codes, int slice, int g) {
    switch (codes) {
    case CODES_NIBBLES: return (WordPlace){slice * 16 + g % 4 * 4, g / 4 * 4, 0, 0};
    case CODES_NV_NIBBLES: return (WordPlace){slice * 16 + g / 4 * 8 + g % 2 * 4, g % 4 / 2 * 4, 0, 0};
    case CODES_K_NIBBLES: return (WordPlace){slice / 2 * 32 + 4 * g, slice % 2 * 4, 4 * g, slice};
    case CODES_K_PAIRS: return (WordPlace){slice / 4 * 32 + 4 * g, slice % 4 * 2, 4 * g, slice};
    case CODES_K_SIX:
        return (WordPlace){slice / 4 * 64 + slice % 2 * 32 + 4 * g, slice % 4 / 2 * 4, slice / 4 * 32 + 4 * g,
                           slice % 4 * 2};
    case CODES_BYTES:
    case CODES_PLAIN:
    case CODES_BF16:
    case CODES_LATTICE: break;
    }
    return (WordPlace){4 * g, 0, 0, 0};
}

INLINE uint32_t low_mask(TensorType type) {
    return low_bits(type) == 8 ? UINT32_MAX : low_bits(type) == 4 ? LOW_4 : LOW_2;
}
INLINE uint32_t high_mask(TensorType type) { return slice_forms[type].high_bits == 2 ? LOW_2 : LOW_1; }

/* Returns the fifth bits of word g of a type in which bit j of 32 belongs to input j. */
INLINE uint32_t fifth_bits(const unsigned char *bits, int g) {
    unsigned char fifth[4];
    for (int j = 0; j < 4; j++) fifth[j] = (bits[g / 2] >> (g % 2 * 4 + j)) & 1;
    return load_word(fifth);
}

INLINE void add_fifth_bits(unsigned char *bits, int g, uint32_t word) {
    unsigned char fifth[4];
    memcpy(fifth, &word, 4);
    for (int j = 0; j < 4; j++) bits[g / 2] = (unsigned char)(bits[g / 2] | fifth[j] << (g % 2 * 4 + j));
}

/* Reads the codes of slice `slice` of the block at b. */
INLINE void codes_from_block(TensorType type, const unsigned char *b, int slice, Codes *c) {
    const FileForm *f = &file_forms[type];
    int n_low = low_bits(type);
    for (int g = 0; g < 8; g++) {
        WordPlace at = word_place(f->codes, slice, g);
        c->word[g] = (load_word(b + f->low_at + at.low) >> at.low_shift) & low_mask(type);
        if (f->codes == CODES_BYTES) c->word[g] ^= SIGNS; /* signed bytes become codes with a bias of 128 */
        if (!slice_forms[type].high_bits) continue;
        uint32_t high = f->codes == CODES_NIBBLES ? fifth_bits(b + f->high_at, g)
                                                  : load_word(b + f->high_at + at.high) >> at.high_shift;
        c->word[g] |= (high & high_mask(type)) << n_low;
    }
}

/* Writes the codes of a slice into a block, which must be zeros before. */
INLINE void codes_to_block(TensorType type, const Codes *c, int slice, unsigned char *b) {
    const FileForm *f = &file_forms[type];
    int n_low = low_bits(type);
    for (int g = 0; g < 8; g++) {
        WordPlace at = word_place(f->codes, slice, g);
        uint32_t word = f->codes == CODES_BYTES ? c->word[g] ^ SIGNS : c->word[g];
        add_word(b + f->low_at + at.low, (word & low_mask(type)) << at.low_shift);
        if (!slice_forms[type].high_bits) continue;
        uint32_t high = (word >> n_low) & high_mask(type);
        if (f->codes == CODES_NIBBLES) add_fifth_bits(b + f->high_at, g, high);
        else add_word(b + f->high_at + at.high, high << at.high_shift);
    }
}

/* Writes the codes of row `row` into the vectors of its slice, each of which has one word for each row. */
INLINE void codes_to_tile(TensorType type, const Codes *c, int row, unsigned char *slice) {
    uint32_t planes[8] = {0}, high_bits = slice_forms[type].high_bits;
    if (low_bits(type) == 8) memcpy(planes, c->word, sizeof planes);
    else if (low_bits(type) == 2) {
        for (int g = 0; g < 8; g++) {
            planes[g / 4] |= (c->word[g] & LOW_2) << (2 * (g % 4));
            if (high_bits) planes[2] |= ((c->word[g] >> 2) & LOW_1) << g;
        }
    } else {
        for (int g = 0; g < 4; g++) planes[g] = (c->word[g] & LOW_4) | (c->word[g + 4] & LOW_4) << 4;
        for (int g = 0; g < 8 && high_bits == 1; g++) planes[4] |= ((c->word[g] >> 4) & LOW_1) << g;
        for (int g = 0; g < 8 && high_bits == 2; g++) planes[4 + g / 4] |= ((c->word[g] >> 4) & LOW_2) << (2 * (g % 4));
    }
    for (uint32_t i = 0; i < slice_forms[type].code_bytes / 64; i++) memcpy(slice + i * 64 + row * 4, &planes[i], 4);
}

/* Reads the codes of row `row` from the vectors of its slice. */
INLINE void codes_from_tile(TensorType type, const unsigned char *slice, int row, Codes *c) {
    uint32_t *word = c->word, high_bits = slice_forms[type].high_bits;
    const unsigned char *own = slice + row * 4; /* the place in each plane of 64 bytes */
    for (int g = 0; g < 8; g++) {
        if (low_bits(type) == 2) {
            word[g] = (load_word(own + g / 4 * 64) >> (2 * (g % 4))) & LOW_2;
            if (high_bits) word[g] |= ((load_word(own + 128) >> g) & LOW_1) << 2;
            continue;
        }
        if (low_bits(type) == 8) word[g] = load_word(own + 64 * g);
        else word[g] = (load_word(own + g % 4 * 64) >> (g / 4 * 4)) & LOW_4;
        if (high_bits == 1) word[g] |= ((load_word(own + 256) >> g) & LOW_1) << 4;
        if (high_bits == 2) word[g] |= ((load_word(own + 256 + g / 4 * 64) >> (2 * (g % 4))) & LOW_2) << 4;
    }
}

void slice_write_codes(TensorType type, const unsigned char codes[ACT_BLOCK], int row, unsigned char *slice) {
    Codes c;
    memcpy(c.word, codes, sizeof c.word);
    codes_to_tile(type, &c, row, slice);
}

void slice_read_codes(TensorType type, const unsigned char *slice, int row, unsigned char codes[ACT_BLOCK]) {
    Codes c;
    codes_from_tile(type, slice, row, &c);
    memcpy(codes, c.word, sizeof c.word);
}

/* ---- scales -------------------------------------------------------------------------------------------------- */

/* Reads the six-bit scale and minimum of slice s (0-7) from the 12 bytes of a Q4_K or Q5_K block. */
static void six_bit_min(const unsigned char *b, int s, unsigned char *scale, unsigned char *min) {
    if (s < 4) {
        *scale = b[s] & 63;
        *min = b[s + 4] & 63;
    } else {
        *scale = (unsigned char)((b[s + 4] & 15) | (b[s - 4] >> 6) << 4);
        *min = (unsigned char)((b[s + 4] >> 4) | (b[s] >> 6) << 4);
    }
}

/* Writes such a scale and minimum into 12 bytes, which must be zeros before. */
static void add_six_bit_min(unsigned char *b, int s, int scale, int min) {
    if (s < 4) {
        b[s] = (unsigned char)(b[s] | scale);
        b[s + 4] = (unsigned char)(b[s + 4] | min);
    } else {
        b[s - 4] = (unsigned char)(b[s - 4] | scale >> 4 << 6);
        b[s] = (unsigned char)(b[s] | min >> 4 << 6);
        b[s + 4] = (unsigned char)((scale & 15) | (min & 15) << 4);
    }
}

/* The places of the low four and the high two bits of a six-bit scale: bytes and shifts. FILE_SIX_HALVES has 16 scales
 * and FILE_SIX 8, which are stored with 32 added. */
typedef struct SixPlace {
    int low, low_shift, high, high_shift;
} SixPlace;

static SixPlace six_place(FileScales scales, int s) {
    return scales == FILE_SIX_HALVES ? (SixPlace){s % 8, s / 8 * 4, 8 + s % 4, s / 4 * 2}
                                     : (SixPlace){2 + s / 2, s % 2 * 4, s / 4, s % 4 * 2};
}

static unsigned char six_bit_scale(const unsigned char *b, SixPlace at) {
    return (unsigned char)(((b[at.low] >> at.low_shift & 15) | (b[at.high] >> at.high_shift & 3) << 4) - 32);
}

static void add_six_bit_scale(unsigned char *b, SixPlace at, int scale) {
    b[at.low] = (unsigned char)(b[at.low] | ((scale + 32) & 15) << at.low_shift);
    b[at.high] = (unsigned char)(b[at.high] | (scale + 32) >> 4 << at.high_shift);
}

/* Writes the scales of the block at b, which belongs to row `row`, into the item at `item`. */
INLINE void scales_to_tile(TensorType type, const unsigned char *b, int row, unsigned char *item) {
    const FileForm *f = &file_forms[type];
    const unsigned char *from = b + f->scales_at;
    for (uint32_t i = 0; i < scale_halves(type); i++, item += 32)
        memcpy(item + row * 2, b + tensor_type_info(type)->half_at[i], 2);
    item += row;
    switch (f->scales) {
    case FILE_NONE: break;
    case FILE_BYTES:
        for (int s = 0; s < f->n_scales; s++) item[s * 16] = from[s];
        break;
    case FILE_SIX_MINS:
        for (int s = 0; s < 8; s++) six_bit_min(from, s, &item[s * 32], &item[s * 32 + 16]);
        break;
    case FILE_SIX_HALVES:
    case FILE_SIX:
        for (int s = 0; s < (f->scales == FILE_SIX ? 8 : 16); s++)
            item[s * 16] = six_bit_scale(from, six_place(f->scales, s));
        break;
    }
}

/* Writes the scales of row `row` into a block, which must be zeros before. */
INLINE void scales_from_tile(TensorType type, const unsigned char *item, int row, unsigned char *b) {
    const FileForm *f = &file_forms[type];
    unsigned char *to = b + f->scales_at;
    for (uint32_t i = 0; i < scale_halves(type); i++, item += 32)
        memcpy(b + tensor_type_info(type)->half_at[i], item + row * 2, 2);
    item += row;
    switch (f->scales) {
    case FILE_NONE: break;
    case FILE_BYTES:
        for (int s = 0; s < f->n_scales; s++) to[s] = item[s * 16];
        break;
    case FILE_SIX_MINS:
        for (int s = 0; s < 8; s++) add_six_bit_min(to, s, item[s * 32], item[s * 32 + 16]);
        break;
    case FILE_SIX_HALVES:
    case FILE_SIX:
        for (int s = 0; s < (f->scales == FILE_SIX ? 8 : 16); s++)
            add_six_bit_scale(to, six_place(f->scales, s), (int8_t)item[s * 16]);
        break;
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------------- */

INLINE void pack_blocks(TensorType type, int64_t n_in, const unsigned char *row, int i_row, unsigned char *tile) {
    int64_t scale_slices = slice_forms[type].scale_slices, n_slices = tile_n_slices(type, n_in);
    size_t block_bytes = tensor_type_info(type)->block_bytes;
    for (int64_t i = 0; i < n_slices; i += scale_slices, row += block_bytes) {
        if (is_lattice(type)) {
            lattice_to_tile(type, row, i_row, tile + codes_offset(type, i));
            continue;
        }
        scales_to_tile(type, row, i_row, tile + scales_offset(type, i));
        for (int s = 0; s < (int)scale_slices; s++) {
            Codes codes;
            codes_from_block(type, row, s, &codes);
            codes_to_tile(type, &codes, i_row, tile + codes_offset(type, i + s));
        }
    }
}

/* Reads inputs [k, k + n) of a row, which are whole blocks. */
INLINE void unpack_blocks(TensorType type, const unsigned char *tile, int i_row, int64_t k, int64_t n,
                          unsigned char *out) {
    int64_t scale_slices = slice_forms[type].scale_slices;
    size_t block_bytes = tensor_type_info(type)->block_bytes;
    for (int64_t i = k / ACT_BLOCK; i < (k + n) / ACT_BLOCK; i += scale_slices, out += block_bytes) {
        if (is_lattice(type)) {
            lattice_from_tile(type, tile + codes_offset(type, i), i_row, out);
            continue;
        }
        memset(out, 0, block_bytes);
        scales_from_tile(type, tile + scales_offset(type, i), i_row, out);
        for (int s = 0; s < (int)scale_slices; s++) {
            Codes codes;
            codes_from_tile(type, tile + codes_offset(type, i + s), i_row, &codes);
            codes_to_block(type, &codes, s, out);
        }
    }
}

/* Returns where input k of a row is in a tile, for a type without blocks. */
INLINE size_t plain_offset(TensorType type, size_t each, int64_t k, int i_row) {
    if (file_forms[type].codes == CODES_BF16) return (size_t)(k / 2 * 64 + i_row * 4 + k % 2 * 2);
    return ((size_t)k * TILE_ROWS + (size_t)i_row) * each;
}

INLINE void pack_plain(TensorType type, size_t each, int64_t n_in, const unsigned char *row, int i_row,
                       unsigned char *tile) {
    for (int64_t k = 0; k < n_in; k++, row += each) {
        uint32_t w = 0;
        memcpy(&w, row, each);
        if (file_forms[type].codes == CODES_BF16 && (w & 0x7f80) == 0) w &= 0x8000; /* subnormal weights become zeros */
        memcpy(tile + plain_offset(type, each, k, i_row), &w, each);
    }
}

INLINE void unpack_plain(TensorType type, size_t each, const unsigned char *tile, int i_row, int64_t k, int64_t n,
                         unsigned char *out) {
    for (int64_t i = k; i < k + n; i++, out += each) memcpy(out, tile + plain_offset(type, each, i, i_row), each);
}

#define DEFINE_PACKER(NAME, kind, ...) \
    static void pack_##NAME(int64_t n_in, const unsigned char *row, int i_row, unsigned char *tile) { \
        pack_##kind(__VA_ARGS__, n_in, row, i_row, tile); \
    } \
    static void unpack_##NAME(const unsigned char *tile, int i_row, int64_t k, int64_t n, unsigned char *out) { \
        unpack_##kind(__VA_ARGS__, tile, i_row, k, n, out); \
    }
#define DEFINE_PLAIN_PACKER(NAME, name, id, n, bytes, ...) DEFINE_PACKER(NAME, plain, TYPE_##NAME, bytes)
#define DEFINE_BLOCK_PACKER(NAME, ...) DEFINE_PACKER(NAME, blocks, TYPE_##NAME)
EACH_PLAIN_TYPE(DEFINE_PLAIN_PACKER)
EACH_BLOCK_TYPE(DEFINE_BLOCK_PACKER)
#define LIST_PACKER(NAME, ...) [TYPE_##NAME] = {pack_##NAME, unpack_##NAME},
static const struct {
    void (*pack)(int64_t n_in, const unsigned char *row, int i_row, unsigned char *tile);
    void (*unpack)(const unsigned char *tile, int i_row, int64_t k, int64_t n, unsigned char *out);
} packers[TYPE_COUNT] = {EACH_TYPE(LIST_PACKER)};

void packed_fill(PackedMatrix *m, const void *rows, int64_t tile_begin, int64_t tile_end) {
    size_t row_bytes;
    fr_assert(tensor_type_row_bytes(m->type, m->n_in, &row_bytes));
    for (int64_t t = tile_begin; t < tile_end; t++) {
        unsigned char *tile = packed_tile(m, t);
        memset(tile, 0, m->tile_bytes);
        for (int i = 0; i < TILE_ROWS && t * TILE_ROWS + i < m->n_out; i++) {
            const unsigned char *row = (const unsigned char *)rows + (size_t)(t * TILE_ROWS + i) * row_bytes;
            packers[m->type].pack(m->n_in, row, i, tile);
        }
    }
}

void packed_read_row(const PackedMatrix *m, int64_t i_row, int64_t k, int64_t n, void *out) {
    fr_assert(k % PACKED_READ == 0 && k + n <= m->n_in);
    packers[m->type].unpack(packed_tile(m, i_row / TILE_ROWS), (int)(i_row % TILE_ROWS), k, n, out);
}

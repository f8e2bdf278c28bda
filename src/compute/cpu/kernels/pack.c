/* pack.c - weights repacked so that one vector load brings the same inputs of 16 outputs.
 *
 * The problem. A file stores a matrix row by row. A kernel that follows a row sums many products into the
 * lanes of one vector and must fold the lanes at the end; how it folds depends on the width of the vector,
 * and so do the last bits of the result. And a 4-bit code is unpacked again for each activation row.
 *
 * The idea. Let a vector lane be an output. 16 output rows form a tile, and within the tile the inputs of
 * the 16 rows are interleaved along k. Each lane then adds up its own output, alone, in ascending k: no
 * folding, and vectors of 16, 8 or 1 lanes give the same bits. The activation is the same for all lanes: a
 * broadcast. Codes are unpacked once per slice and used for all activation rows of the call.
 *
 * A tile is a sequence of records. A record is the codes of a few slices and, for the block types, their scales
 * behind them, filled up to whole cache lines:
 *
 *     [codes of slice 0][slice 1]...[scales][padding]   [codes of the next slice]...
 *
 * So all bytes are read in ascending order, which is the fastest way to read memory. (With the scales of a whole tile
 * behind its codes there were two streams, which ended with each tile: research/DIARY.md.)
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
 *   IQ4_NL, IQ4_XS, MXFP4: as the 4-bit types. The codes are looked up in a table of 16 bytes in a register when a slice
 *     is unpacked, which costs one shuffle for 4 codes of each row: as bytes, they would take twice the memory. The
 *     table has the bias in it: 128 for the IQ4 types, 16 for MXFP4, whose codes then have five bits.
 *   NVFP4: the same. IQ1, IQ2 and IQ3 types: pack_lattice.c; their codes are laid out as those of Q3_K (IQ1, IQ2) and of
 *     IQ4_XS (IQ3), and looked up.
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
 * Cost: bytes per weight as in the file, except Q4_K (148 for 144 in 256 weights) and Q5_K (180 for 176): their
 * 6-bit scales are unpacked to bytes; Q3_K (116 for 110) and IQ4_XS (140 for 136): both; Q6_K (212 for 210): padding; and slices that are missing in the last record of a type
 * that has two or four in one. Rows missing in the last tile are zero bytes, so their scale is 0.
 *
 * Quantised activations are an array of ActBlock (layout.h), one for each slice.
 * Proof: tests/compute/test_pack.c unpacks every type and compares with blocks_dequantize.
 */
#include "compute/cpu/kernels/pack.h"

#include "base/mem.h"

#include <string.h>

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

/* ---- the block types: file bytes to codes ------------------------------------------------------- */

static uint32_t load_word(const unsigned char *p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

static const uint32_t LOW_1 = 0x01010101, LOW_2 = 0x03030303, LOW_4 = 0x0f0f0f0f;

/* Nibbles in the order of the 32-wide types in files: input j low, input j+16 high. */
static void codes_from_nibbles(const unsigned char *q, Codes *c) {
    for (int g = 0; g < 4; g++) {
        c->word[g] = load_word(q + 4 * g) & LOW_4;
        c->word[g + 4] = (load_word(q + 4 * g) >> 4) & LOW_4;
    }
}

/* ... and the fifth bits: bit j of 32 belongs to input j. */
static void codes_add_fifth_bits(const unsigned char *bits, Codes *c) {
    for (int g = 0; g < 8; g++) {
        unsigned char fifth[4];
        for (int j = 0; j < 4; j++) fifth[j] = (unsigned char)(((bits[g / 2] >> (g % 2 * 4 + j)) & 1) << 4);
        c->word[g] |= load_word(fifth);
    }
}

/* Q4_K, Q5_K: 64 inputs share 32 bytes; the even slice has the low nibbles. */
static void codes_from_k_nibbles(const unsigned char *q, int slice, Codes *c) {
    q += slice / 2 * 32;
    for (int g = 0; g < 8; g++) c->word[g] = (load_word(q + 4 * g) >> (slice % 2 * 4)) & LOW_4;
}

/* Q6_K: 128 inputs share 64 bytes of low nibbles and 32 bytes of high bits. Slice s of such a half has the
 * low (s < 2) or high nibbles of 32-byte part s%2, and bits 2s, 2s+1 of the high bytes. */
static void codes_from_q6_k(const unsigned char *low, const unsigned char *high, int slice, Codes *c) {
    int half = slice / 4, s = slice % 4;
    low += half * 64 + (s % 2) * 32;
    high += half * 32;
    for (int g = 0; g < 8; g++) {
        uint32_t nibbles = (load_word(low + 4 * g) >> (s / 2 * 4)) & LOW_4;
        c->word[g] = nibbles | ((load_word(high + 4 * g) >> (2 * s)) & LOW_2) << 4;
    }
}

/* Q2_K, Q3_K: 128 inputs share 32 bytes; slice s of them has bits 2s, 2s+1. */
static void codes_from_k_pairs(const unsigned char *q, int slice, Codes *c) {
    q += slice / 4 * 32;
    for (int g = 0; g < 8; g++) c->word[g] = (load_word(q + 4 * g) >> (slice % 4 * 2)) & LOW_2;
}

/* NVFP4: input j of 16 low, input j+8 high. */
static void codes_from_nv_nibbles(const unsigned char *q, Codes *c) {
    for (int g = 0; g < 8; g++) c->word[g] = (load_word(q + g / 4 * 8 + g % 2 * 4) >> (g % 4 / 2 * 4)) & LOW_4;
}

/* The codes of slice `slice` of the block at `b`. */
static void codes_read(TensorType type, const unsigned char *b, int slice, Codes *c) {
    switch (type) {
    case TYPE_Q8_0:
        for (int g = 0; g < 8; g++) c->word[g] = load_word(b + 2 + 4 * g) ^ 0x80808080;
        break;
    case TYPE_Q4_0:
    case TYPE_IQ4_NL: codes_from_nibbles(b + 2, c); break;
    case TYPE_MXFP4: codes_from_nibbles(b + 1, c); break;
    case TYPE_IQ4_XS: codes_from_nibbles(b + 8 + slice * 16, c); break;
    case TYPE_NVFP4: codes_from_nv_nibbles(b + 4 + slice * 16, c); break;
    case TYPE_Q2_K: codes_from_k_pairs(b + 16, slice, c); break;
    case TYPE_Q3_K:
        codes_from_k_pairs(b + 32, slice, c);
        for (int g = 0; g < 8; g++) c->word[g] |= ((load_word(b + 4 * g) >> slice) & LOW_1) << 2;
        break;
    case TYPE_Q4_1: codes_from_nibbles(b + 4, c); break;
    case TYPE_Q5_0:
        codes_from_nibbles(b + 6, c);
        codes_add_fifth_bits(b + 2, c);
        break;
    case TYPE_Q5_1:
        codes_from_nibbles(b + 8, c);
        codes_add_fifth_bits(b + 4, c);
        break;
    case TYPE_Q4_K: codes_from_k_nibbles(b + 16, slice, c); break;
    case TYPE_Q5_K:
        codes_from_k_nibbles(b + 48, slice, c);
        for (int g = 0; g < 8; g++) c->word[g] |= ((load_word(b + 16 + 4 * g) >> slice) & LOW_1) << 4;
        break;
    default: codes_from_q6_k(b, b + 128, slice, c);
    }
}

void codes_write(TensorType type, const Codes *c, int row, unsigned char *slice) {
    uint32_t planes[8] = {0}, high_bits = slice_forms[type].high_bits;
    if (type == TYPE_Q8_0) memcpy(planes, c->word, sizeof planes);
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

/* ---- the block types: scales -------------------------------------------------------------------- */

/* The six-bit scale and minimum of slice s (0-7) in the 12 bytes of a Q4_K or Q5_K block. */
static void k_scale_min(const unsigned char *b, int s, unsigned char *scale, unsigned char *min) {
    if (s < 4) {
        *scale = b[s] & 63;
        *min = b[s + 4] & 63;
    } else {
        *scale = (unsigned char)((b[s + 4] & 15) | (b[s - 4] >> 6) << 4);
        *min = (unsigned char)((b[s + 4] >> 4) | (b[s] >> 6) << 4);
    }
}

/* The six-bit scale of sub-block s (0-15) in the 12 bytes of a Q3_K block, less 32. */
static unsigned char q3_k_scale(const unsigned char *b, int s) {
    int scale = (b[s % 8] >> (s / 8 * 4) & 15) | (b[8 + s % 4] >> (s / 4 * 2) & 3) << 4;
    return (unsigned char)(scale - 32);
}

/* The same of sub-block s (0-7) of IQ4_XS, behind its d. */
static unsigned char iq4_xs_scale(const unsigned char *b, int s) {
    int scale = (b[2 + s / 2] >> (s % 2 * 4) & 15) | (b[s / 4] >> (s % 4 * 2) & 3) << 4;
    return (unsigned char)(scale - 32);
}

/* The scales of the block at `b`, row `row`, into its record. */
static void scales_write(TensorType type, const unsigned char *b, int row, unsigned char *record) {
    switch (type) {
    case TYPE_Q4_1:
    case TYPE_Q5_1:
        memcpy(record + row * 2, b, 2);
        memcpy(record + 32 + row * 2, b + 2, 2);
        break;
    case TYPE_Q4_K:
    case TYPE_Q5_K:
        memcpy(record + row * 2, b, 2);
        memcpy(record + 32 + row * 2, b + 2, 2);
        for (int s = 0; s < 8; s++) k_scale_min(b + 4, s, &record[64 + s * 32 + row], &record[64 + s * 32 + 16 + row]);
        break;
    case TYPE_Q6_K:
        memcpy(record + row * 2, b + 208, 2);
        for (int s = 0; s < 16; s++) record[32 + s * 16 + row] = b[192 + s];
        break;
    case TYPE_Q2_K:
        memcpy(record + row * 2, b + 80, 2);
        memcpy(record + 32 + row * 2, b + 82, 2);
        for (int s = 0; s < 16; s++) record[64 + s * 16 + row] = b[s];
        break;
    case TYPE_Q3_K:
        memcpy(record + row * 2, b + 108, 2);
        for (int s = 0; s < 16; s++) record[32 + s * 16 + row] = q3_k_scale(b + 96, s);
        break;
    case TYPE_IQ4_XS:
        memcpy(record + row * 2, b, 2);
        for (int s = 0; s < 8; s++) record[32 + s * 16 + row] = iq4_xs_scale(b + 2, s);
        break;
    case TYPE_MXFP4: record[row] = b[0]; break;
    case TYPE_NVFP4:
        for (int s = 0; s < 4; s++) record[s * 16 + row] = b[s];
        break;
    default: memcpy(record + row * 2, b, 2); /* Q8_0, Q4_0, Q5_0, IQ4_NL */
    }
}

static void fill_block_row(const PackedMatrix *m, const unsigned char *row, int i_row, unsigned char *tile) {
    int64_t scale_slices = slice_forms[m->type].scale_slices, n_slices = tile_n_slices(m->type, m->n_in);
    for (int64_t i = 0; i < n_slices; i += scale_slices, row += tensor_type_info(m->type)->block_bytes) {
        if (is_lattice(m->type)) {
            lattice_pack(m->type, row, i_row, tile + codes_offset(m->type, i));
            continue;
        }
        scales_write(m->type, row, i_row, tile + scales_offset(m->type, i));
        for (int s = 0; s < (int)scale_slices; s++) {
            Codes codes;
            codes_read(m->type, row, s, &codes);
            codes_write(m->type, &codes, i_row, tile + codes_offset(m->type, i + s));
        }
    }
}

/* ---- the plain types ---------------------------------------------------------------------------- */

static void fill_plain_row(const PackedMatrix *m, const unsigned char *row, int i_row, unsigned char *tile) {
    size_t each = m->type == TYPE_F32 ? 4 : 2;
    for (int64_t k = 0; k < m->n_in; k++)
        memcpy(tile + ((size_t)k * 16 + (size_t)i_row) * each, row + (size_t)k * each, each);
}

static void fill_bf16_row(const PackedMatrix *m, const unsigned char *row, int i_row, unsigned char *tile) {
    for (int64_t k = 0; k < m->n_in; k++) {
        uint16_t w;
        memcpy(&w, row + 2 * k, 2);
        if ((w & 0x7f80) == 0) w &= 0x8000;
        memcpy(tile + k / 2 * 64 + i_row * 4 + k % 2 * 2, &w, 2);
    }
}

void packed_fill(PackedMatrix *m, const void *rows, int64_t tile_begin, int64_t tile_end) {
    size_t row_bytes;
    fr_assert(tensor_type_row_bytes(m->type, m->n_in, &row_bytes));
    for (int64_t t = tile_begin; t < tile_end; t++) {
        unsigned char *tile = packed_tile(m, t);
        memset(tile, 0, m->tile_bytes);
        for (int i = 0; i < TILE_ROWS && t * TILE_ROWS + i < m->n_out; i++) {
            const unsigned char *row = (const unsigned char *)rows + (size_t)(t * TILE_ROWS + i) * row_bytes;
            if (m->type == TYPE_F32 || m->type == TYPE_F16) fill_plain_row(m, row, i, tile);
            else if (m->type == TYPE_BF16) fill_bf16_row(m, row, i, tile);
            else fill_block_row(m, row, i, tile);
        }
    }
}

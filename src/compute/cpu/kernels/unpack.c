/* unpack.c - a row of a packed matrix back into the layout of the file: pack.c backwards.
 *
 * Where the output matrix of a model is its embedding, the rows of both are the same numbers. They are kept once, packed,
 * and the row of a token is read out of its tile: some hundred words, each in a cache line of its own, which is slow
 * beside reading a row of the file and nothing beside a forward. The bytes are those of the file, so that the numbers
 * are; BF16 excepted, whose subnormal weights are packed as zeros.
 * Proof: tests/compute/test_pack.c packs rows of every type and compares what comes back byte by byte. */
#include "compute/cpu/kernels/pack.h"

#include <string.h>

static uint32_t load_word(const unsigned char *p) {
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

/* Sets bits of four bytes that are zero there. */
static void add_word(unsigned char *p, uint32_t bits) {
    bits |= load_word(p);
    memcpy(p, &bits, 4);
}

static const uint32_t LOW_1 = 0x01010101, LOW_2 = 0x03030303, LOW_4 = 0x0f0f0f0f;

void codes_of_row(TensorType type, const unsigned char *slice, int row, Codes *c) {
    uint32_t *word = c->word, high_bits = slice_forms[type].high_bits;
    const unsigned char *own = slice + row * 4; /* of each plane of 64 bytes */
    for (int g = 0; g < 8; g++) {
        if (low_bits(type) == 2) {
            word[g] = (load_word(own + g / 4 * 64) >> (2 * (g % 4))) & LOW_2;
            if (high_bits) word[g] |= ((load_word(own + 128) >> g) & LOW_1) << 2;
            continue;
        }
        if (type == TYPE_Q8_0) word[g] = load_word(own + 64 * g);
        else word[g] = (load_word(own + g % 4 * 64) >> (g / 4 * 4)) & LOW_4;
        if (high_bits == 1) word[g] |= ((load_word(own + 256) >> g) & LOW_1) << 4;
        if (high_bits == 2) word[g] |= ((load_word(own + 256 + g / 4 * 64) >> (2 * (g % 4))) & LOW_2) << 4;
    }
}

static void write_nibbles(const uint32_t word[8], unsigned char *q) {
    for (int g = 0; g < 4; g++) add_word(q + 4 * g, (word[g] & LOW_4) | (word[g + 4] & LOW_4) << 4);
}

static void write_fifth_bits(const uint32_t word[8], unsigned char *bits) {
    for (int i = 0; i < 32; i++)
        bits[i / 8] = (unsigned char)(bits[i / 8] | ((word[i / 4] >> (i % 4 * 8 + 4)) & 1) << (i % 8));
}

static void write_q6_k(const uint32_t word[8], int slice, unsigned char *b) {
    int half = slice / 4, s = slice % 4;
    for (int g = 0; g < 8; g++) {
        add_word(b + half * 64 + s % 2 * 32 + 4 * g, (word[g] & LOW_4) << (s / 2 * 4));
        add_word(b + 128 + half * 32 + 4 * g, ((word[g] >> 4) & LOW_2) << (2 * s));
    }
}

static void write_k_pairs(const uint32_t word[8], int slice, unsigned char *q) {
    for (int g = 0; g < 8; g++) add_word(q + slice / 4 * 32 + 4 * g, (word[g] & LOW_2) << (slice % 4 * 2));
}

static void write_nv_nibbles(const uint32_t word[8], unsigned char *q) {
    for (int g = 0; g < 8; g++) add_word(q + g / 4 * 8 + g % 2 * 4, (word[g] & LOW_4) << (g % 4 / 2 * 4));
}

/* The codes of slice `slice` into the block at b, which begins as zeros. */
static void write_codes(TensorType type, const uint32_t word[8], int slice, unsigned char *b) {
    switch (type) {
    case TYPE_Q8_0:
        for (int g = 0; g < 8; g++) add_word(b + 2 + 4 * g, word[g] ^ 0x80808080);
        break;
    case TYPE_Q4_0:
    case TYPE_IQ4_NL: write_nibbles(word, b + 2); break;
    case TYPE_MXFP4: write_nibbles(word, b + 1); break;
    case TYPE_IQ4_XS: write_nibbles(word, b + 8 + slice * 16); break;
    case TYPE_NVFP4: write_nv_nibbles(word, b + 4 + slice * 16); break;
    case TYPE_Q2_K: write_k_pairs(word, slice, b + 16); break;
    case TYPE_Q3_K:
        write_k_pairs(word, slice, b + 32);
        for (int g = 0; g < 8; g++) add_word(b + 4 * g, ((word[g] >> 2) & LOW_1) << slice);
        break;
    case TYPE_Q4_1: write_nibbles(word, b + 4); break;
    case TYPE_Q5_0:
        write_nibbles(word, b + 6);
        write_fifth_bits(word, b + 2);
        break;
    case TYPE_Q5_1:
        write_nibbles(word, b + 8);
        write_fifth_bits(word, b + 4);
        break;
    case TYPE_Q4_K:
    case TYPE_Q5_K:
        for (int g = 0; g < 8; g++) {
            unsigned char *q = b + (type == TYPE_Q4_K ? 16 : 48) + slice / 2 * 32 + 4 * g;
            add_word(q, (word[g] & LOW_4) << (slice % 2 * 4));
            if (type == TYPE_Q5_K) add_word(b + 16 + 4 * g, ((word[g] >> 4) & LOW_1) << slice);
        }
        break;
    default: write_q6_k(word, slice, b);
    }
}

/* Eight scales and minima of six bits into 12 bytes. */
static void write_k_scales(const unsigned char *record, int row, unsigned char *b) {
    for (int s = 0; s < 4; s++) {
        int scale = record[s * 32 + row], min = record[s * 32 + 16 + row];
        int far_scale = record[(s + 4) * 32 + row], far_min = record[(s + 4) * 32 + 16 + row];
        b[s] = (unsigned char)(scale | far_scale >> 4 << 6);
        b[s + 4] = (unsigned char)(min | far_min >> 4 << 6);
        b[s + 8] = (unsigned char)((far_scale & 15) | (far_min & 15) << 4);
    }
}

/* Sixteen scales of Q3_K into 12 bytes that are zero. */
static void write_q3_k_scales(const unsigned char *record, int row, unsigned char *b) {
    for (int s = 0; s < 16; s++) {
        int scale = (int8_t)record[s * 16 + row] + 32;
        b[s % 8] = (unsigned char)(b[s % 8] | (scale & 15) << (s / 8 * 4));
        b[8 + s % 4] = (unsigned char)(b[8 + s % 4] | scale >> 4 << (s / 4 * 2));
    }
}

/* Eight scales of IQ4_XS into the 6 bytes behind its d. */
static void write_iq4_xs_scales(const unsigned char *record, int row, unsigned char *b) {
    for (int s = 0; s < 8; s++) {
        int scale = (int8_t)record[s * 16 + row] + 32;
        b[2 + s / 2] = (unsigned char)(b[2 + s / 2] | (scale & 15) << (s % 2 * 4));
        b[s / 4] = (unsigned char)(b[s / 4] | scale >> 4 << (s % 4 * 2));
    }
}

/* Where the half d of a block is in the file. */
static int place_of_scale(TensorType type) {
    return type == TYPE_Q6_K ? 208 : type == TYPE_Q3_K ? 108 : type == TYPE_Q2_K ? 80 : 0;
}

static void write_scales(TensorType type, const unsigned char *record, int row, unsigned char *b) {
    if (type == TYPE_MXFP4) {
        b[0] = record[row];
        return;
    }
    if (type == TYPE_NVFP4) {
        for (int s = 0; s < 4; s++) b[s] = record[s * 16 + row];
        return;
    }
    memcpy(b + place_of_scale(type), record + row * 2, 2);
    switch (type) {
    case TYPE_Q2_K:
        memcpy(b + 82, record + 32 + row * 2, 2);
        for (int s = 0; s < 16; s++) b[s] = record[64 + s * 16 + row];
        break;
    case TYPE_Q3_K: write_q3_k_scales(record + 32, row, b + 96); break;
    case TYPE_IQ4_XS: write_iq4_xs_scales(record + 32, row, b + 2); break;
    case TYPE_Q4_1:
    case TYPE_Q5_1: memcpy(b + 2, record + 32 + row * 2, 2); break;
    case TYPE_Q4_K:
    case TYPE_Q5_K:
        memcpy(b + 2, record + 32 + row * 2, 2);
        write_k_scales(record + 64, row, b + 4);
        break;
    case TYPE_Q6_K:
        for (int s = 0; s < 16; s++) b[192 + s] = record[32 + s * 16 + row];
        break;
    default: break;
    }
}

static void read_blocks(const PackedMatrix *m, const unsigned char *tile, int row, int64_t k, int64_t n,
                        unsigned char *out) {
    int64_t n_slices = slice_forms[m->type].scale_slices;
    size_t block_bytes = tensor_type_info(m->type)->block_bytes;
    for (int64_t i = k / ACT_BLOCK; i < (k + n) / ACT_BLOCK; i += n_slices, out += block_bytes) {
        if (is_lattice(m->type)) {
            lattice_unpack(m->type, tile + codes_offset(m->type, i), row, out);
            continue;
        }
        memset(out, 0, block_bytes);
        write_scales(m->type, tile + scales_offset(m->type, i), row, out);
        for (int s = 0; s < (int)n_slices; s++) {
            Codes codes;
            codes_of_row(m->type, tile + codes_offset(m->type, i + s), row, &codes);
            write_codes(m->type, codes.word, s, out);
        }
    }
}

void packed_read_row(const PackedMatrix *m, int64_t i_row, int64_t k, int64_t n, void *out) {
    const unsigned char *tile = packed_tile(m, i_row / TILE_ROWS);
    int row = (int)(i_row % TILE_ROWS);
    unsigned char *to = out;
    size_t each = m->type == TYPE_F32 ? 4 : 2;
    fr_assert(k % PACKED_READ == 0 && k + n <= m->n_in);
    switch (m->type) {
    case TYPE_F32:
    case TYPE_F16:
        for (int64_t i = 0; i < n; i++, to += each)
            memcpy(to, tile + ((size_t)(k + i) * TILE_ROWS + (size_t)row) * each, each);
        break;
    case TYPE_BF16:
        for (int64_t i = k; i < k + n; i++, to += each) memcpy(to, tile + i / 2 * 64 + row * 4 + i % 2 * 2, each);
        break;
    default: read_blocks(m, tile, row, k, n, to);
    }
}

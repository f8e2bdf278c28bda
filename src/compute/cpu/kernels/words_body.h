/* words_body.h - the products of activations of 16 bits for tables without exact byte products (AVX2 without AVX-VNNI);
 * a part of matmul_body.h.
 *
 * The problem. vpmaddubsw multiplies bytes and adds two products in 16 bits, which overflows unless signs are moved,
 * and its sums must be widened. Two planes of activations double all of it: 32 inputs take 64 operations.
 *
 * The idea. vpmaddwd multiplies words and adds two products in 32 bits, which never overflows here, so that 32 inputs
 * take 16 products and 16 additions. The sums are exact integers in both cases, so that the bits are the same.
 *
 * What it takes to be fast. A core does two products a cycle and reads twice a cycle, so no product may wait for a read
 * of its own: each vector of codes is read once for WORD_ROWS rows, and each pair of activations once for both columns
 * of a tile. Codes are widened between the products, for each group of rows anew: storing them as words takes more
 * time than the two operations, and the registers are full. A compiler does neither by itself: it takes whatever is
 * the same for all rows out of the loop, and stores it. */
#ifndef KERNELS_WORDS_BODY_H
#define KERNELS_WORDS_BODY_H

#include "compute/cpu/kernels/pass_body.h"

enum { WORD_ROWS = 4 };

INLINE bool has_few_rows(TensorType type) {
#define IS_TYPE(name) || type == TYPE_##name
    return false EACH_FEW_TYPE(IS_TYPE);
#undef IS_TYPE
}

/* Can the words of that type be made from its packed codes without unpacking them to bytes? */
INLINE bool has_direct_words(TensorType type) {
    const SliceForm *f = &slice_forms[type];
    return low_bits(type) == 8 || (low_bits(type) == 4 && f->high_bits == 0 && !codebook_codes(type));
}

/* Returns the codes of pairs of inputs as words: for group k / 2 of four inputs the first and the third, and for odd k
 * the second and the fourth. */
INLINE Vi wide_codes(TensorType type, const Unpacked *u, const unsigned char *codes, int k) {
    int g = k / 2, shift = k % 2 * 8;
    if (!has_direct_words(type)) return shift ? v_shift_words(u->w[g], 8) : v_and(u->w[g], v_set_int(0x00ff00ff));
    if (low_bits(type) == 8) {
        Vi bytes = v_load_int(codes + g * 64);
        return shift ? v_shift_words(bytes, 8) : v_and(bytes, v_set_int(0x00ff00ff));
    }
    Vi both = v_load_int(codes + g % 4 * 64);
    shift += g / 4 * 4;
    if (shift) both = v_shift_words(both, shift);
    return shift == 12 ? both : v_and(both, v_set_int(0x000f000f));
}

/* Returns the number of the pairs that come in place j: those whose codes share a byte come one after another. */
INLINE int word_order(TensorType type, int j) {
    return has_direct_words(type) && low_bits(type) == 4 && scale_parts(type) == 1 ? j / 4 * 2 + j / 2 % 2 * 8 + j % 2
                                                                                   : j;
}

/* Returns `codes`, of which the compiler no longer knows that they are the same for all rows. */
INLINE const unsigned char *codes_for_rows(const unsigned char *codes, const unsigned char *x) {
    __asm__("" : "+r"(codes) : "r"(x));
    return codes;
}

/* Returns minus the sum of the activations of part i of n_parts. */
INLINE int32_t minus_sum_of_part(const ActBlock *b, int i, int n_parts) {
    int32_t low = b->minus_sum_low;
    return n_parts == 1 ? b->minus_sum : i ? b->minus_sum - low : low;
}

/* Adds the share of a slice of both columns to the accumulators of n_rows rows: acc[column][row]. */
INLINE void add_rows_of_words(TensorType type, int n_rows, Unpacked u[COLUMNS_PER_TILE], const unsigned char *codes,
                              const unsigned char *x, size_t x_stride, Vf *const acc[COLUMNS_PER_TILE]) {
    int n_parts = scale_parts(type), n = 16 / n_parts;
    if (n_rows > 1) codes = codes_for_rows(codes, x);
    if (n_rows > 1 && !has_direct_words(type)) UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) keep_in_memory(u + c);
    UNROLL for (int i = 0; i < n_parts; i++) {
        Vi t[COLUMNS_PER_TILE][WORD_ROWS];
        UNROLL for (int r = 0; r < n_rows; r++) {
            const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
            Vi bias = bias_times(type, false, v_set_int(minus_sum_of_part(b, i, n_parts)));
            UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) t[c][r] = bias;
        }
        UNROLL for (int j = i * n; j < (i + 1) * n; j++) {
            int k = word_order(type, j);
            Vi w[COLUMNS_PER_TILE];
            UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) {
                w[c] = wide_codes(type, u + c, codes + c * LANES * 4, k);
                if (n_rows > 1) w[c] = v_in_register(w[c]);
            }
            UNROLL for (int r = 0; r < n_rows; r++) {
                const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
                Vi pair = v_set_4_bytes((const char *)b->plane + 4 * k);
                UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) t[c][r] = v_dot_words(t[c][r], w[c], pair);
            }
        }
        UNROLL for (int r = 0; r < n_rows; r++) UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) {
            const ActBlock *b = (const void *)(x + (size_t)r * x_stride);
            acc[c][r] = add_part(u + c, b, i, t[c][r], acc[c][r]);
            if (i == n_parts - 1) acc[c][r] = add_mins(type, u + c, b, acc[c][r]);
        }
    }
}

/* add_slice_of_tile for activations of words. */
INLINE void add_slice_of_words(TensorType type, int64_t n_rows, const unsigned char *codes, const unsigned char *scales,
                               int i_sub, const unsigned char *x, size_t x_stride, Vf (*acc)[BLOCK_ROWS_MAX]) {
    Unpacked u[COLUMNS_PER_TILE];
    Vf *at[COLUMNS_PER_TILE];
    int64_t r = 0;
    if (n_rows > 1) __asm__("" : "+r"(codes), "+r"(scales)); /* or each vector has an address that is kept in memory */
    UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) {
        if (!has_direct_words(type)) unpack_codes(type, codes + c * LANES * 4, u[c].w);
        unpack_scales(type, scales, i_sub, c, u + c);
        at[c] = acc[c];
    }
    for (; r + WORD_ROWS <= n_rows; r += WORD_ROWS, x += WORD_ROWS * x_stride) {
        add_rows_of_words(type, WORD_ROWS, u, codes, x, x_stride, at);
        UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) at[c] += WORD_ROWS;
    }
    if (has_few_rows(
            type)) { /* three comparisons: with branches inside branches, GCC makes code that takes a third longer */
        if (n_rows - r == 3) add_rows_of_words(type, 3, u, codes, x, x_stride, at);
        if (n_rows - r == 2) add_rows_of_words(type, 2, u, codes, x, x_stride, at);
        if (n_rows - r == 1) add_rows_of_words(type, 1, u, codes, x, x_stride, at);
        return;
    }
    for (; r < n_rows; r++, x += x_stride) {
        add_rows_of_words(type, 1, u, codes, x, x_stride, at);
        UNROLL for (int c = 0; c < COLUMNS_PER_TILE; c++) at[c]++;
    }
}

#endif

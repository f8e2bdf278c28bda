/* row_kernels.h - passes over a whole row of logits, whose cost matters where vocabularies are large: one table of
 * function pointers for each instruction set.
 *
 * row_kernels.c has the functions in plain C, which is their specification; src/compute/cpu/kernels has the other
 * tables, and all of them give the same bits. Device.rows (backend.h) is the table for the CPU that a device runs on.
 * The numbers of a row may be NaN or infinite unless a function says otherwise.
 */
#ifndef BASE_ROW_KERNELS_H
#define BASE_ROW_KERNELS_H

#include "base/rng.h"

#include <stdbool.h>

/* A token is a contender if it may still win a draw (gumbel_row.c). The token with logit x and random word w is one
 * where
 *
 *     bits((float)(w >> 1)) <= (x - max) * scale + offset            bits(): the bits of a float, as an integer
 *
 * in float, in the order written. The bits of a float, divided by 2^23, less 127, are its logarithm to base 2, at most
 * 0.09 too small. So this compares a logarithm, at the cost of a conversion. */
typedef struct Contest {
    float max, scale, offset;
} Contest;

typedef struct RowKernels {
    /* Whether no number is NaN or infinite. */
    bool (*is_finite)(const float *row, int32_t n);
    /* The lowest id among the greatest numbers; -1 if all are NaN or -inf. */
    int32_t (*argmax)(const float *row, int32_t n);
    /* Writes the ids of all numbers >= floor (except -inf) to ids ([n]) in rising order; returns how many there are. */
    int32_t (*above)(const float *row, int32_t n, float floor, int32_t *ids);
    /* The same for the blocks of four numbers from `begin` to `end`, multiples of 4: block i has numbers 4 i .. 4 i
     * + 3 of the row. blocks: [(end - begin) / 4] */
    int32_t (*blocks_above)(const float *row, int32_t begin, int32_t end, float floor, uint32_t *blocks);

    /* The sum of exp((row[i] - max) / temperature) over all numbers except NaN and -inf; `max` is the greatest of them
     * and finite, temperature > 0. Its relative error is below 1e-6. */
    double (*mass)(const float *row, int32_t n, float max, float temperature);
    /* The sum of exp(row[i] - max), likewise, in double precision: terms below e^-64 are left out, number i goes to
     * running sum i % 16, and the sums are folded as 16 -> 8 -> 4 -> 2 -> 1. */
    double (*exp_sum)(const float *row, int32_t n, float max);

    /* words[4 i .. 4 i + 3] = rng_words(seed, stream, a, blocks[i]) for i < n */
    void (*words)(uint64_t seed, RngStream stream, uint64_t a, const uint32_t *blocks, int32_t n, uint32_t *words);
    /* The indices into words [4 n_blocks] whose tokens are contenders, in rising order. Index 4 i + k belongs to number
     * 4 blocks[i] + k of the row. All blocks are whole. Returns how many there are. */
    int32_t (*contenders)(const Contest *c, const float *row, const uint32_t *blocks, const uint32_t *words,
                          int32_t n_blocks, int32_t *at);
} RowKernels;

extern const RowKernels row_kernels_plain;

/* ---- what the tables share ---------------------------------------------------------------------------- */

enum {
    ROW_SHORT_SUM = 32
}; /* terms of `mass` that are summed in float, in 4 lanes; everything else is summed in double */
/* Adds the terms of the last numbers of a row, fewer than ROW_SHORT_SUM, to its mass. */
double row_mass_rest(double mass, const float *row, int32_t n, float max, float temperature);

/* e^x = 2^k e^r, k = round(x / ln 2); e^r = 1 + r + r^2 (C2 + C3 r + ... + C11 r^9), interpolated at the Chebyshev
 * nodes of |r| <= ln(2) / 2, relative error 2e-17. */
#define ROW_EXP_LOW -64.0
#define ROW_EXP_LOG2E 0x1.71547652b82fep+0
#define ROW_EXP_ROUND 0x1.8p52 /* adding it rounds to an integer, which is then in the low bits */
#define ROW_EXP_LN2_HIGH 0x1.62e42feep-1
#define ROW_EXP_LN2_LOW 0x1.a39ef35793c76p-33
#define ROW_EXP_COEFFICIENTS \
    { \
        0x1p-1, 0x1.5555555555556p-3, 0x1.5555555553d68p-5, 0x1.11111111109b5p-7, 0x1.6c16c17889ef1p-10, \
            0x1.a01a01a7c2efep-13, 0x1.a019b9149a41cp-16, 0x1.71de0db2f6b19p-19, 0x1.28917c89a43a7p-22, \
            0x1.af389ecfc4b9cp-26 \
    }
enum { ROW_EXP_N = 10 };

#endif

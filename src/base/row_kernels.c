/* row_kernels.c - passes over a row of V logits in plain C, the specification of the tables in
 * src/compute/cpu/kernels.
 *
 * The problem: a draw at a temperature above 0 reads every logit of its row several times (to find the greatest, to
 * sum the mass that top-p needs, and to find the tokens that can win), may need a random number for each, and a
 * log-probability takes an exponential for each. With the C library's functions that is 1.6 ms and more for V =
 * 152,000, 6 % of a forward of 1.1 billion 8-bit weights; a step that accepts four drafts draws five times.
 *
 * The idea: numbers are compared in blocks of 64 without a branch, which compilers turn into vector code, and only
 * blocks that contain something are looked at closely; exponentials and random numbers are computed for many lanes at
 * once. No function of the C library is called, so that the bits are the same everywhere.
 *
 *     mass      e^x = 2^k e^r,  k = round(x / ln 2),  |r| <= ln(2) / 2:  e^r by its Taylor series to r^7 (the rest is
 *               below 6e-9), multiplications and additions rounded one by one; 2^k by its bits; k is rounded by adding
 *               1.5 * 2^23, which leaves it in the low bits of the sum. x <= 0, and below -87, where 2^k would leave
 *               the normal numbers, the term is 0. Sums of eight terms a lane are taken in float, everything else in
 *               double.
 *     exp_sum   the same in double, with fused multiply-adds: slow here on a CPU that has none
 *
 * The terms of NaN and -inf are 0, because a comparison with either is false. Proof: tests/base/test_row_kernels.c,
 * every table against plain loops and exp() in double, and against this one bit by bit. */
#include "base/row_kernels.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64, LANES = 4, N_SUMS = 16 };

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

static bool plain_is_finite(const float *row, int32_t n) {
    bool finite = true;
    for (int32_t i = 0; i < n; i++) finite = finite && fabsf(row[i]) < INFINITY;
    return finite;
}

static int any_above(const float block[BLOCK], float threshold) {
    int32_t above = 0;
    for (int32_t i = 0; i < BLOCK; i++) above |= block[i] > threshold;
    return above;
}

static int32_t plain_argmax(const float *row, int32_t n) {
    float best = -INFINITY;
    int32_t best_id = -1;
    for (int32_t begin = 0; begin < n; begin += BLOCK) {
        int32_t end = n - begin < BLOCK ? n : begin + BLOCK;
        if (end - begin == BLOCK && !any_above(row + begin, best)) continue;
        for (int32_t i = begin; i < end; i++)
            if (row[i] > best) best = row[i], best_id = i;
    }
    return best_id;
}

static int32_t plain_above(const float *row, int32_t n, float floor, int32_t *ids) {
    int32_t n_found = 0;
    float below = nextafterf(floor, -INFINITY); /* -inf is not above it, even if floor is -inf */
    for (int32_t begin = 0; begin < n; begin += BLOCK) {
        int32_t end = n - begin < BLOCK ? n : begin + BLOCK;
        if (end - begin == BLOCK && !any_above(row + begin, below)) continue;
        for (int32_t i = begin; i < end; i++) {
            ids[n_found] = i;
            n_found += row[i] > below;
        }
    }
    return n_found;
}

static int32_t plain_blocks_above(const float *row, int32_t begin, int32_t end, float floor, uint32_t *blocks) {
    int32_t n_found = 0;
    float below = nextafterf(floor, -INFINITY);
    for (int32_t i = begin; i < end; i += 4) {
        blocks[n_found] = (uint32_t)i / 4;
        n_found += row[i] > below || row[i + 1] > below || row[i + 2] > below || row[i + 3] > below;
    }
    return n_found;
}

/* ---- mass ------------------------------------------------------------------------------------------------ */

/* e^x for x <= 0; 0 below -87, for -inf and for NaN. */
static Floats exp_lanes(Floats x) {
    const Floats shift = {0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f};
    Ints is_normal = x >= -87.0f, k, bits;
    x = (Floats)((Ints)x & is_normal);
    Floats shifted = x * 1.44269504f + shift, whole = shifted - shift;
    k = (Ints)shifted - (Ints)shift;
    Floats r = x - whole * 0x1.62e4p-1f - whole * 0x1.7f7d1cp-20f; /* ln 2 in two parts: the first product is exact */
    Floats sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    bits = (Ints)sum + (k << 23);
    return (Floats)(bits & is_normal);
}

static Floats terms(const float *row, float max, float temperature) {
    Floats logits;
    memcpy(&logits, row, sizeof logits);
    return exp_lanes((logits - max) / temperature);
}

static double add_lanes(Floats v) { return ((double)v[0] + (double)v[1]) + ((double)v[2] + (double)v[3]); }

double row_mass_rest(double mass, const float *row, int32_t n, float max, float temperature) {
    for (int32_t i = 0; i < n; i += LANES) {
        float rest[LANES] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        memcpy(rest, row + i, (size_t)(n - i < LANES ? n - i : LANES) * sizeof *rest);
        mass += add_lanes(terms(rest, max, temperature));
    }
    return mass;
}

static double plain_mass(const float *row, int32_t n, float max, float temperature) {
    double mass = 0;
    int32_t i = 0;
    for (; n - i >= ROW_SHORT_SUM; i += ROW_SHORT_SUM) {
        Floats sum = {0};
        for (int32_t k = 0; k < ROW_SHORT_SUM; k += LANES) sum += terms(row + i + k, max, temperature);
        mass += add_lanes(sum);
    }
    return row_mass_rest(mass, row + i, n - i, max, temperature);
}

/* ---- sums in double -------------------------------------------------------------------------------------- */

static double exp_double(double x) {
    static const double c[ROW_EXP_N] = ROW_EXP_COEFFICIENTS;
    if (!(x >= ROW_EXP_LOW)) return 0;
    double rounded = fma(x, ROW_EXP_LOG2E, ROW_EXP_ROUND), k = rounded - ROW_EXP_ROUND;
    double r = fma(k, -ROW_EXP_LN2_LOW, fma(k, -ROW_EXP_LN2_HIGH, x)), p = c[ROW_EXP_N - 1];
    for (int i = ROW_EXP_N - 2; i >= 0; i--) p = fma(p, r, c[i]);
    double e = fma(p, r * r, r) + 1;
    uint64_t e_bits, k_bits;
    memcpy(&e_bits, &e, sizeof e_bits);
    memcpy(&k_bits, &rounded, sizeof k_bits);
    e_bits += k_bits << 52;
    memcpy(&e, &e_bits, sizeof e);
    return e;
}

static double plain_exp_sum(const float *row, int32_t n, float max) {
    double sums[N_SUMS] = {0};
    for (int32_t i = 0; i < n; i++) sums[i % N_SUMS] += exp_double((double)row[i] - (double)max);
    for (int m = N_SUMS / 2; m >= 1; m /= 2)
        for (int i = 0; i < m; i++) sums[i] += sums[i + m];
    return sums[0];
}

/* ---- draws ------------------------------------------------------------------------------------------------- */

static void plain_words(uint64_t seed, RngStream stream, uint64_t a, const uint32_t *blocks, int32_t n,
                        uint32_t *words) {
    for (int32_t i = 0; i < n; i++) rng_words(seed, stream, a, blocks[i], words + 4 * (int64_t)i);
}

static int32_t plain_contenders(const Contest *c, const float *row, const uint32_t *blocks, const uint32_t *words,
                                int32_t n_blocks, int32_t *at) {
    int32_t n_found = 0;
    for (int32_t i = 0; i < 4 * n_blocks; i++) {
        float half = (float)(int32_t)(words[i] >> 1);
        int32_t bits;
        memcpy(&bits, &half, sizeof bits);
        float x = row[4 * (int64_t)blocks[i / 4] + i % 4];
        at[n_found] = i;
        n_found += (float)bits <= (x - c->max) * c->scale + c->offset;
    }
    return n_found;
}

const RowKernels row_kernels_plain = {
    .is_finite = plain_is_finite,
    .argmax = plain_argmax,
    .above = plain_above,
    .blocks_above = plain_blocks_above,
    .mass = plain_mass,
    .exp_sum = plain_exp_sum,
    .words = plain_words,
    .contenders = plain_contenders,
};

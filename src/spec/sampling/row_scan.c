/* row_scan.c - passes over a row of V logits, several tokens at a time.
 *
 * The problem: a draw at a temperature above 0 reads every logit of its row three times (for the greatest; for the
 * mass that top-p needs; for those that can be in the top-p set), and one of these passes takes an exponential for
 * each. For V = 128,000 that was 2.6 ms a token with expf, 6 % of a forward of 1.1 billion 8-bit weights; a step that
 * accepts four drafts draws five times.
 *
 * The idea: comparisons over blocks of 64 without a branch, which compilers turn into vector code, and a closer look
 * only at blocks that contain something; and an exponential for four lanes at once, in plain C with the vector
 * extension that gcc and clang share, so that the bits are the same everywhere.
 *
 *     e^x = 2^k e^r,  k = round(x / ln 2),  |r| <= ln(2) / 2:  e^r by its Taylor series to r^7 (the rest is below 6e-9)
 *     2^k by its bits; k is rounded by adding 1.5 * 2^23, which leaves it in the low bits of the sum
 *
 * x <= 0 here, and below -87, where 2^k would leave the normal numbers, the term is 0. The terms of NaN and -inf are
 * 0 too, because a comparison with either is false. Sums of eight terms a lane are taken in float, everything else in
 * double. Proof: tests/unit/test_row_scan.c, against exp() in double. */
#include "spec/sampling/row_scan.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64, LANES = 4, SHORT_SUM = 8 };

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

static int any_above(const float block[BLOCK], float threshold) {
    int32_t above = 0;
    for (int32_t i = 0; i < BLOCK; i++) above |= block[i] > threshold;
    return above;
}

int32_t row_argmax(const float *row, int32_t n) {
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

double row_mass(const float *row, int32_t n, float max, float temperature) {
    double mass = 0;
    int32_t i = 0;
    for (; n - i >= SHORT_SUM * LANES; i += SHORT_SUM * LANES) {
        Floats sum = {0};
        for (int32_t k = 0; k < SHORT_SUM; k++) sum += terms(row + i + k * LANES, max, temperature);
        mass += add_lanes(sum);
    }
    for (; i < n; i += LANES) {
        float rest[LANES] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        memcpy(rest, row + i, (size_t)(n - i < LANES ? n - i : LANES) * sizeof *rest);
        mass += add_lanes(terms(rest, max, temperature));
    }
    return mass;
}

int32_t row_above(const float *row, int32_t n, float floor, int32_t *ids) {
    int32_t n_found = 0;
    float below = nextafterf(floor, -INFINITY); /* and -inf is above nothing */
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

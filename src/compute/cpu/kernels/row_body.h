/* row_body.h - passes over a row of logits (base/row_kernels.h) for an instruction set; included once for each width of
 * vectors, after the header of the vectors, with ROW_TABLE (the variable, declared in tables.h) defined. The operations
 * and the order of sums are those of base/row_kernels.c.
 *
 * row_mass computes the terms of a chunk first and adds them in a second pass in lanes of four, because the order of
 * its sums is defined for vectors of four. */
#include "base/row_kernels.h"

#include <math.h>
#include <string.h>

enum { GROUP = 64, MASS_CHUNK = 512 };

/* ---- comparisons ------------------------------------------------------------------------------------------ */

INLINE bool any_of_group(const float *group, Vf threshold) {
    uint32_t any = 0;
    UNROLL for (int i = 0; i < GROUP; i += LANES) any |= v_mask_gt(v_load(group + i), threshold);
    return any != 0;
}

static bool row_is_finite(const float *row, int32_t n) {
    int32_t begin = 0;
    for (; n - begin >= GROUP; begin += GROUP) {
        uint32_t finite = UINT32_MAX;
        UNROLL for (int i = 0; i < GROUP; i += LANES)
            finite &= v_mask_gt(v_set(INFINITY), v_abs(v_load(row + begin + i)));
        if (finite != (1u << LANES) - 1) return false;
    }
    return row_kernels_plain.is_finite(row + begin, n - begin);
}

static int32_t row_argmax(const float *row, int32_t n) {
    float best = -INFINITY;
    int32_t best_id = -1, begin = 0;
    for (; n - begin >= GROUP; begin += GROUP) {
        if (!any_of_group(row + begin, v_set(best))) continue;
        for (int32_t i = begin; i < begin + GROUP; i++)
            if (row[i] > best) best = row[i], best_id = i;
    }
    for (int32_t i = begin; i < n; i++)
        if (row[i] > best) best = row[i], best_id = i;
    return best_id;
}

static int32_t row_above(const float *row, int32_t n, float floor, int32_t *ids) {
    float below = nextafterf(floor, -INFINITY);
    int32_t n_found = 0, i = 0;
    for (; n - i >= LANES; i += LANES)
        for (uint32_t mask = v_mask_gt(v_load(row + i), v_set(below)); mask; mask &= mask - 1)
            ids[n_found++] = i + __builtin_ctz(mask);
    for (; i < n; i++)
        if (row[i] > below) ids[n_found++] = i;
    return n_found;
}

static int32_t row_blocks_above(const float *row, int32_t begin, int32_t end, float floor, uint32_t *blocks) {
    float below = nextafterf(floor, -INFINITY);
    int32_t n_found = 0, i = begin;
    while (i < end) {
        int32_t group_end = end - i >= GROUP ? i + GROUP : end;
        if (group_end - i == GROUP && !any_of_group(row + i, v_set(below))) {
            i = group_end;
            continue;
        }
        for (; group_end - i >= LANES; i += LANES) {
            uint32_t mask = v_mask_gt(v_load(row + i), v_set(below));
            UNROLL for (int k = 0; k < LANES / 4; k++) {
                blocks[n_found] = (uint32_t)i / 4 + (uint32_t)k;
                n_found += (mask >> 4 * k & 15) != 0;
            }
        }
        for (; i < group_end; i += 4) { /* fewer than LANES numbers at the end */
            blocks[n_found] = (uint32_t)i / 4;
            n_found += row[i] > below || row[i + 1] > below || row[i + 2] > below || row[i + 3] > below;
        }
    }
    return n_found;
}

/* ---- sums of exponentials --------------------------------------------------------------------------------- */

/* Computes the function exp_lanes of base/row_kernels.c. Below -87 the intermediate results mean nothing, because the
 * result is 0. */
INLINE Vf v_exp_unfused(Vf x) {
    const Vf shift = v_set(0x1.8p23f), one = v_set(1);
    Vf shifted = v_add(v_mul(x, v_set(1.44269504f)), shift), whole = v_sub(shifted, shift);
    Vi k = v_sub_int(v_as_int(shifted), v_as_int(shift));
    Vf r = v_sub(v_sub(x, v_mul(whole, v_set(0x1.62e4p-1f))), v_mul(whole, v_set(0x1.7f7d1cp-20f)));
    Vf sum = v_add(v_mul(r, v_set(1.0f / 5040)), v_set(1.0f / 720));
    sum = v_add(v_mul(sum, r), v_set(1.0f / 120));
    sum = v_add(v_mul(sum, r), v_set(1.0f / 24));
    sum = v_add(v_mul(sum, r), v_set(1.0f / 6));
    sum = v_add(v_mul(sum, r), v_set(0.5f));
    sum = v_add(v_mul(sum, r), one);
    sum = v_add(v_mul(sum, r), one);
    Vf e = v_as_float(v_add_int(v_as_int(sum), v_shift_left(k, 23)));
    return v_where_ge(x, -87.0f, e);
}

typedef float Four __attribute__((vector_size(16)));

/* Returns mass plus the n terms of a chunk; n is a multiple of ROW_SHORT_SUM. */
INLINE double add_terms(double mass, const float *terms, int32_t n) {
    for (int32_t i = 0; i < n; i += ROW_SHORT_SUM) {
        Four sum = {0}, term;
        UNROLL for (int k = 0; k < ROW_SHORT_SUM; k += 4) {
            memcpy(&term, terms + i + k, sizeof term);
            sum += term;
        }
        mass += ((double)sum[0] + (double)sum[1]) + ((double)sum[2] + (double)sum[3]);
    }
    return mass;
}

/* Computes the terms of a row. The caller leaves the division out where the temperature is 1, which changes no bit. */
INLINE void fill_terms(const float *row, int32_t n, float max, float temperature, bool divides, float *terms) {
    for (int32_t i = 0; i < n; i += LANES) {
        Vf x = v_sub(v_load(row + i), v_set(max));
        v_store(terms + i, v_exp_unfused(divides ? v_div(x, v_set(temperature)) : x));
    }
}

static double row_mass(const float *row, int32_t n, float max, float temperature) {
    float terms[MASS_CHUNK];
    double mass = 0;
    int32_t n_whole = n / ROW_SHORT_SUM * ROW_SHORT_SUM;
    for (int32_t i = 0; i < n_whole; i += MASS_CHUNK) {
        int32_t n_chunk = n_whole - i < MASS_CHUNK ? n_whole - i : MASS_CHUNK;
        if (temperature == 1) fill_terms(row + i, n_chunk, max, temperature, false, terms);
        else fill_terms(row + i, n_chunk, max, temperature, true, terms);
        mass = add_terms(mass, terms, n_chunk);
    }
    return row_mass_rest(mass, row + n_whole, n - n_whole, max, temperature);
}

/* Computes the function exp_double of base/row_kernels.c. */
INLINE Vd d_exp(Vd x) {
    static const double c[ROW_EXP_N] = ROW_EXP_COEFFICIENTS;
    Vd rounded = d_fma(x, d_set(ROW_EXP_LOG2E), d_set(ROW_EXP_ROUND)), k = d_sub(rounded, d_set(ROW_EXP_ROUND));
    Vd r = d_fma(k, d_set(-ROW_EXP_LN2_LOW), d_fma(k, d_set(-ROW_EXP_LN2_HIGH), x)), p = d_set(c[ROW_EXP_N - 1]);
    UNROLL for (int i = ROW_EXP_N - 2; i >= 0; i--) p = d_fma(p, r, d_set(c[i]));
    Vd e = d_add(d_fma(p, d_mul(r, r), r), d_set(1));
    return d_where_ge(x, ROW_EXP_LOW, d_scale(e, rounded));
}

enum { D_LANES = LANES / 2, D_PARTS = 16 / D_LANES };

INLINE void exp_sum_16(const float *row, Vd max, Vd s[D_PARTS]) {
    UNROLL for (int j = 0; j < D_PARTS; j++) s[j] = d_add(s[j], d_exp(d_sub(d_widen(row + j * D_LANES), max)));
}

static double row_exp_sum(const float *row, int32_t n, float max) {
    Vd s[D_PARTS], m = d_set((double)max);
    double sums[16];
    float last[16];
    int32_t n_whole = n / 16 * 16;
    for (int i = 0; i < 16; i++) last[i] = n_whole + i < n ? row[n_whole + i] : -INFINITY; /* -INFINITY adds 0 */
    UNROLL for (int j = 0; j < D_PARTS; j++) s[j] = d_set(0);
    for (int32_t i = 0; i < n_whole; i += 16) exp_sum_16(row + i, m, s);
    exp_sum_16(last, m, s);
    UNROLL for (int j = 0; j < D_PARTS; j++) d_store(sums + j * D_LANES, s[j]);
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0];
}

/* ---- draws ------------------------------------------------------------------------------------------------ */

static void row_words(uint64_t seed, RngStream stream, uint64_t a, const uint32_t *blocks, int32_t n, uint32_t *words) {
    const Philox p = v_philox_begin(seed, (uint32_t)stream, a);
    int32_t i = 0;
    for (; n - i >= PHILOX_BLOCKS; i += PHILOX_BLOCKS) v_philox(&p, blocks + i, words + 4 * (int64_t)i);
    if (i == n) return;
    uint32_t rest[PHILOX_BLOCKS] = {0}, rest_words[4 * PHILOX_BLOCKS];
    memcpy(rest, blocks + i, (size_t)(n - i) * sizeof *rest);
    v_philox(&p, rest, rest_words);
    memcpy(words + 4 * (int64_t)i, rest_words, (size_t)(n - i) * 4 * sizeof *words);
}

static int32_t row_contenders(const Contest *c, const float *row, const uint32_t *blocks, const uint32_t *words,
                              int32_t n_blocks, int32_t *at) {
    enum { PER_VECTOR = LANES / 4 };
    int32_t n_found = 0, i = 0;
    for (; n_blocks - i >= PER_VECTOR; i += PER_VECTOR) {
        Vf bits = v_from_int(v_as_int(v_from_int(v_shift_right(v_load_int(words + 4 * (int64_t)i), 1))));
        Vf x = v_sub(v_load_blocks(row, blocks + i), v_set(c->max));
        Vf limit = v_add(v_mul(x, v_set(c->scale)), v_set(c->offset));
        for (uint32_t mask = v_mask_ge(limit, bits); mask; mask &= mask - 1)
            at[n_found++] = 4 * i + __builtin_ctz(mask);
    }
    if (i == n_blocks) return n_found;
    int32_t n_rest = row_kernels_plain.contenders(c, row, blocks + i, words + 4 * (int64_t)i, n_blocks - i,
                                                  at + n_found);
    for (int32_t k = 0; k < n_rest; k++) at[n_found + k] += 4 * i;
    return n_found + n_rest;
}

const RowKernels ROW_TABLE = {
    .is_finite = row_is_finite,
    .argmax = row_argmax,
    .above = row_above,
    .blocks_above = row_blocks_above,
    .mass = row_mass,
    .exp_sum = row_exp_sum,
    .words = row_words,
    .contenders = row_contenders,
};

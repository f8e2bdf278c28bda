/* test_quant.c - the quantisers: compares fits with exhaustive searches, and blocks with plain rounding and in the
 * order of their bits; tests hostile numbers, importances, and the choice of types. */
#include "testing.h"

#include "base/rng.h"
#include "gguf/tensor_type.h"
#include "gguf/quantize.h"
#include "gguf/blocks_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROW = 2048 };

static double gauss(uint64_t seed, uint64_t i) {
    double u = rng_uniform(seed, RNG_TEST, i, 0), v = rng_uniform(seed, RNG_TEST, i, 1);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* ---- fits -------------------------------------------------------------------------------------------- */

static double error_at(Fit fit, const float *x, const float *w, int n, float least, float most) {
    float q[FIT_MAX];
    fit_codes(fit, x, n, least, most, q);
    return fit_error(fit, x, w, n, q);
}

/* Returns the best of many scales for one offset, found by trying each. */
static double exhaustive(const float *x, const float *w, int n, float least, float most, float low) {
    enum { N_SCALES = 2000 };
    double best = INFINITY, widest = 0;
    for (int i = 0; i < n; i++) widest = fmax(widest, fabs((double)x[i] - (double)low));
    for (int sign = -1; sign <= 1; sign += 2)
        for (int i = 1; i <= N_SCALES; i++) {
            Fit fit = {(float)(sign * widest * i / N_SCALES), low};
            best = fmin(best, error_at(fit, x, w, n, least, most));
        }
    return best;
}

static void a_scale_is_close_to_the_best_of_thousands(void **state) {
    (void)state;
    double found = 0, best = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        float x[32], w[32];
        for (int i = 0; i < 32; i++) {
            x[i] = (float)gauss(seed, (uint64_t)i);
            w[i] = (float)rng_uniform(seed, RNG_TEST, (uint64_t)i, 2);
        }
        Fit fit = fit_scale(x, w, 32, -8, 7);
        double e = error_at(fit, x, w, 32, -8, 7), least = exhaustive(x, w, 32, -8, 7, 0);
        assert_true(e < 1.25 * least);
        found += e, best += least;
    }
    print_message("%.4f of the least error\n", found / best);
    if (found > 1.005 * best) fail_msg("%g found, %g possible", found, best);
}

static void a_range_is_close_to_the_best_of_many(void **state) {
    (void)state;
    enum { N_LOWS = 50 };
    double found = 0, best = 0;
    for (uint64_t seed = 0; seed < 12; seed++) {
        float x[32], w[32];
        for (int i = 0; i < 32; i++) {
            x[i] = (float)gauss(seed, (uint64_t)i) + 0.3f;
            w[i] = (float)rng_uniform(seed, RNG_TEST, (uint64_t)i, 2);
        }
        Fit fit = fit_range(x, w, 32, 15, true);
        assert_true(fit.low <= 0);
        double least = INFINITY;
        for (int i = 0; i <= N_LOWS; i++) least = fmin(least, exhaustive(x, w, 32, 0, 15, -3.0f * (float)i / N_LOWS));
        found += error_at(fit, x, w, 32, 0, 15), best += least;
    }
    print_message("%.4f of the least error\n", found / best);
    if (found > 1.05 * best) fail_msg("%g found, %g possible", found, best);
}

static void a_range_of_positive_numbers_may_begin_above_zero(void **state) {
    (void)state;
    float x[32], w[32];
    for (int i = 0; i < 32; i++) x[i] = 100 + (float)i / 31, w[i] = 1;
    Fit free_fit = fit_range(x, w, 32, 31, false), bound = fit_range(x, w, 32, 31, true);
    assert_true(free_fit.low > 99.9f && error_at(free_fit, x, w, 32, 0, 31) < 1e-3);
    assert_true(bound.low <= 0);
}

/* ---- blocks ------------------------------------------------------------------------------------------ */

static const TensorType searched[] = {TYPE_Q4_0,    TYPE_Q4_1,  TYPE_Q5_0,    TYPE_Q5_1,   TYPE_Q4_K,
                                      TYPE_Q5_K,    TYPE_Q6_K,  TYPE_Q2_K,    TYPE_Q3_K,   TYPE_IQ4_NL,
                                      TYPE_IQ4_XS,  TYPE_MXFP4, TYPE_IQ2_XXS, TYPE_IQ2_XS, TYPE_IQ2_S,
                                      TYPE_IQ3_XXS, TYPE_IQ3_S, TYPE_IQ1_S,   TYPE_IQ1_M,  TYPE_NVFP4};
enum { N_SEARCHED = sizeof searched / sizeof *searched };

/* Rows that resemble weights: Gaussian, with some outliers; depending on the kind also one-sided, equal or zero. */
static void make_row(uint64_t seed, int kind, float *x) {
    for (int i = 0; i < ROW; i++) {
        double g = gauss(seed, (uint64_t)i), outlier = rng_uniform(seed, RNG_TEST, (uint64_t)i, 3) < 0.01 ? 6 : 1;
        x[i] = (float)(kind == 0   ? g * outlier
                       : kind == 1 ? fabs(g) + 2
                       : kind == 2 ? 0.125
                       : kind == 3 ? 0
                                   : g * 1e-4);
    }
}

static double squares(const float *x, const float *y, const float *w, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]) * (w ? (double)w[i] : 1);
    return sum;
}

/* Returns the sum of squared errors of a row that was quantised by the search or, without it, by rounding. */
static double row_error(TensorType type, const float *x, const float *importance, bool by_search) {
    static uint8_t bytes[ROW * 4];
    static float y[ROW];
    if (by_search) quant_row(type, x, importance, ROW, bytes);
    else blocks_quantize(type, x, ROW, bytes);
    assert_true(finite_weights(type, bytes, ROW));
    blocks_dequantize(type, bytes, ROW, y);
    return squares(x, y, importance, ROW);
}

static void searched_blocks_are_better_than_rounded_ones(void **state) {
    (void)state;
    /* The greatest part of the rounding error that may remain on Gaussian rows with outliers. */
    static const double part[N_SEARCHED] = {0.97, 0.85,  0.97, 0.85, 0.85, 0.86,  0.94,  0.68, 0.94, 0.94,
                                            0.94, 0.995, 0.93, 0.95, 0.95, 0.995, 0.995, 0.85, 0.9,  0.87};
    float x[ROW];
    for (int t = 0; t < N_SEARCHED; t++) {
        double found = 0, rounded = 0;
        for (uint64_t seed = 0; seed < 8; seed++) {
            make_row(seed, 0, x);
            found += row_error(searched[t], x, NULL, true);
            rounded += row_error(searched[t], x, NULL, false);
        }
        print_message("%s: %.3f of the error of rounding\n", tensor_type_info(searched[t])->name, found / rounded);
        if (found > part[t] * rounded) fail_msg("that is more than %.2f", part[t]);
    }
}

static void no_block_is_worse_than_rounding(void **state) {
    (void)state;
    float x[ROW], w[ROW];
    for (int t = 0; t < N_SEARCHED; t++)
        for (int kind = 0; kind < 5; kind++) {
            make_row(77, kind, x);
            /* importances that cancel the weights that quant_row gives to large numbers, within one block */
            for (int i = 0; i < ROW; i++) w[i] = (float)rng_uniform(5, RNG_TEST, (uint64_t)i, 0);
            double found = row_error(searched[t], x, NULL, true), rounded = row_error(searched[t], x, NULL, false);
            if (found > 1.05 * rounded + 1e-12) fail_msg("type %d, kind %d: %g > %g", t, kind, found, rounded);
            found = row_error(searched[t], x, w, true), rounded = row_error(searched[t], x, w, false);
            if (found > 1.05 * rounded + 1e-12) fail_msg("type %d, kind %d: %g > %g", t, kind, found, rounded);
        }
}

/* Numbers that were read from blocks become blocks that give nearly the same numbers, within a fraction of the step. */
static void quantised_numbers_hardly_change_again(void **state) {
    (void)state;
    static uint8_t bytes[ROW * 4];
    float x[ROW], y[ROW], zero[ROW] = {0};
    for (int t = 0; t < N_SEARCHED; t++) {
        make_row(3, 0, x);
        quant_row(searched[t], x, NULL, ROW, bytes);
        blocks_dequantize(searched[t], bytes, ROW, y);
        double first = squares(x, y, NULL, ROW), again = row_error(searched[t], y, NULL, true);
        if (again > 0.3 * first) fail_msg("type %d: %g after %g, of %g", t, again, first, squares(x, zero, NULL, ROW));
    }
}

static void important_inputs_get_smaller_errors(void **state) {
    (void)state;
    float x[ROW], importance[ROW];
    make_row(9, 0, x);
    for (int i = 0; i < ROW; i++) importance[i] = i % 8 == 3 ? 30 : 1;
    for (int t = 0; t < N_SEARCHED; t++) {
        static uint8_t plain[ROW * 4], weighted[ROW * 4];
        float y[ROW], z[ROW];
        quant_row(searched[t], x, NULL, ROW, plain);
        quant_row(searched[t], x, importance, ROW, weighted);
        blocks_dequantize(searched[t], plain, ROW, y);
        blocks_dequantize(searched[t], weighted, ROW, z);
        double before = squares(x, y, importance, ROW), after = squares(x, z, importance, ROW);
        if (after > 0.95 * before) fail_msg("type %d: %g, and %g without importances", t, after, before);
    }
}

static void hostile_numbers_give_finite_blocks(void **state) {
    (void)state;
    static const float values[] = {1e30f, -1e30f, 3e38f, 1e-40f, -1e-45f, 65504.0f, 7e6f};
    static uint8_t bytes[ROW * 4];
    float x[ROW], importance[ROW];
    for (int t = 0; t < N_SEARCHED; t++)
        for (int k = 0; k < 7; k++) {
            make_row((uint64_t)k, 0, x);
            for (int i = 0; i < ROW; i++) importance[i] = i % 2 ? 0 : 1e30f;
            for (int i = k; i < ROW; i += 31) x[i] = values[k];
            quant_row(searched[t], x, importance, ROW, bytes);
            assert_true(finite_weights(searched[t], bytes, ROW));
            memset(importance, 0, sizeof importance);
            quant_row(searched[t], x, importance, ROW, bytes);
            assert_true(finite_weights(searched[t], bytes, ROW));
        }
}

/* ---- the choice of types ----------------------------------------------------------------------------- */

static TensorType chosen(const char *mix, const QuantShape *shape, const char *tensor) {
    const GgufTensor t = {.name = tensor, .n_dims = 2, .dims = {256, 256, 1, 1}};
    assert_true(quant_is_matrix(&t));
    return quant_mix_type(quant_mix_find(mix), shape, &t);
}

static void mixtures_choose_as_users_expect(void **state) {
    (void)state;
    QuantShape shape = {.n_layer = 32};
    for (int i = 0; i < 32; i++) { /* layers 0-3, 28-31 and every third layer between: 6, 9, ... 27 */
        char v[32], down[32], k[32];
        snprintf(v, sizeof v, "blk.%d.attn_v.weight", i);
        snprintf(down, sizeof down, "blk.%d.ffn_down.weight", i);
        snprintf(k, sizeof k, "blk.%d.attn_k.weight", i);
        bool more = i < 4 || i >= 28 || i % 3 == 0;
        assert_int_equal(chosen("Q4_K_M", &shape, v), more ? TYPE_Q6_K : TYPE_Q4_K);
        assert_int_equal(chosen("q4_k", &shape, down), more ? TYPE_Q6_K : TYPE_Q4_K);
        assert_int_equal(chosen("Q5_K_M", &shape, v), more ? TYPE_Q6_K : TYPE_Q5_K);
        assert_int_equal(chosen("Q4_K_S", &shape, v), i < 4 ? TYPE_Q5_K : TYPE_Q4_K);
        assert_int_equal(chosen("Q4_K_S", &shape, down), i < 4 ? TYPE_Q5_K : TYPE_Q4_K);
        assert_int_equal(chosen("Q5_K_S", &shape, v), TYPE_Q5_K);
        assert_int_equal(chosen("Q4_K_M", &shape, k), TYPE_Q4_K);
        assert_int_equal(chosen("Q4_0", &shape, down), TYPE_Q4_0);
    }
    assert_int_equal(chosen("Q4_0", &shape, "output.weight"), TYPE_Q6_K);
    assert_int_equal(chosen("Q8_0", &shape, "output.weight"), TYPE_Q8_0);
    assert_int_equal(chosen("F16", &shape, "output.weight"), TYPE_F16);
    assert_int_equal(chosen("Q4_K_M", &shape, "token_embd.weight"), TYPE_Q4_K);
    shape = (QuantShape){.n_layer = 80, .shares_values = true};
    assert_int_equal(chosen("Q4_K_M", &shape, "blk.11.attn_v.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("Q4_K_M", &shape, "blk.12.attn_v.weight"), TYPE_Q6_K);
    assert_int_equal(chosen("Q4_K_S", &shape, "blk.70.attn_v.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("Q4_K_S", &shape, "blk.70.attn_q.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("Q5_K_S", &shape, "blk.70.attn_v.weight"), TYPE_Q5_K);
    shape = (QuantShape){.n_layer = 32};
    shape.is_tied = shape.has_importance = true;
    assert_int_equal(chosen("Q4_K_M", &shape, "token_embd.weight"), TYPE_Q6_K);
    assert_int_equal(chosen("Q4_0", &shape, "blk.3.ffn_down.weight"), TYPE_Q4_1);
    assert_int_equal(chosen("Q4_0", &shape, "blk.99999999999999999999.ffn_down.weight"), TYPE_Q4_0);
    assert_null(quant_mix_find("Q4"));
}

static void small_mixtures_choose_as_users_expect(void **state) {
    (void)state;
    QuantShape shape = {.n_layer = 32};
    assert_int_equal(chosen("Q3_K", &shape, "blk.1.attn_v.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("Q3_K_M", &shape, "blk.2.attn_v.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("Q3_K_M", &shape, "blk.1.ffn_down.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("Q3_K_M", &shape, "blk.2.ffn_down.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("Q3_K_L", &shape, "blk.9.attn_output.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("Q3_K_S", &shape, "blk.9.attn_v.weight"), TYPE_Q3_K);
    assert_int_equal(chosen("Q2_K", &shape, "blk.9.attn_v.weight"), TYPE_Q3_K);
    assert_int_equal(chosen("Q2_K", &shape, "blk.9.attn_k.weight"), TYPE_Q2_K);
    assert_int_equal(chosen("Q2_K", &shape, "output.weight"), TYPE_Q6_K);
    assert_int_equal(chosen("IQ4_XS", &shape, "blk.3.ffn_down.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("IQ4_XS", &shape, "blk.9.attn_v.weight"), TYPE_IQ4_XS);
    shape.shares_by_four = shape.has_importance = true;
    assert_int_equal(chosen("Q2_K", &shape, "blk.9.attn_v.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("IQ4_NL", &shape, "blk.9.attn_v.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("IQ4_NL", &shape, "blk.3.ffn_down.weight"), TYPE_IQ4_NL);
    shape = (QuantShape){.n_layer = 80, .shares_values = true};
    assert_int_equal(chosen("Q3_K_M", &shape, "blk.9.attn_v.weight"), TYPE_Q5_K);
    const GgufTensor experts = {.name = "blk.0.ffn_up_exps.weight", .n_dims = 3, .dims = {256, 256, 4, 1}};
    assert_int_equal(quant_mix_type(quant_mix_find("MXFP4_MOE"), &shape, &experts), TYPE_MXFP4);
    assert_int_equal(chosen("MXFP4_MOE", &shape, "blk.0.attn_q.weight"), TYPE_Q8_0);
}

static void mixtures_of_three_bits_and_less_choose_as_users_expect(void **state) {
    (void)state;
    QuantShape shape = {.n_layer = 32, .has_importance = true};
    assert_int_equal(chosen("IQ3_XXS", &shape, "blk.9.attn_v.weight"), TYPE_IQ3_XXS);
    assert_int_equal(chosen("IQ3_XXS", &shape, "blk.9.attn_k.weight"), TYPE_IQ2_S);
    assert_int_equal(chosen("IQ3_XXS", &shape, "blk.0.ffn_down.weight"), TYPE_IQ3_XXS);
    assert_int_equal(chosen("IQ3_XXS", &shape, "output.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("IQ3_S", &shape, "output.weight"), TYPE_Q6_K);
    assert_int_equal(chosen("IQ3_XXS", &shape, "token_embd.weight"), TYPE_IQ3_S);
    assert_int_equal(chosen("IQ3_XS", &shape, "blk.3.ffn_up.weight"), TYPE_IQ3_S);
    assert_int_equal(chosen("IQ3_XS", &shape, "blk.4.ffn_up.weight"), TYPE_IQ3_XXS);
    assert_int_equal(chosen("IQ3_M", &shape, "blk.4.attn_v.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("IQ2_M", &shape, "blk.4.attn_v.weight"), TYPE_IQ3_S);
    assert_int_equal(chosen("IQ2_S", &shape, "blk.4.attn_q.weight"), TYPE_IQ2_XS);
    assert_int_equal(chosen("IQ2_XS", &shape, "blk.4.attn_v.weight"), TYPE_Q2_K);
    assert_int_equal(chosen("IQ2_XXS", &shape, "blk.3.ffn_down.weight"), TYPE_Q2_K);
    assert_int_equal(chosen("IQ2_XXS", &shape, "blk.4.ffn_down.weight"), TYPE_IQ2_XXS);
    assert_int_equal(chosen("IQ1_S", &shape, "blk.4.attn_output.weight"), TYPE_IQ2_XXS);
    assert_int_equal(chosen("IQ1_M", &shape, "token_embd.weight"), TYPE_Q2_K);
    shape = (QuantShape){.n_layer = 80, .shares_values = true, .shares_by_four = true};
    assert_int_equal(chosen("IQ2_XS", &shape, "blk.9.attn_v.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("IQ3_S", &shape, "blk.9.attn_v.weight"), TYPE_Q5_K);
    assert_int_equal(chosen("IQ3_XXS", &shape, "blk.9.ffn_down.weight"), TYPE_Q4_K); /* without an importance matrix */
    assert_int_equal(chosen("IQ3_XXS", &shape, "blk.10.ffn_down.weight"), TYPE_Q3_K);
    shape = (QuantShape){.n_layer = 32, .has_experts = true};
    assert_int_equal(chosen("IQ2_XXS", &shape, "blk.9.attn_v.weight"), TYPE_Q4_K);
    assert_true(quant_needs_importance(TYPE_IQ2_XS) && !quant_needs_importance(TYPE_IQ2_S));
}

/* The matrices of experts follow the rules of the single matrix that they replace. */
static void experts_choose_as_users_expect(void **state) {
    (void)state;
    const QuantShape shape = {.n_layer = 32};
    assert_int_equal(chosen("Q4_K_M", &shape, "blk.0.ffn_down_exps.weight"), TYPE_Q6_K);
    assert_int_equal(chosen("Q4_K_M", &shape, "blk.0.ffn_down_shexp.weight"), TYPE_Q6_K);
    assert_int_equal(chosen("Q4_K_M", &shape, "blk.5.ffn_down_exps.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("Q4_K_M", &shape, "blk.0.ffn_up_exps.weight"), TYPE_Q4_K);
    assert_int_equal(chosen("IQ2_M", &shape, "blk.0.ffn_down_exps.weight"), TYPE_IQ3_S);
    assert_int_equal(chosen("Q4_K_M", &shape, "blk.0.ffn_downs.weight"), TYPE_Q4_K);
}

static void odd_rows_fall_back(void **state) {
    (void)state;
    assert_int_equal(quant_fallback(TYPE_Q4_K, 512), TYPE_Q4_K);
    assert_int_equal(quant_fallback(TYPE_Q4_K, 96), TYPE_Q5_0);
    assert_int_equal(quant_fallback(TYPE_Q5_K, 96), TYPE_Q5_1);
    assert_int_equal(quant_fallback(TYPE_Q6_K, 96), TYPE_Q8_0);
    assert_int_equal(quant_fallback(TYPE_Q6_K, 33), TYPE_F16);
    assert_int_equal(quant_fallback(TYPE_F16, 1), TYPE_F16);
    assert_int_equal(quant_fallback(TYPE_Q2_K, 96), TYPE_IQ4_NL);
    assert_int_equal(quant_fallback(TYPE_Q3_K, 33), TYPE_F16);
    assert_int_equal(quant_fallback(TYPE_IQ4_XS, 96), TYPE_IQ4_NL);
    assert_int_equal(quant_fallback(TYPE_MXFP4, 48), TYPE_F16);
    assert_int_equal(quant_fallback(TYPE_IQ2_XXS, 96), TYPE_IQ4_NL);
    assert_int_equal(quant_fallback(TYPE_IQ3_S, 48), TYPE_F16);
}

static void not_every_tensor_is_a_matrix(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int n_dims;
        int64_t rows;
        bool is_matrix;
    } cases[] = {
        {"blk.0.attn_q.weight", 2, 8, true},
        {"blk.0.ffn_gate_exps.weight", 3, 8, true},
        {"blk.0.attn_norm.weight", 1, 1, false},
        {"blk.0.attn_q.bias", 1, 1, false},
        {"blk.0.ffn_gate_inp.weight", 2, 8, false},
        {"blk.0.attn_q_norm.weight", 2, 8, false},
        {"output.weight", 2, 1, false},
        {"rope_freqs.weight", 1, 1, false},
        {"blk.0.ssm_conv1d.weight", 2, 8, false},
        {"blk.0.ssm_out.weight", 2, 8, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const GgufTensor t = {.name = cases[i].name, .n_dims = cases[i].n_dims, .dims = {64, cases[i].rows, 1, 1}};
        if (quant_is_matrix(&t) != cases[i].is_matrix) fail_msg("%s", cases[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scale_is_close_to_the_best_of_thousands),
        cmocka_unit_test(a_range_is_close_to_the_best_of_many),
        cmocka_unit_test(a_range_of_positive_numbers_may_begin_above_zero),
        cmocka_unit_test(searched_blocks_are_better_than_rounded_ones),
        cmocka_unit_test(no_block_is_worse_than_rounding),
        cmocka_unit_test(quantised_numbers_hardly_change_again),
        cmocka_unit_test(important_inputs_get_smaller_errors),
        cmocka_unit_test(hostile_numbers_give_finite_blocks),
        cmocka_unit_test(mixtures_choose_as_users_expect),
        cmocka_unit_test(small_mixtures_choose_as_users_expect),
        cmocka_unit_test(mixtures_of_three_bits_and_less_choose_as_users_expect),
        cmocka_unit_test(experts_choose_as_users_expect),
        cmocka_unit_test(odd_rows_fall_back),
        cmocka_unit_test(not_every_tensor_is_a_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_gumbel.c - keyed Gumbel noise (verify/gumbel.c): its distribution down to probabilities of 1e-11, and that all
 * functions give the same number. */
#include "testing.h"

#include "verify/gumbel.h"
#include "statistics.h"

#include <math.h>
#include <stdbool.h>

static void all_functions_give_the_same_noise(void **state) {
    (void)state;
    enum { V = 300000 };
    int n_rare = 0;
    for (uint64_t position = 0; position < 20; position++) {
        GumbelRow g, shorter;
        gumbel_row_begin(&g, 7, RNG_TARGET, position, V);
        gumbel_row_begin(&shorter, 7, RNG_TARGET, position, V / 2);
        n_rare += g.n_rare;
        int32_t rare = gumbel_row_next_rare(&g, 0);
        for (int32_t first = 0; first < V; first += 4) {
            double v[4];
            gumbel_row_block(&g, first, v);
            for (int32_t i = 0; i < 4; i++) {
                bool is_rare = first + i == rare;
                assert_true(is_rare ? v[i] < GUMBEL_RARE : v[i] > GUMBEL_RARE);
                if (is_rare) rare = gumbel_row_next_rare(&g, rare + 1);
                if (first % 4096 && !is_rare) continue;
                assert_true(gumbel_row_v(&g, first + i) == v[i]);
                assert_true(gumbel_noise(7, RNG_TARGET, position, first + i) == gumbel_of(v[i]));
                if (first < V / 2) assert_true(gumbel_row_v(&shorter, first + i) == v[i]);
            }
        }
        assert_int_equal(rare, INT32_MAX);
    }
    assert_in_range(n_rare, 45, 145); /* 91.6 are expected, with a standard deviation of 9.6 */
}

static void keys_make_a_difference(void **state) {
    (void)state;
    double g = gumbel_noise(7, RNG_TEST, 3, 5);
    assert_true(g != gumbel_noise(8, RNG_TEST, 3, 5));
    assert_true(g != gumbel_noise(7, RNG_TARGET, 3, 5));
    assert_true(g != gumbel_noise(7, RNG_TEST, 4, 5));
    assert_true(g != gumbel_noise(7, RNG_TEST, 3, 6));
}

static void it_has_the_moments_of_a_gumbel_variable(void **state) {
    (void)state;
    enum { N = 1000000 };
    double sum = 0, squares = 0;
    GumbelRow g;
    gumbel_row_begin(&g, 7, RNG_TEST, 3, N);
    for (int32_t first = 0; first < N; first += 4) {
        double v[4];
        gumbel_row_block(&g, first, v);
        for (int i = 0; i < 4; i++) {
            double x = gumbel_of(v[i]);
            assert_true(isfinite(x) && x <= (v[i] < GUMBEL_RARE ? GUMBEL_MAX : GUMBEL_COMMON_MAX));
            sum += x;
            squares += x * x;
        }
    }
    double mean = sum / N, variance = squares / N - mean * mean;
    assert_true(fabs(mean - 0.5772156649) < 4 * 1.2825 / 1000);
    assert_true(fabs(variance - 1.6449340668) < 0.02);
}

/* The largest numbers have the right frequency. With noise made from 32-bit words, no probability would be below
 * 1.1e-10. */
static void rare_noise_has_its_frequency(void **state) {
    (void)state;
    enum { V = 1 << 20, N_ROWS = 400000, N_BINS = 16, N_LEVELS = 4 };
    static const double level[N_LEVELS] = {1e-6, 1e-8, 1e-10, 1e-11};
    double by_place[N_BINS] = {0}, by_count[N_BINS] = {0}, below[N_LEVELS] = {0}, n = 0;
    for (uint64_t row = 0; row < N_ROWS; row++) {
        GumbelRow g;
        gumbel_row_begin(&g, 11, RNG_TEST, row, V);
        n += g.n_rare;
        by_count[g.n_rare % N_BINS]++; /* even and odd counts, small and large ones */
        for (int32_t k = 0; k < g.n_rare; k++) {
            by_place[g.rare_id[k] / (V / N_BINS)]++;
            for (int i = 0; i < N_LEVELS; i++) below[i] += g.rare_v[k] < level[i];
        }
    }
    double all = (double)V * N_ROWS, x = 0, expected = all * GUMBEL_RARE;
    assert_true(fabs(n - expected) < 5 * sqrt(expected));
    for (int i = 0; i < N_LEVELS; i++) {
        double want = all * level[i];
        if (fabs(below[i] - want) > 5 * sqrt(want)) fail_msg("v < %g: %g times, expected %g", level[i], below[i], want);
    }
    for (int i = 0; i < N_BINS; i++) {
        double want = expected / N_BINS;
        x += (by_place[i] - want) * (by_place[i] - want) / want;
    }
    if (x > chi_square_limit(N_BINS - 1)) fail_msg("places of rare tokens: chi-square %g", x);
    x = 0;
    for (int i = 0; i < N_BINS;
         i++) { /* the number of rare tokens in a row follows Binomial(V, r), nearly Poisson(16) */
        double want = 0, poisson = exp(-16);
        for (int k = 0; k < 100; poisson *= 16.0 / ++k)
            if (k % N_BINS == i) want += N_ROWS * poisson;
        x += (by_count[i] - want) * (by_count[i] - want) / want;
    }
    if (x > chi_square_limit(N_BINS - 1)) fail_msg("counts of rare tokens: chi-square %g", x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_functions_give_the_same_noise),
        cmocka_unit_test(keys_make_a_difference),
        cmocka_unit_test(it_has_the_moments_of_a_gumbel_variable),
        cmocka_unit_test(rare_noise_has_its_frequency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

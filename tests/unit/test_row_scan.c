/* test_row_scan.c - Unit tests of row_scan.c: each pass against a plain loop, over lengths that leave remainders,
 * temperatures from tiny to huge, and rows with NaN and infinities. */
#include "testing.h"

#include "spec/sampling/gumbel.h"
#include "spec/sampling/row_scan.h"

#include <math.h>

enum { MAX_N = 300 };

/* Row `i`: normal-like numbers, some of them NaN, -inf or equal to others. */
static int32_t make_row(uint64_t i, float *row) {
    int32_t n = 1 + (int32_t)(rng_uniform(1, RNG_TEST, i, 9999) * MAX_N);
    for (int32_t k = 0; k < n; k++) {
        double u = rng_uniform(1, RNG_TEST, i, (uint32_t)k);
        row[k] = u < 0.02   ? NAN
                 : u < 0.04 ? -INFINITY
                 : u < 0.1  ? 3.5f
                            : (float)(4 * gumbel_noise(2, RNG_TEST, i, (int32_t)k));
    }
    return n;
}

static int32_t slow_argmax(const float *row, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (row[i] > -INFINITY && (best < 0 || row[i] > row[best])) best = i;
    return best;
}

static double slow_mass(const float *row, int32_t n, float max, float temperature) {
    double mass = 0;
    for (int32_t i = 0; i < n; i++)
        if (row[i] > -INFINITY) mass += exp(((double)row[i] - (double)max) / (double)temperature);
    return mass;
}

static void passes_equal_plain_loops(void **state) {
    (void)state;
    const float temperatures[] = {1e-38f, 1e-3f, 0.3f, 0.8f, 1, 3, 1e6f};
    for (uint64_t i = 0; i < 3000; i++) {
        float row[MAX_N];
        int32_t ids[MAX_N], n = make_row(i, row), best = slow_argmax(row, n);
        assert_int_equal(row_argmax(row, n), best);
        if (best < 0) continue;
        float temperature = temperatures[i % 7], floor = i % 5 ? row[i % (uint64_t)n] : -INFINITY;
        double want = slow_mass(row, n, row[best], temperature), got = row_mass(row, n, row[best], temperature);
        if (!(fabs(got - want) <= 1e-6 * want)) fail_msg("row %d: mass %.9g instead of %.9g", (int)i, got, want);
        int32_t n_above = row_above(row, n, floor, ids), k = 0;
        for (int32_t t = 0; t < n; t++)
            if (row[t] >= floor && row[t] > -INFINITY) assert_int_equal(ids[k++], t);
        assert_int_equal(n_above, k);
    }
}

/* One lane at a time, over the whole range of the exponential. */
static void an_exponential_is_exact_to_float(void **state) {
    (void)state;
    double worst = 0;
    for (int32_t i = 0; i < 87 * 4096; i++) {
        float x = -(float)i / 4096;
        double off = fabs(row_mass(&x, 1, 0, 1) / exp((double)x) - 1);
        if (off > worst) worst = off;
    }
    assert_true(worst < 5e-7);
}

static void rows_without_a_number_have_no_maximum(void **state) {
    (void)state;
    const float row[] = {NAN, -INFINITY, NAN, -INFINITY, NAN};
    int32_t ids[5];
    assert_int_equal(row_argmax(row, 5), -1);
    assert_int_equal(row_above(row, 5, -INFINITY, ids), 0);
    const float far[] = {-3e38f, 3e38f, -INFINITY};
    assert_true(row_mass(far, 3, 3e38f, 1) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_equal_plain_loops),
        cmocka_unit_test(an_exponential_is_exact_to_float),
        cmocka_unit_test(rows_without_a_number_have_no_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

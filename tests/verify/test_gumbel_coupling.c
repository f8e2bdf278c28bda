/* test_gumbel_coupling.c - compares the exact agreement of coupled choices with a simulation that uses the engine's
 * noise, on random small vocabularies, and with the bound (1 - TV) / (1 + TV). */
#include "testing.h"

#include "research/acceptance.h"
#include "verify/gumbel.h"

#include <math.h>

enum { MAX_N = 8, N_DRAWS = 20000, N_CASES = 24 };

static void draw_dist(uint64_t seed, RngStream stream, int32_t n, double sharpness, double *p) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += p[i] = exp(sharpness * gumbel_noise(seed, stream, 0, i));
    for (int32_t i = 0; i < n; i++) p[i] /= sum;
}

/* Returns the number of tokens with a greater log q + G than x. */
static int32_t rank_of(const double *q, int32_t n, uint64_t seed, uint64_t position, int32_t x) {
    int32_t n_above = 0;
    double value = log(q[x]) + gumbel_noise(seed, RNG_TARGET, position, x);
    for (int32_t i = 0; i < n; i++) n_above += log(q[i]) + gumbel_noise(seed, RNG_TARGET, position, i) > value;
    return n_above;
}

static void check_frequency(double want, double got, const char *what) {
    double error = sqrt(want * (1 - want) / N_DRAWS);
    if (fabs(want - got) > 5 * error + 1e-9) fail_msg("%s: %g, simulated %g", what, want, got);
}

static void agreement_is_that_of_a_simulation_and_keeps_the_bound(void **state) {
    (void)state;
    double above_bound = 0;
    for (uint64_t c = 0; c < N_CASES; c++) {
        int32_t n = 2 + (int32_t)(c % (MAX_N - 1)), n_first = 0;
        double p[MAX_N], q[MAX_N];
        draw_dist(c, RNG_TEST, n, 1.5, p);
        draw_dist(c, RNG_DRAFT, n, 1.5, q);
        if (c % 4 == 0) /* some q are near p */
            for (int32_t i = 0; i < n; i++) q[i] = 0.9 * p[i] + 0.1 * q[i];
        for (uint64_t d = 0; d < N_DRAWS; d++) {
            int32_t x = 0;
            while (rank_of(p, n, c, d, x) > 0) x++;
            n_first += rank_of(q, n, c, d, x) == 0;
        }
        double exact = gumbel_agreement(p, q, n), tv = total_variation(p, q, n);
        check_frequency(exact, (double)n_first / N_DRAWS, "one candidate");
        assert_true(exact >= (1 - tv) / (1 + tv) - 1e-12);
        assert_true(exact <= 1 - tv + 1e-12); /* no coupling agrees more often */
        above_bound += exact - (1 - tv) / (1 + tv);
    }
    assert_true(above_bound > 0.1); /* the formula is not the bound */
}

static void special_cases_are_exact(void **state) {
    (void)state;
    const double p[] = {0.5, 0.3, 0.2, 0}, other[] = {0, 0, 0, 1}, a = 0.7, b = 0.4;
    const double pa[] = {a, 1 - a}, pb[] = {b, 1 - b};
    assert_true(fabs(gumbel_agreement(p, p, 4) - 1) < 1e-12);
    assert_true(fabs(gumbel_agreement(p, other, 4)) < 1e-12);
    /* Two tokens, a > b: both choose token 0 with probability b, because p chooses it whenever q does. */
    assert_true(fabs(gumbel_agreement(pa, pb, 2) - (1 - (a - b))) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agreement_is_that_of_a_simulation_and_keeps_the_bound),
        cmocka_unit_test(special_cases_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

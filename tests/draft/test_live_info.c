/* test_live_info.c - unit tests of live info (logit_corrections.c): against a full matrix of corrections in double
 * precision, and what is forgotten where the table is full. */
#include "testing.h"

#include "base/rng.h"
#include "draft/learned/logit_corrections.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { V = 60, N_TOKENS = 40, N_LIKELY = 8, TOP = 4 };

static LiveInfo live;

static float noise(uint64_t key, uint64_t i) { return (float)(6 * rng_uniform(key, RNG_TEST, i, 0)); }

/* Logits whose best tokens are among the first N_LIKELY, as many as a row can correct. */
static void make_logits(uint64_t key, float *x) {
    for (int32_t v = 0; v < V; v++) x[v] = noise(key, (uint64_t)v) + (v < N_LIKELY ? 40 : 0);
}

static bool is_among_best(const double *x, int32_t v) {
    int32_t n_better = 0;
    for (int32_t i = 0; i < V; i++) n_better += x[i] > x[v];
    return n_better < TOP;
}

static double log_p(const double *x, int32_t v, double temperature) {
    double sum = 0;
    for (int32_t i = 0; i < V; i++) sum += exp((x[i] - x[v]) / temperature);
    return -log(sum);
}

static void corrections_are_those_of_a_full_matrix(void **state) {
    (void)state;
    static double matrix[N_TOKENS][V];
    static const double temperatures[] = {0.3, 1, 1.5};
    live_info_reset(&live);
    for (uint64_t step = 0; step < 600; step++) {
        int32_t x = (int32_t)(rng_uniform(7, RNG_TEST, step, 0) * N_TOKENS);
        double temperature = temperatures[step % 3], p[V], q[V];
        float target[V], draft[V];
        make_logits(10 + step, target);
        make_logits(9000 + (uint64_t)x, draft);
        live_info_add(&live, x, draft);
        for (int32_t v = 0; v < V; v++) p[v] = (double)target[v], q[v] = (double)draft[v];
        live_info_learn(&live, x, target, draft, V, temperature);
        for (int32_t v = 0; v < V; v++)
            if (is_among_best(p, v) || is_among_best(q, v))
                matrix[x][v] += 0.15 * (fmax(log_p(p, v, temperature), -30) - fmax(log_p(q, v, temperature), -30));
    }
    for (int32_t x = 0; x < N_TOKENS; x++) {
        float got[V] = {0};
        live_info_add(&live, x, got);
        for (int32_t v = 0; v < V; v++)
            if (fabs((double)got[v] - matrix[x][v]) > 1e-3)
                fail_msg("token %d, logit %d: %g instead of %g", x, v, (double)got[v], matrix[x][v]);
    }
}

/* The target is sure of `right` after x, and the draft is sure of 0. */
static void teach(int32_t x, int32_t right) {
    float target[V] = {0}, draft[V] = {0};
    target[right] = 20;
    draft[0] = 20;
    live_info_learn(&live, x, target, draft, V, 1);
}

static float correction(int32_t x, int32_t v) {
    float got[V] = {0};
    live_info_add(&live, x, got);
    return got[v];
}

static void the_least_recently_used_token_is_forgotten(void **state) {
    (void)state;
    enum { N_ROWS = LIVE_INFO_SETS * LIVE_INFO_WAYS };
    live_info_reset(&live);
    for (int32_t x = 1; x <= 20 * N_ROWS; x++) {
        teach(x, 5);
        teach(0, 6);
    }
    int32_t n_known = 0;
    for (int32_t x = 1; x <= 20 * N_ROWS; x++) n_known += correction(x, 5) > 2;
    assert_in_range(n_known, N_ROWS - 2 * LIVE_INFO_WAYS, N_ROWS - 1);
    assert_true(correction(20 * N_ROWS, 5) > 2);
    assert_true(correction(0, 6) > 2); /* in use all the time */
    assert_true(correction(1, 5) == 0);
    live_info_reset(&live);
    assert_true(correction(0, 6) == 0);
}

static void the_smallest_correction_of_a_row_is_replaced(void **state) {
    (void)state;
    live_info_reset(&live);
    for (int32_t i = 0; i < 40; i++) teach(3, 10 + i);
    int32_t n = 0;
    for (int32_t v = 0; v < V; v++) n += correction(3, v) != 0;
    assert_in_range(n, LIVE_INFO_ENTRIES - 4, LIVE_INFO_ENTRIES); /* a correction can be 0 */
    assert_true(correction(3, 0) < -50);                          /* the wrong one has the greatest error */
}

static void rows_that_are_not_finite_teach_nothing(void **state) {
    (void)state;
    float good[V] = {0}, bad[V];
    live_info_reset(&live);
    for (int32_t i = 0; i < V; i++) bad[i] = NAN;
    live_info_learn(&live, 3, good, bad, V, 1);
    live_info_learn(&live, 3, bad, good, V, 1);
    memset(bad, 0, sizeof bad);
    bad[7] = INFINITY;
    live_info_learn(&live, 3, good, bad, V, 1);
    for (int32_t v = 0; v < V; v++) assert_true(correction(3, v) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corrections_are_those_of_a_full_matrix),
        cmocka_unit_test(the_least_recently_used_token_is_forgotten),
        cmocka_unit_test(the_smallest_correction_of_a_row_is_replaced),
        cmocka_unit_test(rows_that_are_not_finite_teach_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

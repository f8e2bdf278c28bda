/* test_confidence.c - the corrected probabilities of children follow the formula, and stay within bounds for any
 * head. */
#include "draft/learned/logit_corrections.h"

#include "testing.h"

#include <math.h>

enum { H = 3, N = 4 };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void without_a_correction_nothing_changes(void **state) {
    (void)state;
    float zeros[H + CONFIDENCE_SCALARS] = {0}, at[H] = {1, 2, 3};
    const Confidence heads[] = {{H, NULL}, {H, zeros}};
    for (size_t k = 0; k < 2; k++) {
        double log_p[N] = {log(0.5), log(0.3), log(0.1), log(0.05)};
        assert_true(confidence_of_state(&heads[k], at) == 0);
        confidence_correct(&heads[k], 0, log_p, N);
        const double want[N] = {0.5, 0.3, 0.1, 0.05};
        for (int i = 0; i < N; i++) assert_true(fabs(exp(log_p[i]) - want[i]) < 1e-12);
    }
}

static void a_state_gives_the_chance_of_the_best_child(void **state) {
    (void)state;
    float weights[H + CONFIDENCE_SCALARS] = {0.5f, -1, 0.25f, 0.125f, -0.5f}, at[H] = {1, 2, 4};
    const Confidence head = {H, weights};
    float of_state = confidence_of_state(&head, at);
    assert_true(of_state == 0.5f - 2 + 1 + 0.125f);
    for (int k = -8; k <= 8; k++) {
        double log_p[N] = {log(0.6), log(0.3), log(0.05), log(0.01)};
        double c = sigmoid((double)(of_state + (float)k) + 0.5 * log(0.6 / 0.4)),
               factor = c < 0.6 ? c / 0.6 : (1 - c) / 0.4;
        confidence_correct(&head, of_state + (float)k, log_p, N);
        const double want[N] = {c, 0.3 * factor, 0.05 * factor, 0.01 * factor};
        for (int i = 0; i < N; i++)
            if (!(fabs(exp(log_p[i]) - want[i]) < 1e-9))
                fail_msg("of_state %g: child %d gets %g, want %g", (double)of_state + k, i, exp(log_p[i]), want[i]);
    }
}

/* The order is kept, probabilities stay between 0 and 1, and their sum is at most 1, also for estimates of 0 and 1 and
 * for heads that are certain. */
static void bounds_hold_for_any_head(void **state) {
    (void)state;
    static const double estimates[][N] = {{1, 0, 0, 0},     {1 - 1e-17, 1e-17, 0, 0}, {0.25, 0.25, 0.25, 0.25},
                                          {0.5, 0.5, 0, 0}, {1e-9, 1e-9, 1e-10, 0},   {0.999, 0.0005, 0.0004, 0.0001}};
    static const float of_state[] = {-1e30f, -800, -40, -1, 0, 1, 40, 800, 1e30f, (float)INFINITY, (float)NAN};
    for (size_t e = 0; e < sizeof estimates / sizeof *estimates; e++)
        for (size_t k = 0; k < sizeof of_state / sizeof *of_state; k++) {
            float weights[H + CONFIDENCE_SCALARS] = {0, 0, 0, 0, k % 2 ? -1.5f : 2};
            const Confidence head = {H, weights};
            double log_p[N], sum = 0;
            for (int i = 0; i < N; i++) log_p[i] = log(estimates[e][i]);
            confidence_correct(&head, of_state[k], log_p, N);
            for (int i = 0; i < N; i++) {
                if (!(log_p[i] <= 1e-12 && (i == 0 || log_p[i] <= log_p[i - 1] + 1e-9)))
                    fail_msg("estimate %zu, state %g: child %d gets %g after %g", e, (double)of_state[k], i,
                             exp(log_p[i]), i ? exp(log_p[i - 1]) : 1);
                sum += exp(log_p[i]);
            }
            if (!(sum <= 1 + 1e-9)) fail_msg("estimate %zu, state %g: the sum is %g", e, (double)of_state[k], sum);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_correction_nothing_changes),
        cmocka_unit_test(a_state_gives_the_chance_of_the_best_child),
        cmocka_unit_test(bounds_hold_for_any_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

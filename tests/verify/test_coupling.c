/* test_coupling.c - compares the probabilities of candidates given the noise with a simulation of their definition: the
 * probability that a candidate leads when its log q has a standard Gumbel error and the other tokens are a rival of
 * constant weight. */
#include "testing.h"

#include "draft/feedback.h"

#include <math.h>

enum { N = 5, N_DRAWS = 40000, N_VOCAB = 1000, SEED = 3 };

static void chances_are_those_of_a_simulation(void **state) {
    (void)state;
    static const int32_t tokens[N] = {7, 900, 3, 512, 40};
    static const float q[N] = {0.5f, 0.2f, 0.15f, 0.1f, 0};
    double spread = 0;
    for (uint64_t position = 0; position < 20; position++) {
        GumbelRow noise;
        double chance[N], sum = 0, won[N + 1] = {0};
        gumbel_row_begin(&noise, SEED, RNG_TARGET, position, N_VOCAB);
        coupled_chances(&noise, tokens, q, N, chance);
        for (uint64_t draw = 0; draw < N_DRAWS; draw++) {
            double best = log(2.0 / 3) + gumbel_noise(position, RNG_TEST, draw, N);
            int32_t i_best = N;
            for (int32_t i = 0; i < N; i++) {
                double value = log((double)q[i]) + gumbel_noise(SEED, RNG_TARGET, position, tokens[i]) +
                               gumbel_noise(position, RNG_TEST, draw, i);
                if (value > best) best = value, i_best = i;
            }
            won[i_best] += 1.0 / N_DRAWS;
        }
        for (int32_t i = 0; i < N; i++) {
            double error = sqrt(chance[i] * (1 - chance[i]) / N_DRAWS);
            if (fabs(chance[i] - won[i]) > 5 * error + 1e-9)
                fail_msg("position %d, candidate %d: chance %g, simulated %g", (int)position, i, chance[i], won[i]);
            sum += chance[i];
            spread += fabs(chance[i] - (double)q[i]) / 20;
        }
        assert_true(sum < 1);
        assert_true(chance[4] == 0);
    }
    assert_true(spread > 0.3); /* the noise matters */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chances_are_those_of_a_simulation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_random_source.c - unit tests of the random choices in src/verify/ratio.c. */
#include "testing.h"

#include "verify/verifier.h"

#include <math.h>

static void a_script_visits_every_outcome_once(void **state) {
    (void)state;
    RandomScript s;
    double chance_of[6] = {0}, sum = 0;
    int n_runs = 0;
    random_script_begin(&s);
    do {
        RandomSource *c = &s.random_source;
        int outcome;
        assert_true(c->flip(c, 1) && c->flip(c, 7) && !c->flip(c, 0));
        if (c->flip(c, 0.25)) outcome = c->flip(c, 0.1) ? 0 : 1;
        else outcome = 2 + c->pick(c, (const double[]){1, 0, 2, 5}, 4);
        chance_of[outcome] += s.chance;
        sum += s.chance;
        n_runs++;
    } while (random_script_next(&s));
    const double want[6] = {0.025, 0.225, 0.75 / 8, 0, 0.75 * 2 / 8, 0.75 * 5 / 8};
    assert_int_equal(n_runs, 5);
    assert_true(fabs(sum - 1) < 1e-15);
    for (int i = 0; i < 6; i++) assert_true(fabs(chance_of[i] - want[i]) < 1e-15);
}

static void keyed_choices_have_the_right_frequencies(void **state) {
    (void)state;
    enum { N = 100000 };
    const double weights[] = {1, 0, 2, 5};
    int n_heads = 0, n_both = 0, n_picked[4] = {0};
    for (uint64_t position = 0; position < N; position++) {
        KeyedRandom c;
        random_keyed(&c, 42, position);
        assert_true(c.random_source.flip(&c.random_source, 1) && !c.random_source.flip(&c.random_source, 0));
        bool first = c.random_source.flip(&c.random_source, 0.3), second = c.random_source.flip(&c.random_source, 0.3);
        n_heads += first;
        n_both += first && second; /* the choices of one step are independent */
        n_picked[c.random_source.pick(&c.random_source, weights, 4)]++;
    }
    assert_true(fabs(n_heads - 0.3 * N) < 5 * sqrt(0.21 * N));
    assert_true(fabs(n_both - 0.09 * N) < 5 * sqrt(0.0819 * N));
    assert_int_equal(n_picked[1], 0);
    for (int i = 0; i < 4; i++) {
        double part = weights[i] / 8;
        assert_true(fabs(n_picked[i] - part * N) <= 5 * sqrt(part * (1 - part) * N));
    }
}

/* Another seed or position gives other outcomes; the same seed and position give the same outcomes. Probabilities are
 * finer than 32 bits. */
static void keyed_choices_depend_on_their_key(void **state) {
    (void)state;
    double weights[1000], fine[2] = {0x1p-40, 1};
    for (int i = 0; i < 1000; i++) weights[i] = 1;
    KeyedRandom a, b, c, d;
    random_keyed(&a, 1, 5);
    random_keyed(&b, 1, 5);
    random_keyed(&c, 1, 6);
    random_keyed(&d, 2, 5);
    int n_c = 0, n_d = 0;
    for (int i = 0; i < 50; i++) {
        int32_t x = a.random_source.pick(&a.random_source, weights, 1000);
        assert_int_equal(x, b.random_source.pick(&b.random_source, weights, 1000));
        n_c += x == c.random_source.pick(&c.random_source, weights, 1000);
        n_d += x == d.random_source.pick(&d.random_source, weights, 1000);
    }
    assert_true(n_c < 5 && n_d < 5);
    assert_int_equal(a.random_source.pick(&a.random_source, fine, 2), 1);
    assert_int_equal(a.random_source.pick(&a.random_source, (const double[]){0, 0, 3}, 3), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_script_visits_every_outcome_once),
        cmocka_unit_test(keyed_choices_have_the_right_frequencies),
        cmocka_unit_test(keyed_choices_depend_on_their_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

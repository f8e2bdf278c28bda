/* test_calibration.c - calibration of acceptance probabilities: a known distortion is found, the map is monotonic, and
 * only nodes whose outcome is known count. */
#include "testing.h"

#include "base/rng.h"
#include "draft/calibration.h"

#include <math.h>

enum { RIGHT = 7, WRONG = 8, N_STEPS = 20000 };

static double uniform(uint64_t i) {
    uint32_t w[4];
    rng_words(71, RNG_TEST, i, 0, w);
    return (double)w[0] / 4294967296.0;
}

/* Adds a child with the estimate `p_accept` that is right with probability truth(p_accept), and another one below
 * it. */
static void one_step(Calibration *c, uint64_t i, double (*truth)(double)) {
    static Tree t;
    float first = (float)uniform(5 * i), second = (float)uniform(5 * i + 1);
    bool first_right = uniform(5 * i + 2) < truth((double)first),
         second_right = uniform(5 * i + 3) < truth((double)second);
    tree_reset(&t, 1);
    int32_t child = tree_add(&t, 0, RIGHT, first, 0);
    tree_add(&t, child, RIGHT, first * second, 0);
    tree_add(&t, 0, WRONG + 1, 0, 0);
    const int32_t tokens[] = {first_right ? RIGHT : WRONG, second_right ? RIGHT : WRONG};
    calibration_learn(c, &t, tokens, first_right ? 2 : 1);
}

static double squared(double p_accept) { return p_accept * p_accept; }
static double as_promised(double p_accept) { return p_accept; }
static double never(double p_accept) { return 0 * p_accept; }
static double too_modest(double p_accept) { return sqrt(p_accept); }
static double backwards(double p_accept) { return 1 - p_accept; }

static Calibration taught(double (*truth)(double)) {
    Calibration c;
    calibration_init(&c, NULL);
    for (uint64_t i = 0; i < N_STEPS; i++) one_step(&c, i, truth), calibration_fit(&c, NULL);
    return c;
}

/* Returns the largest error of the map over the estimates from 0.05 on. */
static double worst_error(const Calibration *c, double (*truth)(double)) {
    double worst = 0;
    for (double p_accept = 0.05; p_accept < 0.95; p_accept += 0.05)
        worst = fmax(worst, fabs((double)calibration_apply(c, (float)p_accept) - truth(p_accept)));
    return worst;
}

static void a_known_distortion_is_learned(void **state) {
    (void)state;
    double (*const truths[])(double) = {squared, as_promised, never, too_modest};
    for (int i = 0; i < 4; i++) {
        Calibration c = taught(truths[i]), untaught;
        assert_true(worst_error(&c, truths[i]) < 0.1);
        calibration_init(&untaught,
                         NULL); /* negative control: without learning, only the undistorted estimates are matched */
        assert_true(worst_error(&untaught, truths[i]) < 0.02 || i != 1);
        assert_true(worst_error(&untaught, truths[i]) > 0.15 || i == 1);
    }
}

static void the_map_never_falls(void **state) {
    (void)state;
    double (*const truths[])(double) = {squared, never, backwards};
    for (int i = 0; i < 3; i++) {
        Calibration c = taught(truths[i]);
        float before = 0;
        for (int k = 0; k <= 1000; k++) {
            float value = calibration_apply(&c, (float)k / 1000);
            assert_true(value >= before && value <= 1);
            before = value;
        }
    }
}

static void a_calibrated_tree_is_valid(void **state) {
    (void)state;
    Calibration c = taught(too_modest);
    static Tree t, out;
    fr_error err;
    for (uint64_t trial = 0; trial < 200; trial++) {
        tree_reset(&t, 1);
        for (uint64_t i = 0; i < 40; i++) {
            int32_t parent = (int32_t)(uniform(trial * 1000 + 3 * i) * t.n);
            float p_accept = t.nodes[parent].p_accept * (float)uniform(trial * 1000 + 3 * i + 1);
            tree_add(&t, parent, (int32_t)i, i % 7 ? p_accept : 0, 3);
        }
        calibration_apply_tree(&c, &t, &out);
        if (tree_validate(&out, 1, 50, TREE_MAX_NODES, &err)) fail_msg("%s", err.message);
        assert_int_equal(out.n, t.n);
        for (int32_t i = 1; i < t.n; i++) assert_int_equal(out.nodes[i].token, t.nodes[i].token);
    }
}

/* Below a node that got no row, and below a wrong one, nothing is known. */
static void only_nodes_whose_truth_is_known_are_counted(void **state) {
    (void)state;
    static Tree t;
    tree_reset(&t, 1);
    int32_t right = tree_add(&t, 0, RIGHT, 0.5f, 0), wrong = tree_add(&t, 0, WRONG, 0.25f, 0);
    tree_add(&t, right, RIGHT, 0.5f,
             0); /* its conditional estimate is 1; a second token would be needed to know its truth */
    tree_add(&t, wrong, RIGHT, 0.25f, 0);
    Calibration c;
    calibration_init(&c, NULL);
    calibration_learn(&c, &t, (const int32_t[]){RIGHT}, 1);
    float n = 0, n_right = 0;
    for (int i = 0; i < CALIBRATION_N_BINS; i++) n += c.n[i], n_right += c.n_right[i];
    assert_true(n == 2 && n_right == 1);
    calibration_learn(&c, &t, (const int32_t[]){RIGHT, WRONG}, 2);
    assert_true(c.n[CALIBRATION_N_BINS - 1] == 1 && c.n_right[CALIBRATION_N_BINS - 1] == 0);
}

/* The map follows a text whose drafts become worse. */
static void old_observations_fade(void **state) {
    (void)state;
    Calibration c = taught(too_modest);
    for (uint64_t i = 0; i < N_STEPS; i++) one_step(&c, i, squared), calibration_fit(&c, NULL);
    assert_true(worst_error(&c, squared) < 0.1);
}

/* Few observations of a request have little weight against its prior. */
static void the_prior_dominates_at_first(void **state) {
    (void)state;
    Calibration shared = taught(never), own;
    calibration_init(&own, &shared);
    assert_true(worst_error(&own, never) < 0.1);
    for (uint64_t i = 0; i < 20; i++) one_step(&own, i, as_promised), calibration_fit(&own, &shared);
    assert_true(calibration_apply(&own, 0.5f) < 0.5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_known_distortion_is_learned), cmocka_unit_test(the_map_never_falls),
        cmocka_unit_test(a_calibrated_tree_is_valid),    cmocka_unit_test(only_nodes_whose_truth_is_known_are_counted),
        cmocka_unit_test(old_observations_fade),         cmocka_unit_test(the_prior_dominates_at_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

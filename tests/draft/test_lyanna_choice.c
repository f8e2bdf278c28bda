/* test_lyanna_choice.c - unit tests of the choice in lyanna_tree.c: it maximises tokens per time, and the measurements
 * that it uses are right. */
#include "testing.h"

#include "base/rng.h"
#include "draft/learned/lyanna.h"

#include <math.h>

/* Returns a tree whose expected number of accepted nodes is 0.9 + 0.7 + 0.1 = 1.7: the chain 1 - 2, and node 3. */
static const Tree *tree_of_1_7(void) {
    static Tree t;
    tree_reset(&t, 9);
    tree_add(&t, tree_add(&t, 0, 1, 0.9f, 0), 2, 0.7f, 0);
    tree_add(&t, 0, 3, 0.1f, 0);
    return &t;
}

static void more_tokens_per_time_are_chosen(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1000; i++) {
        LyannaChoice c = {.n_fresh = 10,
                          .fresh_tokens = 1 + 4 * rng_uniform(1, RNG_TEST, i, 0),
                          .resampled = {.expected = 1e9, .observed = 1e9 * rng_uniform(2, RNG_TEST, i, 0)}};
        LyannaTimes t = {.draft_s = rng_uniform(3, RNG_TEST, i, 0), .step_s = rng_uniform(4, RNG_TEST, i, 0)};
        int32_t n = 1 + (int32_t)(i % 3);
        double alone = (1 + 1.7 * c.resampled.observed / 1e9) / t.step_s,
               fresh = c.fresh_tokens / (t.step_s + n * t.draft_s);
        if (fabs(alone / fresh - 1) < 1e-4) continue;
        bool got = lyanna_choice_is_resampled(&c, tree_of_1_7(), lyanna_times_draft_share(&t, n));
        if (got != (alone > fresh)) fail_msg("case %d: %g against %g tokens/s", (int)i, alone, fresh);
    }
}

static void nothing_is_chosen_before_it_is_known(void **state) {
    (void)state;
    Tree root;
    tree_reset(&root, 9);
    LyannaChoice c = {.resampled = {.expected = 100, .observed = 100}};
    assert_false(lyanna_choice_is_resampled(&c, tree_of_1_7(), 0.9)); /* no fresh step yet */
    for (int i = 0; i < 5; i++) lyanna_choice_observe_fresh(&c, 1);
    assert_true(lyanna_choice_is_resampled(&c, tree_of_1_7(), 0.9));
    assert_false(lyanna_choice_is_resampled(&c, tree_of_1_7(), 0)); /* no time measured */
    assert_false(lyanna_choice_is_resampled(&c, &root, 0.9));       /* nothing is left */
}

static void observations_are_means(void **state) {
    (void)state;
    LyannaChoice c = {0};
    LyannaTimes t = {0};
    lyanna_choice_observe_fresh(&c, 2);
    lyanna_choice_observe_fresh(&c, 5);
    assert_true(fabs(c.fresh_tokens - 3.5) < 1e-9);
    lyanna_choice_observe_resampled(&c, tree_of_1_7(), (int32_t[]){1, 2, 8}, 3); /* two nodes on the path */
    lyanna_choice_observe_resampled(&c, tree_of_1_7(), (int32_t[]){3}, 1);
    lyanna_choice_observe_resampled(&c, tree_of_1_7(), (int32_t[]){2, 1}, 2); /* none */
    assert_true(fabs(c.resampled.expected - 5.1) < 1e-6 && c.resampled.observed == 3);
    assert_true(lyanna_times_draft_share(&t, 1) == 0);
    double now_s = 100;
    for (int i = 0; i < 200; i++, now_s += 4) { /* a proposal takes 1 s for two sequences, and the other parts of a step
                                                 * 3 s */
        lyanna_times_begin(&t, now_s);
        lyanna_times_end(&t, now_s + 1, now_s, 2);
    }
    assert_true(fabs(t.draft_s - 0.5) < 1e-6 && fabs(t.step_s - 3) < 1e-6);
    assert_true(fabs(lyanna_times_draft_share(&t, 2) - 0.25) < 1e-6);
    lyanna_times_begin(&t, now_s + 1000); /* an idle engine moves the mean by a quarter at most */
    assert_true(t.step_s < 3.8);
    lyanna_times_end(&t, now_s + 1000, now_s, 0); /* a step without a fresh draft */
    assert_true(fabs(t.draft_s - 0.5) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_tokens_per_time_are_chosen),
        cmocka_unit_test(nothing_is_chosen_before_it_is_known),
        cmocka_unit_test(observations_are_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

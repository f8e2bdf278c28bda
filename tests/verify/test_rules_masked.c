/* test_rules_masked.c - ratio rules with a grammar: the drafter draws from its own distribution, in which forbidden
 * tokens have a probability, and the output distribution is exactly the masked one of the target, by the enumeration of
 * test_rules.c. A rule that ignores the mask is detected. */
#include "rule_rig.h"

static const double MARGIN = 1e-3;

static RigCase masked(uint64_t seed, int32_t n_vocab) {
    RigCase c = {.seed = seed, .n_vocab = n_vocab, .target = RIG_PLAIN, .draft = RIG_PLAIN, .masked = true};
    if (seed % 4 == 1) c.target.top_k = 2;
    if (seed % 4 == 2) c.target.top_p = 0.8f, c.draft.top_k = 2;
    if (seed % 3 == 2) c.target.repeat_penalty = 1.3f, c.target.penalty_last_n = -1;
    if (seed % 2 == 1) c.target.temperature = 0.6f, c.draft.temperature = 1.5f;
    return c;
}

static void groups_of_any_kind(void **state) {
    (void)state;
    for (int32_t n_vocab = 2; n_vocab <= 5; n_vocab++)
        for (int32_t k = 1; k <= 3; k++)
            for (uint64_t seed = 0; seed < 24; seed++) {
                RigCase c = masked(seed, n_vocab);
                rig_check_groups(&c, k);
            }
}

static void chains_and_trees(void **state) {
    (void)state;
    static const char *const rules[] = {"chain", "block", "recursive", "transport"};
    for (uint64_t seed = 0; seed < 12; seed++) {
        RigCase c = masked(seed, 3);
        c.n_levels = 3;
        for (int i = 0; i < 3; i++) c.levels[i] = (RigLevel){.kind = (DrawKind)((seed + (uint64_t)i) % 3), .k = 1};
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) rig_check(&c, rules[i]);
        c.n_levels = 2;
        c.levels[0].k = c.levels[1].k = 2;
        rig_check(&c, "recursive");
        rig_check(&c, "transport");
    }
}

static void a_rule_that_does_not_know_the_grammar_is_detected(void **state) {
    (void)state;
    int n_detected = 0, n = 0;
    for (uint64_t seed = 0; seed < 20; seed++, n++) {
        RigCase c = masked(seed, 4);
        c.n_levels = 1;
        c.levels[0] = (RigLevel){.kind = DRAW_IID, .k = 2};
        c.fault = RIG_NOT_MASKED;
        n_detected += rig_dist_error(&c, verify_rule_find("recursive"), NULL) > MARGIN;
    }
    assert_true(n_detected > n / 2);
}

static int tell(void **state) {
    (void)state;
    rig_print_checks();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_any_kind),
        cmocka_unit_test(chains_and_trees),
        cmocka_unit_test(a_rule_that_does_not_know_the_grammar_is_detected),
    };
    return cmocka_run_group_tests(tests, NULL, tell);
}

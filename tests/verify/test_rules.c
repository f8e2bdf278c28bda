/* test_rules.c - the ratio rules: their output distribution is the target's, by exact enumeration of all drafts and
 * random choices, to 1e-12; and deliberate faults are detected. */
#include "rule_rig.h"

#include <stdlib.h>
#include <string.h>

static const double TOLERANCE = RIG_TOLERANCE, MARGIN = 1e-3;

/* Filters remove tokens from p, from q, or different ones from both; a penalty makes p depend on the path. */
static RigCase filtered(uint64_t seed, int32_t n_vocab) {
    RigCase c = {.seed = seed, .n_vocab = n_vocab, .target = RIG_PLAIN, .draft = RIG_PLAIN};
    const int32_t n = n_vocab > 2 ? n_vocab - 1 : 1;
    if (seed % 5 == 1) c.target.top_k = n;
    if (seed % 5 == 2) c.draft.top_k = n;
    if (seed % 5 == 3) c.target.top_k = 2, c.draft.top_p = 0.7f;
    if (seed % 5 == 4) c.target.top_p = 0.8f, c.draft.top_k = 2, c.target.min_p = 0.05f;
    if (seed % 3 == 2) c.target.repeat_penalty = 1.3f, c.target.penalty_last_n = -1;
    if (seed % 2 == 1) c.target.temperature = 0.6f, c.draft.temperature = 1.5f;
    return c;
}

/* ---- correct rules ------------------------------------------------------------------------------ */

static void a_node_with_any_group(void **state) {
    (void)state;
    for (int32_t n_vocab = 2; n_vocab <= 5; n_vocab++)
        for (int32_t k = 1; k <= 4; k++)
            for (uint64_t seed = 0; seed < 30; seed++) {
                RigCase c = filtered(seed, n_vocab);
                rig_check_groups(&c, k);
                c.levels[0] = (RigLevel){.kind = DRAW_IID, .k = k, .own_dists = true};
                rig_check(&c, "recursive");
                rig_check(&c, "transport");
                rig_check(&c, "multi-round");
            }
}

/* A gamma that is too small is replaced; one that is too large is allowed. */
static void k_seq_with_any_gamma(void **state) {
    (void)state;
    const double gammas[] = {0, 1, 1.2, 1.7, 2.5, 4, 9};
    for (int32_t n_vocab = 2; n_vocab <= 5; n_vocab++)
        for (int32_t k = 1; k <= 4; k++)
            for (uint64_t seed = 0; seed < 5; seed++)
                for (size_t i = 0; i < sizeof gammas / sizeof *gammas; i++) {
                    RigCase c = filtered(seed, n_vocab);
                    c.gamma = gammas[i];
                    c.n_levels = 1;
                    c.levels[0] = (RigLevel){.kind = DRAW_IID, .k = k};
                    rig_check(&c, "k-seq");
                }
}

static void chains(void **state) {
    (void)state;
    const char *const names[] = {"chain", "block", "recursive", "multi-round", "k-seq", "transport"};
    for (int32_t length = 1; length <= 4; length++)
        for (int32_t n_vocab = 2; n_vocab <= (length < 3 ? 5 : 6 - length); n_vocab++)
            for (uint64_t seed = 0; seed < 30; seed++) {
                RigCase c = filtered(seed, n_vocab);
                c.n_levels = length;
                for (int32_t i = 0; i < length; i++) /* drawn, points, or both */
                    c.levels[i] = (RigLevel){.kind = seed % 3 == 1 || (seed % 3 == 2 && i % 2) ? DRAW_POINT : DRAW_IID,
                                             .k = 1};
                for (size_t i = 0; i < sizeof names / sizeof *names; i++) rig_check(&c, names[i]);
            }
}

static void trees(void **state) {
    (void)state;
    static const struct {
        int32_t n_vocab, n_levels;
        RigLevel levels[3];
    } shapes[] = {
        {2, 3, {{.kind = DRAW_IID, .k = 2}, {.kind = DRAW_IID, .k = 2}, {.kind = DRAW_POINT, .k = 2}}},
        {2, 3, {{.kind = DRAW_WITHOUT_REPLACEMENT, .k = 2}, {.kind = DRAW_IID, .k = 2}, {.kind = DRAW_POINT, .k = 1}}},
        {3, 2, {{.kind = DRAW_IID, .k = 2}, {.kind = DRAW_IID, .k = 2}}},
        {3, 2, {{.kind = DRAW_WITHOUT_REPLACEMENT, .k = 3}, {.kind = DRAW_WITHOUT_REPLACEMENT, .k = 2}}},
        {4, 2, {{.kind = DRAW_WITHOUT_REPLACEMENT, .k = 2}, {.kind = DRAW_IID, .k = 1}}},
        {3, 3, {{.kind = DRAW_POINT, .k = 2}, {.kind = DRAW_IID, .k = 2, .mixes = true}, {.kind = DRAW_IID, .k = 1}}},
        {3, 2, {{.kind = DRAW_IID, .k = 3}, {.kind = DRAW_IID, .k = 2, .mixes = true}}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint64_t seed = 0; seed < 10; seed++) {
            RigCase c = filtered(seed, shapes[i].n_vocab);
            c.n_levels = shapes[i].n_levels;
            memcpy(c.levels, shapes[i].levels, sizeof shapes[i].levels);
            rig_check(&c, "recursive");
            rig_check(&c, "transport");
            if (i == 0 || i == 2) rig_check(&c, "multi-round");
            if (i == 2) rig_check(&c, "k-seq");
        }
}

/* Trees of draws without replacement that lost nodes: to a budget (learned drafters), to the width of each level
 * (rsd-s), or to the width of the last level and a budget (redrafter). */
#define DRAWN(k_) \
    { .kind = DRAW_WITHOUT_REPLACEMENT, .k = k_ }
#define BEAM(k_, width_) \
    { .kind = DRAW_WITHOUT_REPLACEMENT, .k = k_, .width = width_ }
typedef struct PrunedShape {
    int32_t n_vocab, n_levels, budget;
    RigLevel levels[3];
} PrunedShape;

static const PrunedShape ranked[] = {
    {3, 2, 3, {DRAWN(3), DRAWN(3)}},           {3, 2, 4, {DRAWN(3), DRAWN(3)}},
    {3, 2, 4, {DRAWN(2), DRAWN(2)}},           {4, 2, 3, {DRAWN(3), DRAWN(2)}},
    {2, 3, 4, {DRAWN(2), DRAWN(2), DRAWN(2)}}, {3, 2, 0, {BEAM(2, 2), BEAM(2, 2)}},
    {4, 2, 0, {BEAM(2, 2), BEAM(2, 2)}},       {2, 3, 0, {BEAM(2, 2), BEAM(2, 2), BEAM(2, 2)}},
    {3, 2, 0, {DRAWN(2), BEAM(2, 2)}},         {3, 2, 3, {DRAWN(3), BEAM(3, 3)}},
};
static const PrunedShape in_groups[] = {
    {3, 2, 3, {DRAWN(2), DRAWN(2)}},
    {3, 2, 4, {DRAWN(2), DRAWN(2)}},
    {3, 2, 5, {DRAWN(3), DRAWN(2)}},
    {4, 2, 4, {DRAWN(2), DRAWN(2)}},
    {2, 3, 6, {DRAWN(2), DRAWN(2), DRAWN(2)}},
    {3, 3, 5, {DRAWN(2), DRAWN(2), DRAWN(1)}},
    {3, 2, 0, {DRAWN(3), BEAM(2, 3)}},
    {4, 2, 0, {DRAWN(2), BEAM(2, 2)}},
    {2, 3, 0, {DRAWN(2), BEAM(2, 2), BEAM(2, 2)}},
    {2, 3, 0, {DRAWN(2), BEAM(2, 3), BEAM(2, 3)}},
};

static RigCase pruned_case(const PrunedShape *shape, RigPruning pruning, uint64_t seed) {
    RigCase c = filtered(seed, shape->n_vocab);
    c.n_levels = shape->n_levels;
    c.pruning = pruning;
    c.budget = shape->budget;
    memcpy(c.levels, shape->levels, sizeof shape->levels);
    return c;
}

static void trees_of_whole_groups(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof in_groups / sizeof *in_groups; i++)
        for (uint64_t seed = 0; seed < 10; seed++) {
            RigCase c = pruned_case(&in_groups[i], RIG_WHOLE_GROUPS, seed);
            rig_check(&c, "recursive");
            rig_check(&c, "transport");
        }
}

/* `recursive` reads a draft only if it needs it, and is correct for these trees. A rule that looks ahead is not. */
static void trees_pruned_by_rank(void **state) {
    (void)state;
    int n_detected = 0, n = 0;
    for (size_t i = 0; i < sizeof ranked / sizeof *ranked; i++)
        for (uint64_t seed = 0; seed < 10; seed++, n++) {
            RigCase c = pruned_case(&ranked[i], RIG_BY_RANK, seed);
            rig_check(&c, "recursive");
            n_detected += rig_dist_error(&c, verify_rule_find("transport"), NULL) > MARGIN;
        }
    print_message("transport is wrong for %d of %d trees that are pruned by rank\n", n_detected, n);
    assert_true(n_detected > n / 8);
}

/* If draft and target are the same distribution, everything is accepted, and the output distribution is still right. */
static void equal_distributions(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        RigCase c = filtered(seed, 4);
        c.n_levels = 1;
        c.target = c.draft = (SamplingOptions){.temperature = 1e6f, .top_p = 1, .repeat_penalty = 1}; /* both flat */
        const struct {
            const char *name;
            DrawKind kind;
            int32_t k;
        } all[] = {{"chain", DRAW_IID, 1},
                   {"block", DRAW_IID, 1},
                   {"multi-round", DRAW_IID, 3},
                   {"k-seq", DRAW_IID, 3},
                   {"recursive", DRAW_WITHOUT_REPLACEMENT, 3},
                   {"transport", DRAW_WITHOUT_REPLACEMENT, 3},
                   {"transport", DRAW_IID, 3}};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            c.levels[0] = (RigLevel){.kind = all[i].kind, .k = all[i].k};
            double kept = rig_check(&c, all[i].name);
            if (fabs(kept - 1) > 1e-5) fail_msg("%s keeps %.9f of equal distributions", all[i].name, kept);
        }
    }
}

static void block_keeps_no_fewer_than_chain(void **state) {
    (void)state;
    double gain = 0;
    int n = 0;
    for (int32_t length = 1; length <= 4; length++)
        for (uint64_t seed = 0; seed < 25; seed++) {
            RigCase c = filtered(seed, length < 4 ? 3 : 2);
            c.n_levels = length;
            for (int32_t i = 0; i < length; i++) c.levels[i] = (RigLevel){.kind = DRAW_IID, .k = 1};
            double by_chain = rig_check(&c, "chain"), by_block = rig_check(&c, "block");
            if (by_block < by_chain - TOLERANCE)
                fail_msg("seed %d, length %d: block keeps %.15f, chain %.15f", (int)seed, length, by_block, by_chain);
            if (length == 1) assert_true(fabs(by_block - by_chain) < TOLERANCE);
            if (length > 1) gain += by_block / by_chain - 1, n++;
            for (int32_t i = 0; i < length; i++) c.levels[i].kind = DRAW_POINT;
            assert_true(fabs(rig_check(&c, "block") - rig_check(&c, "chain")) < TOLERANCE);
        }
    print_message("block keeps %.1f%% more drafts than chain, on average over random chains of 2 to 4\n",
                  100 * gain / n);
    assert_true(gain / n > 0.005);
}

/* The example of the paper on block verification, as in rule_block.c. */
static void the_example_of_the_block_paper(void **state) {
    (void)state;
    const float p[2] = {0, logf(2)}, q[2] = {logf(2), 0};
    RigCase c =
        {.n_vocab = 2, .n_levels = 2, .target = RIG_PLAIN, .draft = RIG_PLAIN, .target_logits = p, .draft_logits = q};
    c.levels[0] = c.levels[1] = (RigLevel){.kind = DRAW_IID, .k = 1};
    assert_true(fabs(rig_check(&c, "chain") - 10.0 / 9) < 1e-6);
    assert_true(fabs(rig_check(&c, "block") - 11.0 / 9) < 1e-6);
}

/* A text of several steps: noise of drafts that one step did not keep must not return in the next. Block verification
 * depends on drafts after those it keeps, so noise that is a function of the position alone changes its output
 * distribution, which is detected; the other rules tolerate it. */
static void texts_of_several_steps(void **state) {
    (void)state;
    static const char *const names[] = {"chain", "recursive", "k-seq", "transport", "block"};
    int n_detected = 0;
    for (uint64_t seed = 0; seed < 8; seed++)
        for (size_t i = 0; i < 5; i++) {
            RigCase c = {.seed = seed, .n_vocab = 2, .n_levels = 2, .target = RIG_PLAIN, .draft = RIG_PLAIN};
            c.levels[0] = c.levels[1] = (RigLevel){.kind = DRAW_IID, .k = 1};
            double fresh = rig_text_error(&c, verify_rule_find(names[i]), 3, false);
            double again = rig_text_error(&c, verify_rule_find(names[i]), 3, true);
            if (!(fresh <= TOLERANCE)) fail_msg("%s: the distribution of a text is wrong by %g", names[i], fresh);
            if (i < 4) assert_true(again <= TOLERANCE);
            else n_detected += again > MARGIN;
        }
    if (n_detected < 4) fail_msg("repeated noise is detected with only %d of 8 distributions", n_detected);
}

/* ---- negative controls -------------------------------------------------------------------------- */

typedef struct Control {
    const char *rule;
    RigFault fault;
    RigLevel levels[2];
    int32_t n_levels;
} Control;

#define ONE(kind_, k_) {{.kind = kind_, .k = k_}}, 1
#define TWO(kind_, k_) {{.kind = kind_, .k = k_}, {.kind = kind_, .k = k_}}, 2
static const Control controls[] = {
    {"chain", RIG_Q_PERTURBED, ONE(DRAW_IID, 1)},
    {"chain", RIG_REUSED, TWO(DRAW_IID, 1)},
    {"chain", RIG_NOT_SUBTRACTED, ONE(DRAW_IID, 1)},
    {"chain", RIG_NOT_NORMALISED, ONE(DRAW_IID, 1)},
    {"chain", RIG_KIND_WRONG, ONE(DRAW_POINT, 1)},
    {"block", RIG_Q_PERTURBED, TWO(DRAW_IID, 1)},
    {"block", RIG_REUSED, TWO(DRAW_IID, 1)},
    {"block", RIG_NOT_SUBTRACTED, TWO(DRAW_IID, 1)},
    {"block", RIG_NOT_NORMALISED, TWO(DRAW_IID, 1)},
    {"block", RIG_KIND_WRONG, TWO(DRAW_POINT, 1)},
    {"multi-round", RIG_Q_PERTURBED, ONE(DRAW_IID, 2)},
    {"multi-round", RIG_REUSED, ONE(DRAW_IID, 2)},
    {"multi-round", RIG_NOT_SUBTRACTED, ONE(DRAW_IID, 2)},
    {"multi-round", RIG_NOT_NORMALISED, ONE(DRAW_IID, 2)},
    {"multi-round", RIG_KIND_WRONG, ONE(DRAW_POINT, 2)},
    {"multi-round", RIG_KIND_WRONG, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"multi-round", RIG_NOT_SUBTRACTED, ONE(DRAW_POINT, 2)},
    {"recursive", RIG_Q_PERTURBED, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"recursive", RIG_REUSED, ONE(DRAW_IID, 2)},
    {"recursive", RIG_NOT_SUBTRACTED, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"recursive", RIG_NOT_NORMALISED, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"recursive", RIG_KIND_WRONG, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"recursive", RIG_NOT_SUBTRACTED, ONE(DRAW_POINT, 2)},
    {"recursive", RIG_NOT_NORMALISED, ONE(DRAW_POINT, 2)},
    {"recursive", RIG_KIND_WRONG, ONE(DRAW_POINT, 2)},
    {"transport", RIG_Q_PERTURBED, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"transport", RIG_Q_PERTURBED, ONE(DRAW_WITHOUT_REPLACEMENT, 3)},
    {"transport", RIG_Q_PERTURBED, ONE(DRAW_IID, 2)},
    {"transport", RIG_REUSED, ONE(DRAW_IID, 2)},
    {"transport", RIG_REUSED, TWO(DRAW_IID, 1)},
    {"transport", RIG_NOT_SUBTRACTED, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"transport", RIG_NOT_NORMALISED, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"transport", RIG_KIND_WRONG, ONE(DRAW_WITHOUT_REPLACEMENT, 2)},
    {"transport", RIG_NOT_SUBTRACTED, ONE(DRAW_POINT, 2)},
    {"transport", RIG_KIND_WRONG, ONE(DRAW_POINT, 2)},
    {"k-seq", RIG_Q_PERTURBED, ONE(DRAW_IID, 3)},
    {"k-seq", RIG_REUSED, ONE(DRAW_IID, 3)},
    {"k-seq", RIG_NOT_SUBTRACTED, ONE(DRAW_IID, 3)},
    {"k-seq", RIG_NOT_NORMALISED, ONE(DRAW_IID, 3)},
    {"k-seq", RIG_KIND_WRONG, ONE(DRAW_WITHOUT_REPLACEMENT, 3)},
};

/* Each control over random distributions. By chance a fault may have no effect (with a residual of one token, for
 * example), so it must be detected with nearly all distributions, not with all. */
static void every_fault_is_detected(void **state) {
    (void)state;
    enum { N_DISTS = 20 };
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) {
        const Control *x = &controls[i];
        int n_detected = 0;
        for (uint64_t seed = 0; seed < N_DISTS; seed++) {
            RigCase c = {.seed = seed,
                         .n_vocab = 5,
                         .n_levels = x->n_levels,
                         .target = RIG_PLAIN,
                         .draft = RIG_PLAIN,
                         .fault = x->fault};
            memcpy(c.levels, x->levels, sizeof x->levels);
            n_detected += rig_dist_error(&c, verify_rule_find(x->rule), NULL) > MARGIN;
        }
        if (n_detected < N_DISTS * 3 / 4)
            fail_msg("control %d (%s, fault %d) is detected with %d of %d distributions", (int)i, x->rule,
                     (int)x->fault, n_detected, N_DISTS);
    }
}

/* ---- greedy, seeds, refusals -------------------------------------------------------------------- */

static void at_temperature_0_the_text_is_greedy(void **state) {
    (void)state;
    static const char *const names[] = {"sampled", "chain", "block", "multi-round", "recursive", "k-seq", "transport"};
    int64_t n_tokens = 0, n_steps = 0;
    for (uint64_t seed = 0; seed < 60; seed++)
        for (int shape = 0; shape < 4; shape++) {
            RigCase c = filtered(seed, 2 + (int32_t)seed % 4);
            c.target.temperature = 0;
            c.n_levels = 3;
            for (int i = 0; i < 3; i++)
                c.levels[i] = shape == 0   ? (RigLevel){.kind = (DrawKind)(seed % 2), .k = 1}
                              : shape == 1 ? (RigLevel){.kind = DRAW_IID, .k = 2}
                              : shape == 2 ? (RigLevel){.kind = DRAW_WITHOUT_REPLACEMENT, .k = 3}
                                           : (RigLevel){.kind = DRAW_IID, .k = 2, .own_dists = true, .mixes = true};
            int32_t want[8], got[8], n_want = 0;
            for (size_t i = 0; i < 7; i++) {
                bool handles_it = shape == 0 || i == 0 || i == 4 || i == 6 || (shape == 1 && i > 2);
                if (!handles_it) continue;
                int32_t n = rig_step(&c, verify_rule_find(names[i]), seed, i ? got : want);
                if (i == 0) n_want = n;
                n_tokens += n;
                n_steps++;
                if (i > 0 && (n != n_want || memcmp(got, want, (size_t)n * sizeof *got) != 0))
                    fail_msg("seed %d, shape %d: %s gives another greedy text than sampled", (int)seed, shape,
                             names[i]);
            }
        }
    assert_true(n_tokens > n_steps * 3 / 2); /* and drafts were accepted */
}

/* With a gamma that is too large some drafts are rejected, and the text is a beginning of the same text. */
static void greedy_with_a_given_gamma(void **state) {
    (void)state;
    int n_shorter = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        RigCase c = filtered(seed, 3);
        c.target.temperature = 0;
        c.n_levels = 2;
        c.levels[0] = c.levels[1] = (RigLevel){.kind = DRAW_IID, .k = 2};
        int32_t want[8], got[8];
        int32_t n_want = rig_step(&c, verify_rule_find("sampled"), seed, want);
        c.gamma = 3;
        int32_t n = rig_step(&c, verify_rule_find("k-seq"), seed, got);
        assert_true(n <= n_want);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        n_shorter += n < n_want;
    }
    assert_true(n_shorter > 0);
}

static void the_same_seed_gives_the_same_text(void **state) {
    (void)state;
    int n_different = 0;
    for (const VerifyRule *const *rule = verify_rules() + 1; *rule; rule++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            RigCase c = filtered(3, 5);
            c.n_levels = 3;
            for (int i = 0; i < 3; i++) c.levels[i] = (RigLevel){.kind = DRAW_IID, .k = 1};
            int32_t a[8], b[8], other[8];
            int32_t n = rig_step(&c, *rule, seed, a), n_other = rig_step(&c, *rule, seed + 1, other);
            assert_int_equal(rig_step(&c, *rule, seed, b), n);
            assert_memory_equal(a, b, (size_t)n * sizeof *a);
            n_different += n != n_other || memcmp(a, other, (size_t)n * sizeof *a) != 0;
        }
    assert_true(n_different > 50);
}

static void expect_refusal(const char *name, const Tree *t, const char *sentence) {
    VerifyInput in = {.tree = t};
    VerifyScratch *s = verify_scratch_new(4);
    VerifyResult out;
    fr_error err;
    assert_int_equal(verify_rule_find(name)->verify(&in, s, &out, &err), FR_ERR_UNSUPPORTED);
    if (!strstr(err.message, sentence) || !strstr(err.message, "--verify recursive"))
        fail_msg("%s: %s", name, err.message);
    verify_scratch_free(s);
}

static void groups_that_a_rule_cannot_handle_are_refused(void **state) {
    (void)state;
    static Tree t;
    DraftDists *dists = draft_dists_new(4);
    const float q[4] = {0.25f, 0.25f, 0.25f, 0.25f}, other[4] = {0.5f, 0.5f, 0, 0};
    tree_reset(&t, 0);
    tree_add(&t, 0, 1, 1, 0);
    tree_add(&t, 1, 1, 1, 0);
    tree_add(&t, 1, 2, 1, 0); /* the second node has two children */
    t.dists = dists;
    expect_refusal("chain", &t, "node 1 of the drafter's tree with its 2 drafts");
    expect_refusal("block", &t, "one draft at each node");
    expect_refusal("k-seq", &t, "independent draws from one distribution"); /* points */
    draft_dists_add(dists, 1, 2, DRAW_WITHOUT_REPLACEMENT, q);
    draft_dists_add(dists, 1, 3, DRAW_WITHOUT_REPLACEMENT, q);
    expect_refusal("multi-round", &t, "independent draws and points");
    expect_refusal("k-seq", &t, "independent draws from one distribution");
    draft_dists_reset(dists);
    draft_dists_add(dists, 1, 2, DRAW_IID, q);
    draft_dists_add(dists, 1, 3, DRAW_IID, other);
    expect_refusal("k-seq", &t, "independent draws from one distribution");
    draft_dists_reset(dists);
    tree_reset(&t, 0); /* one node drawn twice is two drafts */
    tree_add(&t, 0, 1, 1, 0);
    t.dists = dists;
    draft_dists_add(dists, 0, 1, DRAW_IID, q);
    draft_dists_add(dists, 0, 1, DRAW_IID, q);
    expect_refusal("chain", &t, "its 2 drafts");
    draft_dists_free(dists);
}

static void rules_and_their_options_are_parsed(void **state) {
    (void)state;
    const VerifyRule *rule;
    VerifyOptions o;
    fr_error err;
    assert_int_equal(verify_rule_parse("k-seq", true, &rule, &o, &err), FR_OK);
    assert_true(o.gamma == 0 && strcmp(rule->name, "k-seq") == 0);
    assert_int_equal(verify_rule_parse("k-seq:gamma=1.5", true, &rule, &o, &err), FR_OK);
    assert_true(o.gamma == 1.5 && strcmp(rule->name, "k-seq") == 0);
    assert_int_equal(verify_rule_parse("typical:delta=0.5,epsilon=0.25", true, &rule, &o, &err), FR_OK);
    assert_true(o.epsilon == 0.25 && o.delta == 0.5 && o.gamma == 0 && rule->is_lossy && !rule->is_ratio);
    static char long_text[400] = "chain:gamma=";
    memset(long_text + 12, '1', 300);
    const struct {
        const char *text, *sentence;
    } bad[] = {
        {"k-sec", "there is no verification rule 'k-sec'"},
        {"", "there is no verification rule ''"},
        {"k-seq:", "'k-seq:': write key=X after the colon"},
        {"k-seq:gamma=", "k-seq: 'gamma=' must be written key=value"},
        {"k-seq:gamma=0.9", "k-seq: 'gamma=0.9' must be a number from 1 to 1e+06"},
        {"k-seq:gamma=nan", "k-seq: 'gamma=nan' must be a number"},
        {"k-seq:gamma=2x", "k-seq: 'gamma=2x' must be a number"},
        {"k-seq:k=2", "k-seq: unknown option 'k'"},
        {"k-seq:gamma=2,", "must be written key=value"},
        {"typical:epsilon=0", "typical: 'epsilon=0' must be a number from 1e-06 to 1"},
        {"typical:epsilon=0.1,delta=2", "typical: 'delta=2' must be"},
        {"typical:epsilon=0.1delta=0.2", "typical: 'epsilon=0.1delta=0.2' must be"},
        {"chain:gamma=2", "chain has no options"},
        {"a-name-of-more-than-thirty-one-characters:gamma=2", "there is no verification rule"},
        {long_text, "there is no verification rule 'chain:gamma"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(verify_rule_parse(bad[i].text, true, &rule, &o, &err), FR_ERR_ARGUMENT);
        if (!strstr(err.message, bad[i].sentence)) fail_msg("%s: %s", bad[i].text, err.message);
    }
}

static int report(void **state) {
    (void)state;
    rig_print_checks();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_with_any_group),
        cmocka_unit_test(k_seq_with_any_gamma),
        cmocka_unit_test(chains),
        cmocka_unit_test(trees),
        cmocka_unit_test(trees_of_whole_groups),
        cmocka_unit_test(trees_pruned_by_rank),
        cmocka_unit_test(equal_distributions),
        cmocka_unit_test(block_keeps_no_fewer_than_chain),
        cmocka_unit_test(the_example_of_the_block_paper),
        cmocka_unit_test(texts_of_several_steps),
        cmocka_unit_test(every_fault_is_detected),
        cmocka_unit_test(at_temperature_0_the_text_is_greedy),
        cmocka_unit_test(greedy_with_a_given_gamma),
        cmocka_unit_test(the_same_seed_gives_the_same_text),
        cmocka_unit_test(groups_that_a_rule_cannot_handle_are_refused),
        cmocka_unit_test(rules_and_their_options_are_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, report);
}

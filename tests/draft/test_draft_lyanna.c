/* test_draft_lyanna.c - unit tests of the drafter lyanna with random weights: compares its trees with Algorithms 1 and
 * 2 over its layer, all in double precision, and steps with prompts; tests fusion=on and off. test_lyanna_text.c tests
 * it in the engine. */
#include "lyanna_rig.h"

#include "draft/learned/lyanna.h"
#include "tree/tree.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { H = LYANNA_H, V = LYANNA_V, N_TEXT = 20, MAX_DEPTH = 16 };

static const LyannaShape shapes[] = {
    {.path = "build/lyanna-0.gguf", .type = TYPE_F32, .rank = 24},
    {.path = "build/lyanna-1.gguf", .type = TYPE_Q8_0, .rank = 32, .n_hot = 101},
    {.path = "build/lyanna-2.gguf", .type = TYPE_F16},
    {.path = "build/lyanna-3.gguf", .type = TYPE_F16, .rank = 32, .first_token = "none"},
    {.path = "build/lyanna-4.gguf", .type = TYPE_F32, .rank = 24, .gate_rank = 20},
    {.path = "build/lyanna-5.gguf", .type = TYPE_F16, .gate_rank = 32, .n_inputs = 2},
    {.path = "build/lyanna-6.gguf", .type = TYPE_F32, .rank = 32, .n_hot = 101, .n_inputs = 7, .chain = "parallel"},
    {.path = "build/lyanna-7.gguf", .type = TYPE_F32, .rank = 24, .later = "token", .info_step = 2},
    {.path = "build/lyanna-8.gguf", .type = TYPE_F16, .rank = 24, .gate_rank = 20, .later = "state", .info_step = 2},
    {.path = "build/lyanna-9.gguf", .type = TYPE_Q8_0, .n_inputs = 2, .later = "state"},
};
enum { N_FILES = sizeof shapes / sizeof *shapes };
static LyannaWeights weights[N_FILES];

static int open_all(void **state) {
    lyanna_rig_open_target(state);
    for (int i = 0; i < N_FILES; i++) lyanna_rig_write(&weights[i], &shapes[i], 40 + (uint64_t)i);
    return 0;
}

static int close_all(void **state) {
    for (int i = 0; i < N_FILES; i++) learned_rig_free(&weights[i].rig);
    return lyanna_rig_close_target(state);
}

/* ---- a text, its hidden states, and its entries -------------------------------------- */

typedef struct Text {
    int32_t tokens[N_TEXT];
    float hidden[N_TEXT][H];
    LyannaRow entries[N_TEXT];
} Text;

static void read_text(LearnedReader *r, const LyannaWeights *w, uint64_t seed, Text *t) {
    Row rows[N_TEXT];
    fr_error err;
    rig_tokens(seed, V, t->tokens, N_TEXT);
    for (int32_t i = 0; i < N_TEXT; i++)
        rows[i] = (Row){.token = t->tokens[i], .sequence = r->sequence, .parent = i - 1, .want_hidden = true};
    executor_sequence_truncate(r->executor, r->sequence, 0);
    if (executor_reserve(r->executor, r->sequence, N_TEXT, &err) || executor_forward(r->executor, rows, N_TEXT, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < N_TEXT; i++) {
        memcpy(t->hidden[i], executor_hidden(r->executor, i), sizeof t->hidden[i]);
        if (i < N_TEXT - 1)
            lyanna_rig_entry(w, i ? &t->entries[i - 1] : NULL, t->tokens[i + 1], t->hidden[i], &t->entries[i]);
    }
}

/* Begins a sequence with the first n tokens as the prompt. */
static void show_prompt(Drafter *d, int32_t sequence, const Text *t, int32_t n, int32_t chunk) {
    const float *hidden[N_TEXT];
    fr_error err;
    for (int32_t i = 0; i < n; i++) hidden[i] = t->hidden[i];
    if (d->class->begin(d, sequence, t->tokens, n, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n - 1; i += chunk)
        if (d->class->observe_prompt(d, sequence, i, hidden + i, n - 1 - i < chunk ? n - 1 - i : chunk, &err))
            fail_msg("%s", err.message);
}

/* A step at n tokens that accepts m - 1 tokens and commits m. */
static void show_step(Drafter *d, int32_t sequence, const Text *t, int32_t n, int32_t m) {
    static Tree tree;
    const float *hidden[N_TEXT];
    VerifyResult verdict = {.n_path = m - 1, .next_token = t->tokens[n + m - 1]};
    fr_error err;
    tree_reset(&tree, t->tokens[n - 1]);
    for (int32_t i = 0; i < m; i++) {
        hidden[i] = t->hidden[n - 1 + i];
        if (i > 0) verdict.path[i - 1] = tree_add(&tree, i - 1, t->tokens[n - 1 + i], 0.5f, 0);
    }
    const VerifiedTree verified = {.tree = &tree, .hidden = hidden, .verdict = &verdict};
    if (d->class->observe_tree(d, sequence, &verified, &err) || d->class->observe(d, sequence, t->tokens + n, m, &err))
        fail_msg("%s", err.message);
}

/* Algorithm 1 at a context of n tokens. */
static void plain_fresh(const LyannaWeights *w, const Text *t, int32_t n, int32_t depth, int32_t top, Tree *out) {
    static LyannaStep steps[MAX_DEPTH];
    lyanna_rig_chain(w, &t->entries[n - 2], depth, steps);
    lyanna_rig_subtree(w, steps, depth, top, t->tokens[n - 1], out);
}

/* Algorithm 2, m tokens later, from the rows of the chain that was made at n tokens. */
static void plain_resampled(const LyannaWeights *w, const Text *t, int32_t n, int32_t m, int32_t depth, int32_t top,
                            Tree *out) {
    static LyannaStep steps[MAX_DEPTH];
    lyanna_rig_chain(w, &t->entries[n - 2], depth, steps);
    lyanna_rig_subtree(w, steps + m, depth - m, top, t->tokens[n + m - 1], out);
}

/* ---- tests ----------------------------------------------------------------------------------------- */

static void trees_are_those_of_algorithm_1(void **state) {
    (void)state;
    static const struct {
        int32_t depth, top;
        const char *table;
    } cases[] = {{1, 4, "f16"},     {4, 1, "factors"}, {3, 3, "factors"},
                 {5, 4, "factors"}, {5, 8, "factors"}, {5, 4, "f16"}};
    static const int32_t budgets[] = {60, 2, 17};
    static Text texts[3];
    static Tree want, got[3], alone;
    LearnedReader reader;
    learned_rig_open_reader(&reader, lyanna_target.model);
    for (int f = 0; f < N_FILES; f++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            char spec[128];
            fr_error err;
            bool is_exact = strcmp(cases[k].table, "factors") ==
                            0; /* the rounding of a table may change the order of nearly equal nodes */
            snprintf(spec, sizeof spec, "lyanna:file=%s,depth=%d,top=%d,table=%s,live=0", shapes[f].path,
                     cases[k].depth, cases[k].top, cases[k].table);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 4);
            for (int32_t i = 0; i < 3; i++) {
                read_text(&reader, &weights[f], 60 + (uint64_t)i, &texts[i]);
                show_prompt(d, i + 1, &texts[i], N_TEXT - 2 * i, 3 + i);
                tree_reset(&got[i], texts[i].tokens[N_TEXT - 2 * i - 1]);
            }
            Tree *trees[] = {&got[2], &got[0], &got[1]};
            if (d->class->propose(d, (int32_t[]){3, 1, 2}, (int32_t[]){budgets[2], budgets[0], budgets[1]}, trees, 3,
                                  &err))
                fail_msg("%s", err.message);
            for (int32_t i = 0; i < 3; i++) {
                int32_t pending = got[i].nodes[0].token;
                if (tree_validate(&got[i], pending, V, budgets[i] + 1, &err)) fail_msg("%s", err.message);
                plain_fresh(&weights[f], &texts[i], N_TEXT - 2 * i, cases[k].depth, cases[k].top, &want);
                union_prune(&want, budgets[i]);
                learned_rig_assert_alike(&want, &got[i], is_exact ? 5e-3 : 3e-2, spec);
                rig_propose(d, i + 1, pending, budgets[i], V, &alone); /* again, and now without the others */
                rig_assert_same_tree(&got[i], &alone, spec);
                d->class->end(d, i + 1);
            }
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    learned_rig_check_step(lyanna_target.model, "lyanna:file=build/lyanna-0.gguf,live=0");
    learned_rig_check_step(lyanna_target.model, "lyanna:file=build/lyanna-3.gguf,depth=2,live=0");
    learned_rig_check_step(lyanna_target.model, "lyanna:file=build/lyanna-5.gguf,live=0");
    learned_rig_check_step(lyanna_target.model, "lyanna:file=build/lyanna-7.gguf,live=0");
}

static void sequences_draft_together_as_each_by_itself(void **state) {
    (void)state;
    learned_rig_check_together(lyanna_target.model, "lyanna:file=build/lyanna-0.gguf,resample=0");
    learned_rig_check_together(lyanna_target.model, "lyanna:file=build/lyanna-1.gguf,fusion=off");
}

/* Merges a fresh tree (NULL: none) and a re-sampled one, path by path. */
static void unite(const Tree *fresh, const Tree *resampled, double trust, int32_t budget, Tree *out) {
    int32_t at[TREE_MAX_NODES] = {0};
    tree_reset(out, resampled->nodes[0].token);
    if (fresh) union_merge(out, fresh);
    for (int32_t i = 1; i < resampled->n; i++) {
        const TreeNode *node = &resampled->nodes[i];
        int32_t parent = at[node->parent];
        double share = (double)node->p_accept / (double)resampled->nodes[node->parent].p_accept;
        bool leaves = fresh && parent < fresh->n; /* nodes of the fresh tree come first */
        at[i] = tree_child(out, parent, node->token);
        if (at[i] < 0)
            at[i] = tree_add(out, parent, node->token,
                             (float)((double)out->nodes[parent].p_accept * share * (leaves ? trust : 1)), 0);
    }
    union_prune(out, budget);
}

/* Adds the expected and observed hits of a tree in one step of m tokens. */
static void plain_hits(const Tree *t, const int32_t *tokens, int32_t m, double *expected, double *observed) {
    for (int32_t i = 0, node = 0; i < m && node >= 0; i++) {
        double sum = 0;
        for (int32_t k = 1; k < t->n; k++)
            sum += t->nodes[k].parent == node ? (double)t->nodes[k].p_accept / (double)t->nodes[node].p_accept : 0;
        if (sum <= 0) return;
        node = tree_child(t, node, tokens[i]);
        *expected += sum;
        *observed += node >= 0;
    }
}

/* Checks that exactly the nodes that the fresh tree lacks are tagged. */
static void check_tags(const Tree *got, const Tree *fresh, int32_t budget) {
    static Tree kept;
    int32_t at[TREE_MAX_NODES] = {0};
    tree_reset(&kept, fresh->nodes[0].token);
    union_merge(&kept, fresh);
    union_prune(&kept, budget);
    for (int32_t i = 1; i < got->n; i++) {
        at[i] = at[got->nodes[i].parent] < 0 ? -1 : tree_child(&kept, at[got->nodes[i].parent], got->nodes[i].token);
        assert_int_equal(got->nodes[i].tag, at[i] < 0 ? LYANNA_RESAMPLED : LYANNA_FRESH);
    }
}

enum { N_BEFORE = 10, DEPTH = 5, TOP = 4, MAX_STEP = 6 };

/* Makes a chain at N_BEFORE tokens, then a step of m tokens, and computes the trees of Algorithms 1 and 2 at that
 * point, and the trust in the latter. */
typedef struct AfterStep {
    int32_t m;
    Text text;
    Tree fresh, resampled; /* resampled has only its root if no row is left */
    double trust;
} AfterStep;

static void plan_step(LearnedReader *reader, const LyannaWeights *w, int32_t m, AfterStep *a) {
    static Tree before;
    double expected = 8, observed = 8;
    a->m = m;
    read_text(reader, w, 70 + (uint64_t)m, &a->text);
    plain_fresh(w, &a->text, N_BEFORE, DEPTH, TOP, &before);
    plain_fresh(w, &a->text, N_BEFORE + m, DEPTH, TOP, &a->fresh);
    tree_reset(&a->resampled, a->text.tokens[N_BEFORE + m - 1]);
    if (m < DEPTH) plain_resampled(w, &a->text, N_BEFORE, m, DEPTH, TOP, &a->resampled);
    plain_hits(&before, a->text.tokens + N_BEFORE, m, &expected, &observed);
    a->trust = fmin(1, 0.4 / (observed / expected));
}

static void check_after_step(LearnedReader *reader, int i_file, const AfterStep *a, bool fusion, int32_t threshold) {
    static Tree want, got, again, none;
    char spec[160], resample[16] = "off";
    if (threshold >= 0) snprintf(resample, sizeof resample, "%d", threshold);
    snprintf(spec, sizeof spec, "lyanna:file=%s,depth=%d,top=%d,table=factors,fusion=%s,resample=%s,live=0",
             shapes[i_file].path, DEPTH, TOP, fusion ? "on" : "off", resample);
    Drafter *d = learned_rig_open_drafter(reader, spec, 1);
    int32_t budget = 12 + 7 * a->m, now = N_BEFORE + a->m, pending = a->text.tokens[now - 1];
    bool any = threshold >= 0 && DEPTH - a->m > threshold, is_alone = any && !fusion;
    show_prompt(d, 0, &a->text, N_BEFORE, 4);
    rig_propose(d, 0, a->text.tokens[N_BEFORE - 1], 8, V, &got);
    show_step(d, 0, &a->text, N_BEFORE, a->m);
    rig_propose(d, 0, pending, budget, V, &got);
    tree_reset(&none, pending);
    unite(is_alone ? NULL : &a->fresh, any ? &a->resampled : &none, a->trust, budget, &want);
    learned_rig_assert_alike(&want, &got, 1e-2, spec);
    check_tags(&got, is_alone ? &none : &a->fresh, budget);
    rig_propose(d, 0, pending, budget, V, &again); /* as after a proposal that was not used */
    rig_assert_same_tree(&got, &again, spec);
    if (is_alone) { /* after it comes a fresh tree */
        show_step(d, 0, &a->text, now, 1);
        rig_propose(d, 0, a->text.tokens[now], budget, V, &got);
        plain_fresh(&weights[i_file], &a->text, now + 1, DEPTH, TOP, &want);
        union_prune(&want, budget);
        learned_rig_assert_alike(&want, &got, 1e-2, spec);
    }
    drafter_close(d);
}

static void what_is_left_is_sampled_again(void **state) {
    (void)state;
    static AfterStep after;
    LearnedReader reader;
    learned_rig_open_reader(&reader, lyanna_target.model);
    for (int f = 0; f < N_FILES; f++)
        for (int32_t m = 1; m <= MAX_STEP; m++) {
            plan_step(&reader, &weights[f], m, &after);
            for (int32_t threshold = -1; threshold <= 3; threshold++) {
                check_after_step(&reader, f, &after, true, threshold);
                check_after_step(&reader, f, &after, false, threshold);
            }
        }
    learned_rig_close_reader(&reader);
}

/* With fresh=N the N best nodes of the fresh tree are verified, and beyond them only re-sampled nodes. */
static void fresh_nodes_can_be_limited(void **state) {
    (void)state;
    enum { N = 6, BUDGET = 30 };
    static AfterStep after;
    static Tree best, got;
    LearnedReader reader;
    char spec[160];
    learned_rig_open_reader(&reader, lyanna_target.model);
    plan_step(&reader, &weights[0], 1, &after);
    best = after.fresh;
    union_prune(&best, N);
    for (int i = 0; i < 2; i++) {
        int32_t n_fresh = 0, at[TREE_MAX_NODES] = {0};
        snprintf(spec, sizeof spec, "lyanna:file=%s,table=factors,live=0,fresh=%d,resample=%s", shapes[0].path, N,
                 i ? "0" : "off");
        Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
        show_prompt(d, 0, &after.text, N_BEFORE, 4);
        rig_propose(d, 0, after.text.tokens[N_BEFORE - 1], 8, V, &got);
        show_step(d, 0, &after.text, N_BEFORE, 1);
        rig_propose(d, 0, after.text.tokens[N_BEFORE], BUDGET, V, &got);
        for (int32_t k = 1; k < got.n; k++) n_fresh += got.nodes[k].tag == LYANNA_FRESH;
        assert_int_equal(n_fresh, N);
        assert_true(i ? got.n > N + 1 : got.n == N + 1);
        for (int32_t k = 1; k < best.n; k++) {
            at[k] = tree_child(&got, at[best.nodes[k].parent], best.nodes[k].token);
            assert_true(at[k] > 0);
        }
        drafter_close(d);
    }
    learned_rig_close_reader(&reader);
}

static bool is_near(double a, double b) { return fabs(a - b) < 1e-6; }

static void hits_are_counted_along_the_text(void **state) {
    (void)state;
    static Tree t, f, into;
    fr_error err;
    LyannaHitRate p = {0}, none = {0}, good = {.expected = 20, .observed = 20}, bad = {.expected = 20, .observed = 2};
    tree_reset(&t, 7);
    int32_t cat = tree_add(&t, 0, 1, 0.6f, 0), dog = tree_add(&t, 0, 2, 0.2f, 0), sat = tree_add(&t, cat, 3, 0.3f, 0),
            ran = tree_add(&t, dog, 3, 0.1f, 0);
    lyanna_update_hit_rate(&p, &t, NULL, (int32_t[]){9, 3}, 2); /* no hit at depth 1, so nothing below it is counted */
    assert_true(is_near(p.expected, 0.8) && p.observed == 0);
    lyanna_update_hit_rate(&p, &t, NULL, (int32_t[]){1, 4},
                           2); /* cat is a hit; below it sat was expected with 0.5, but another token came */
    assert_true(is_near(p.expected, 0.8 + 0.8 + 0.5) && p.observed == 1);
    lyanna_update_hit_rate(&p, &t, NULL, (int32_t[]){1, 3, 5},
                           3); /* cat and sat are hits; below sat nothing was expected */
    assert_true(is_near(p.expected, 0.8 + 0.8 + 0.5 + 0.8 + 0.5) && p.observed == 3);
    for (int i = 0; i < 4000; i++) lyanna_update_hit_rate(&p, &t, NULL, (int32_t[]){2}, 1); /* old counts lose weight */
    assert_true(p.expected < 512 && fabs(p.observed / p.expected - 1 / 0.8) < 0.01);

    tree_reset(&f, 7); /* with a fresh tree that has cat: only dog and sat are not in both */
    tree_add(&f, tree_add(&f, 0, 1, 0.5f, 0), 5, 0.2f, 0);
    p = none;
    lyanna_update_hit_rate(&p, &t, &f, (int32_t[]){1, 3}, 2);
    assert_true(is_near(p.expected, 0.2 + 0.5) && p.observed == 1); /* cat is in both; sat is only in t and is a hit */
    lyanna_update_hit_rate(&p, &t, &f, (int32_t[]){2, 3}, 2);
    assert_true(is_near(p.expected, 0.7 + 0.2) &&
                p.observed == 2); /* dog is a hit; the fresh tree has no node below it */

    assert_true(is_near(lyanna_trust(&none, &none), 0.4));
    assert_true(lyanna_trust(&good, &bad) == 1); /* at most 1 */
    assert_true(is_near(lyanna_trust(&bad, &good), (2 + 3.2) / 28));
    lyanna_reweight(&t, &f, 0.25, &into);
    if (tree_validate(&into, 7, V, 8, &err)) fail_msg("%s", err.message);
    assert_true(is_near((double)into.nodes[cat].p_accept, 0.5) &&
                is_near((double)into.nodes[dog].p_accept, 0.25 * 0.2));
    assert_true(is_near((double)into.nodes[sat].p_accept, 0.5 * 0.25 * 0.5) &&
                is_near((double)into.nodes[ran].p_accept, 0.25 * 0.2 * 0.5));
}

static void refuse(const char *spec, fr_code code, const char *words) {
    learned_rig_check_refused(lyanna_target.model, spec, code, words);
}

static void invalid_files_and_options_are_refused(void **state) {
    (void)state;
    static const LyannaShape bad[] = {
        {.path = "build/lyanna-bad-0.gguf", .type = TYPE_F16, .rank = 32, .n_hot = 20, .bad_hot = 1},
        {.path = "build/lyanna-bad-1.gguf", .type = TYPE_F16, .rank = 32, .n_hot = 20, .bad_hot = 2},
        {.path = "build/lyanna-bad-2.gguf", .type = TYPE_F16, .rank = 32, .first_token = "later"},
        {.path = "build/lyanna-bad-3.gguf", .type = TYPE_F16, .n_inputs = 2, .chain = "braided"},
        {.path = "build/lyanna-bad-4.gguf", .type = TYPE_F16, .chain = "parallel"},
        {.path = "build/lyanna-bad-5.gguf", .type = TYPE_F16, .n_inputs = 2, .chain = "serial"},
        {.path = "build/lyanna-bad-6.gguf", .type = TYPE_F16, .gate_rank = 8, .bad_gate = 1},
        {.path = "build/lyanna-bad-7.gguf", .type = TYPE_F16, .gate_rank = 8, .bad_gate = 2},
        {.path = "build/lyanna-bad-8.gguf", .type = TYPE_F16, .gate_rank = 8, .bad_gate = 3},
        {.path = "build/lyanna-bad-9.gguf", .type = TYPE_F16, .later = "both"},
        {.path = "build/lyanna-bad-10.gguf", .type = TYPE_F16, .n_inputs = 2, .later = "token"},
        {.path = "build/lyanna-bad-11.gguf", .type = TYPE_F16, .rank = 32, .info_step = 3},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        LyannaWeights w;
        lyanna_rig_write(&w, &bad[i], 60 + i);
        learned_rig_free(&w.rig);
    }
    refuse("lyanna:file=build/lyanna-bad-0.gguf", FR_ERR_FORMAT, "entry 1 of forerun-drafter.lyanna.hot_tokens");
    refuse("lyanna:file=build/lyanna-bad-1.gguf", FR_ERR_FORMAT, "entry 19 of forerun-drafter.lyanna.hot_tokens");
    refuse("lyanna:file=build/lyanna-bad-2.gguf", FR_ERR_FORMAT, "first_token is 'later'");
    refuse("lyanna:file=build/lyanna-bad-3.gguf", FR_ERR_FORMAT, "lyanna.chain is 'braided'");
    refuse("lyanna:file=build/lyanna-bad-4.gguf", FR_ERR_FORMAT, "lyanna.chain.n_inputs");
    refuse("lyanna:file=build/lyanna-bad-5.gguf", FR_ERR_UNSUPPORTED,
           "tensor lyanna.chain.inputs.weight, which its method does not read");
    refuse("lyanna:file=build/lyanna-bad-6.gguf", FR_ERR_FORMAT, "lyanna.gate.state.weight");
    refuse("lyanna:file=build/lyanna-bad-7.gguf", FR_ERR_FORMAT, "lyanna.gate.token.weight");
    refuse("lyanna:file=build/lyanna-bad-8.gguf", FR_ERR_FORMAT, "lyanna.gate.up.weight");
    refuse("lyanna:file=build/lyanna-bad-9.gguf", FR_ERR_FORMAT, "lyanna.later.input is 'both'");
    refuse("lyanna:file=build/lyanna-bad-10.gguf", FR_ERR_FORMAT, "a parallel chain cannot read the state");
    refuse("lyanna:file=build/lyanna-bad-11.gguf", FR_ERR_FORMAT, "lyanna.token_info.first_step");
    refuse("lyanna:file=build/lyanna-0.gguf,resample=never", FR_ERR_ARGUMENT,
           "'resample=never' must be off or an integer from 0 to 16");
    refuse("lyanna:file=build/lyanna-0.gguf,fusion=maybe", FR_ERR_ARGUMENT, "'fusion=maybe' must be off, on or auto");
    refuse("lyanna:file=build/lyanna-0.gguf,table=f32", FR_ERR_ARGUMENT, "must be f16, q8 or factors");
    refuse("lyanna:file=build/lyanna-0.gguf,depth=9,top=8", FR_ERR_ARGUMENT, "more than the 511 nodes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_algorithm_1),
        cmocka_unit_test(what_is_left_is_sampled_again),
        cmocka_unit_test(fresh_nodes_can_be_limited),
        cmocka_unit_test(hits_are_counted_along_the_text),
        cmocka_unit_test(invalid_files_and_options_are_refused),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(sequences_draft_together_as_each_by_itself),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

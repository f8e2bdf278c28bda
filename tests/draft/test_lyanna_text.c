/* test_lyanna_text.c - lyanna in the engine with random weights: what it learns from a text, and that no text depends
 * on it, with every form of re-sampling and with proposals that depend on times. */
#include "lyanna_rig.h"

#include <stdio.h>
#include <string.h>

enum { H = LYANNA_H, V = LYANNA_V };

static const LyannaShape shapes[] = {
    {.path = "build/lyanna-text-0.gguf", .type = TYPE_F32, .rank = 24},
    {.path = "build/lyanna-text-1.gguf", .type = TYPE_Q8_0, .rank = 32, .n_hot = 101},
    {.path = "build/lyanna-text-2.gguf", .type = TYPE_F16},
    {.path = "build/lyanna-text-3.gguf", .type = TYPE_F16, .rank = 32, .first_token = "none"},
    {.path = "build/lyanna-text-5.gguf", .type = TYPE_F16, .gate_rank = 32, .n_inputs = 2},
    {.path = "build/lyanna-text-6.gguf", .type = TYPE_F16, .rank = 32, .later = "token", .info_step = 2},
};

static int write_all(void **state) {
    lyanna_rig_open_target(state);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        LyannaWeights weights;
        lyanna_rig_write(&weights, &shapes[i], 40 + (uint64_t)i);
        learned_rig_free(&weights.rig);
    }
    return 0;
}

/* The target chooses a token after "x" that the draft did not expect; when x comes again, the draft expects it. */
static void the_text_teaches_the_successors_of_a_token(void **state) {
    (void)state;
    enum { X = 20, Y = 33, N = 13 };
    const int32_t tokens[N] = {5, X, Y, 9, X, Y, 6, X, Y, 7, X, Y, X};
    static const char *const specs[] = {"lyanna:file=build/lyanna-text-0.gguf,live=0",
                                        "lyanna:file=build/lyanna-text-0.gguf"};
    static float hidden[H], logits[V];
    static Tree t, tree;
    LearnedReader reader;
    learned_rig_open_reader(&reader, lyanna_target.model);
    for (int i = 0; i < H; i++) hidden[i] = (float)(i % 7) - 3;
    for (int is_live = 0; is_live < 2; is_live++) {
        Drafter *d = learned_rig_open_drafter(&reader, specs[is_live], 2);
        const float *row = hidden, *after[] = {logits};
        fr_error err;
        for (int32_t sequence = 0; sequence < 2; sequence++) /* a correction ends with its text */
            for (int round = 0; round < 2; round++) {
                d->class->set_sampling(d, sequence, &SAMPLING_DEFAULT, 2);
                if (d->class->begin(d, sequence, tokens, 2, &err) ||
                    d->class->observe_prompt(d, sequence, 0, &row, 1, &err))
                    fail_msg("%s", err.message);
                for (int32_t n = 2; n <= N; n++) {
                    VerifyResult verdict = {.next_token = n < N ? tokens[n] : 0};
                    rig_propose(d, sequence, tokens[n - 1], 30, V, &t);
                    int32_t child = tree_child(&t, 0, Y);
                    if (n == 2) assert_true(child < 0);
                    if (n == N) assert_int_equal(child > 0, is_live);
                    if (n == N) break;
                    for (int i = 0; i < V; i++) logits[i] = i == verdict.next_token ? 30 : (float)(i % 3);
                    tree_reset(&tree, tokens[n - 1]);
                    const VerifiedTree v = {.tree = &tree, .logits = after, .hidden = &row, .verdict = &verdict};
                    if (d->class->observe_tree(d, sequence, &v, &err) ||
                        d->class->observe(d, sequence, &tokens[n], 1, &err))
                        fail_msg("%s", err.message);
                }
                d->class->end(d, sequence);
            }
        drafter_close(d);
    }
    learned_rig_close_reader(&reader);
}

/* Proposals depend on times, but the text does not. Under a ratio rule no proposal depends on times. */
static void steps_without_a_draft_change_no_text(void **state) {
    (void)state;
    static const char *const specs[] = {"lyanna:file=build/lyanna-text-0.gguf,resample=0,fusion=auto",
                                        "lyanna:file=build/lyanna-text-0.gguf,resample=0"};
    static Stream plain, got[2];
    fr_model *model = rig_open_model(LYANNA_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    int32_t prompt[12];
    rig_tokens(5, V, prompt, 12);
    for (int i = 0; i < 6; i++) {
        fr_request_options o = {.struct_size = sizeof o,
                                .prompt = prompt,
                                .n_prompt = 12,
                                .max_tokens = 60,
                                .sampling = fr_sampling_default(),
                                .ignore_eos = 1};
        o.sampling.temperature = 0.5f * (float)(i % 3), o.sampling.seed = 4;
        if (i >= 3) o.verify = "multi-round";
        if (i < 3) rig_run_request(e, &o, &plain);
        o.n_drafts = 1, o.tree_budget = 12;
        for (int k = 0; k < 2; k++) {
            o.drafts = &specs[k];
            rig_run_request(e, &o, &got[k]);
        }
        rig_assert_same(i < 3 ? &plain : &got[1], &got[0], specs[0]);
        if (i >= 3) assert_int_equal(got[0].stats.drafted, got[1].stats.drafted);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    learned_rig_check_lossless(LYANNA_TARGET, "lyanna:file=build/lyanna-text-0.gguf,resample=0");
    learned_rig_check_lossless(LYANNA_TARGET, "lyanna:file=build/lyanna-text-1.gguf,fusion=off,table=q8");
    learned_rig_check_lossless(LYANNA_TARGET, "lyanna:file=build/lyanna-text-2.gguf,depth=2,top=8,resample=off");
    learned_rig_check_lossless(LYANNA_TARGET, "lyanna:file=build/lyanna-text-3.gguf,depth=6,table=factors");
    learned_rig_check_lossless(LYANNA_TARGET, "lyanna:file=build/lyanna-text-5.gguf,resample=0");
    learned_rig_check_lossless(LYANNA_TARGET, "lyanna:file=build/lyanna-text-6.gguf,resample=0");
}

/* Checks the engine's counts with the three forms of re-sampling. */
static void re_sampled_nodes_are_counted_separately(void **state) {
    (void)state;
    static const struct {
        const char *draft;
        bool any;
    } cases[] = {
        {"lyanna:file=build/lyanna-text-2.gguf,resample=0,top=8", true},
        {"lyanna:file=build/lyanna-text-2.gguf,resample=0,top=8,fusion=off", true},
        {"lyanna:file=build/lyanna-text-2.gguf,resample=off,top=8", false},
    };
    static Stream got;
    int32_t prompt[8];
    fr_model *model = rig_open_model(LYANNA_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    rig_tokens(5, V, prompt, 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fr_request_options o = {.struct_size = sizeof o,
                                .prompt = prompt,
                                .n_prompt = 8,
                                .max_tokens = 200,
                                .sampling = fr_sampling_default(),
                                .ignore_eos = 1,
                                .drafts = &cases[i].draft,
                                .n_drafts = 1,
                                .tree_budget = 120};
        rig_run_request(e, &o, &got);
        const fr_stats *s = &got.stats;
        if (got.draft_error[0]) fail_msg("%s", got.draft_error);
        assert_int_equal(got.drafts.n_counters, 1);
        const fr_counter *c = &got.drafts.counters[0];
        assert_string_equal(c->name, "lyanna.resampled");
        assert_int_equal(c->drafted > 0, cases[i].any);
        assert_true(c->drafted < s->drafted && c->accepted <= s->accepted && c->accepted <= c->drafted);
        if (cases[i].any) assert_true(c->accepted > 0);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_teaches_the_successors_of_a_token),
        cmocka_unit_test(steps_without_a_draft_change_no_text),
        cmocka_unit_test(re_sampled_nodes_are_counted_separately),
        cmocka_unit_test(the_text_is_the_plain_one),
    };
    return cmocka_run_group_tests(tests, write_all, lyanna_rig_close_target);
}

/* test_suppressed_tokens.c - tokens that a model's file suppresses (tokenizer.ggml.suppress_tokens) are never
 * generated. The text is that of the same model without the list under biases that ban these tokens, with and without
 * drafts, greedily, at a temperature and beside biases of the request. */
#include "engine_rig.h"

#include "random_model.h"

enum { VOCAB = 300, N_PROMPT = 12, N_TOKENS = 48, N_SUPPRESSED = 40 };

/* The same model with and without the list, which also has ids that do not exist, and one twice. */
static fr_model *open_model(bool is_listed) {
    static int32_t listed[N_SUPPRESSED + 3];
    for (int32_t i = 0; i < N_SUPPRESSED; i++) listed[i] = 260 + i;
    listed[N_SUPPRESSED] = -7, listed[N_SUPPRESSED + 1] = VOCAB, listed[N_SUPPRESSED + 2] = 270;
    const RandomModel m = {SMALL_LLAMA, .n_vocab = VOCAB, .suppressed = listed,
                           .n_suppressed = is_listed ? N_SUPPRESSED + 3 : 0, .seed = 5};
    return rig_open_random(&m);
}

/* Bans the listed tokens by biases if has_bans. */
static void run(const fr_model *model, const char *draft, float temperature, bool has_bans, Stream *out) {
    fr_logit_bias bias[N_SUPPRESSED + 2] = {{70, 1.5f}, {265, 100}}; /* the second is of a suppressed token */
    int32_t prompt[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = 3 + i * i % 200;
    for (int32_t i = 0; i < N_SUPPRESSED; i++) bias[2 + i] = (fr_logit_bias){260 + i, -INFINITY};
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = 1,
                                                               .n_ctx = 128,
                                                               .drafts = &draft,
                                                               .n_drafts = draft ? 1 : 0});
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = &draft,
                            .n_drafts = draft ? 1 : 0,
                            .tree_budget = 8,
                            .ignore_eos = 1,
                            .logit_bias = bias,
                            .n_logit_bias = 2 + (has_bans ? N_SUPPRESSED : 0)};
    o.sampling.temperature = temperature;
    o.sampling.seed = 4;
    rig_run_request(e, &o, out);
    fr_engine_close(e);
}

static void test_never_generated(void **state) {
    (void)state;
    static Stream banned, plain, drafted, free_text;
    fr_model *listed = open_model(true), *unlisted = open_model(false);
    for (int k = 0; k < 2; k++) {
        float temperature = k ? 1.2f : 0;
        run(unlisted, NULL, temperature, true, &banned);
        run(unlisted, NULL, temperature, false, &free_text);
        run(listed, NULL, temperature, false, &plain);
        run(listed, "recycling", temperature, false, &drafted);
        rig_assert_same(&banned, &plain, "suppressed by the file, and by biases");
        rig_assert_same(&plain, &drafted, "suppressed, with drafts");
        int n_free = 0;
        for (int64_t i = 0; i < N_TOKENS; i++) {
            assert_true(plain.tokens[i] < 260);
            n_free += free_text.tokens[i] >= 260;
        }
        assert_true(n_free > 0); /* the list made a difference */
        assert_true(drafted.stats.drafted > 0);
    }
    fr_model_close(unlisted);
    fr_model_close(listed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_never_generated)};
    return cmocka_run_group_tests_name("suppressed_tokens", tests, NULL, NULL);
}

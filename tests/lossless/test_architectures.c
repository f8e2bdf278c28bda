/* test_architectures.c - every architecture in the engine: texts with drafts are those of plain decoding, for a single
 * request and in a batch whose requests choose other experts, with pages of one token and with pages taken away; and
 * tests that detect a wrong window or a swapped expert. */
#include "engine_rig.h"

#include "model_rig.h"
#include "random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE(a, layers, embd, heads, kv, ff) \
    .arch = a, .n_layer = layers, .n_embd = embd, .n_head = heads, .n_head_kv = kv, .n_ff = ff, .n_vocab = 300
#define HYBRID(keys, values, dim, conv, interval) \
    .n_key_heads = keys, .n_value_heads = values, .delta_dim = dim, .n_conv = conv, .attention_interval = interval
#define LATENT(q, kv, plain, rot, value) \
    .q_rank = q, .kv_rank = kv, .plain_dim = plain, .n_rot = rot, .value_dim = value
#define EXPERTS(n, used, ff) .n_expert = n, .n_expert_used = used, .n_ff_expert = ff

static const RandomModel models[] = {
    {SHAPE("llama", 2, 48, 4, 2, 70), .seed = 1},
    {SHAPE("qwen2", 2, 48, 4, 2, 70), .seed = 2},
    {SHAPE("qwen3", 2, 48, 4, 2, 70), .seed = 3},
    {SHAPE("llama", 2, 48, 4, 2, 40), EXPERTS(8, 2, 40), .seed = 4},
    {SHAPE("qwen2moe", 2, 64, 4, 2, 96), EXPERTS(12, 4, 32), .n_ff_shared = 64, .types = {TYPE_Q8_0}, .n_types = 1,
     .seed = 5},
    {SHAPE("qwen3moe", 2, 64, 4, 2, 96), EXPERTS(16, 3, 32), .types = {TYPE_Q8_0}, .n_types = 1, .seed = 6},
    {SHAPE("gemma2", 2, 48, 4, 2, 70), .window = 7, .seed = 7},
    {SHAPE("gemma3", 6, 48, 4, 2, 70), .window = 9, .seed = 8},
    {SHAPE("phi3", 2, 48, 4, 2, 70), .window = 11, .seed = 9},
    {SHAPE("smollm3", 4, 48, 4, 2, 70), .seed = 10},
    {SHAPE("granite", 2, 48, 4, 2, 70), .seed = 11},
    {SHAPE("qwen35", 4, 48, 4, 2, 70), HYBRID(2, 4, 12, 4, 2), .n_rot = 6, .n_nextn = 1, .seed = 22},
    {SHAPE("qwen35moe", 3, 64, 4, 2, 96), HYBRID(2, 2, 32, 3, 3), EXPERTS(6, 2, 32), .n_ff_shared = 64,
     .types = {TYPE_Q8_0}, .n_types = 1, .n_nextn = 1, .seed = 33},
    {SHAPE("qwen3next", 4, 48, 4, 2, 70), HYBRID(1, 3, 20, 2, 4), EXPERTS(5, 2, 24), .n_ff_shared = 40, .n_nextn = 1,
     .seed = 38},
    {SHAPE("lfm2", 4, 48, 4, 2, 70), .n_conv = 3, .attention_interval = 3, .seed = 55},
    {SHAPE("granitehybrid", 3, 48, 4, 2, 70), HYBRID(1, 6, 16, 4, 3), .n_ssm_state = 12, .seed = 46},
    {SHAPE("granitehybrid", 2, 64, 4, 2, 96), HYBRID(2, 4, 32, 3, 2), .n_ssm_state = 16, EXPERTS(6, 2, 32),
     .n_ff_shared = 64, .rope_base = 1e4, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 48},
    {SHAPE("mamba2", 3, 48, 0, 0, 0), HYBRID(2, 6, 16, 4, 0), .n_ssm_state = 12, .seed = 47},
    {SHAPE("gpt-oss", 3, 64, 4, 2, 96), EXPERTS(7, 3, 32), .head_dim = 24, .window = 7, .types = {TYPE_MXFP4},
     .n_types = 1, .seed = 12},
    {SHAPE("deepseek2", 3, 48, 5, 1, 70), LATENT(0, 36, 10, 6, 14), .n_dense = 1, EXPERTS(7, 3, 22), .n_ff_shared = 44,
     .seed = 14},
    {SHAPE("deepseek2", 2, 64, 4, 1, 96), LATENT(32, 64, 32, 16, 32), .n_dense = 1, EXPERTS(8, 2, 32),
     .n_ff_shared = 64, .n_groups = 4, .n_groups_used = 2, .has_sigmoid_router = true, .divides_by_chosen = true,
     .expert_scale = 2.5, .types = {TYPE_Q8_0}, .n_types = 1, .seed = 15},
    {SHAPE("deepseek2", 2, 48, 5, 1, 70), LATENT(20, 36, 10, 6, 14), .n_dense = 1, EXPERTS(7, 3, 22), .n_ff_shared = 44,
     .has_sigmoid_router = true, .n_nextn = 1, .seed = 16},
    {SHAPE("glm4moe", 3, 48, 4, 2, 70), .head_dim = 18, .n_rot = 10, .n_dense = 1, EXPERTS(7, 3, 22), .n_ff_shared = 44,
     .has_sigmoid_router = true, .divides_by_chosen = true, .head_norms = true, .n_nextn = 1, .seed = 17},
    {SHAPE("mistral3", 2, 48, 4, 2, 70), .rope_scaling = "yarn", .rope_factor = 16, .rope_n_ctx_orig = 9,
     .yarn_log_multiplier = 1, .temperature_scale = 0.4, .seed = 60},
    {SHAPE("deepseek2", 2, 48, 4, 1, 70), LATENT(0, 36, 10, 6, 14), .temperature_scale = 0.4, .temperature_length = 9,
     .seed = 61},
    {SHAPE("llama4", 4, 48, 4, 2, 70), EXPERTS(6, 2, 32), .n_ff_shared = 32, .expert_interval = 2, .window = 11,
     .temperature_length = 9, .seed = 62},
    {SHAPE("lfm2moe", 3, 48, 4, 2, 70), .n_conv = 3, .attention_interval = 3, .n_dense = 1, EXPERTS(6, 2, 32),
     .has_sigmoid_router = true, .seed = 81},
};
enum { N_MODELS = sizeof models / sizeof *models, N_TOKENS = 40, N_PROMPT = 24 };

static fr_request_options request_of(int32_t prompt[N_PROMPT], int i) {
    rig_tokens((uint64_t)(i / 2), 300, prompt, N_PROMPT);
    for (int k = 0; k < N_PROMPT; k++)
        prompt[k] = k % 8 < 4 ? prompt[k % 4] : prompt[k]; /* the prompt repeats itself,
                                                                                           * so that drafters find
                                                                                           * matches */
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS - i,
                            .sampling = fr_sampling_default(),
                            .tree_budget = 3 + 3 * i,
                            .ignore_eos = 1};
    if (i % 2) o.sampling.temperature = 0.9f, o.sampling.top_p = 0.9f, o.sampling.seed = (uint64_t)i;
    return o;
}

static const char *const drafts[] = {"suffix", "recycling", "ngram-trie", "lookahead-trie", "mtp:top=8"};
enum { N_DRAFTS = sizeof drafts / sizeof *drafts };

static int n_drafts_of(const RandomModel *m) { return m->n_nextn ? N_DRAFTS : N_DRAFTS - 1; }

/* All requests at once: each text is that of plain decoding by itself. `options`: of the batch. */
static int64_t check_batch(const fr_model *model, int n, const Stream *plain, const fr_engine_options *options) {
    fr_request *r[N_DRAFTS];
    int32_t prompts[N_DRAFTS][N_PROMPT];
    static Stream got;
    int64_t accepted = 0;
    int left;
    fr_error err;
    fr_engine *e = rig_open_engine(model, options);
    for (int i = 0; i < n; i++) {
        fr_request_options o = request_of(prompts[i], i);
        o.drafts = &drafts[i], o.n_drafts = 1;
        if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s", err.message);
    }
    while ((left = fr_engine_step(e, &err)) > 0) {}
    if (left < 0) fail_msg("%s", err.message);
    for (int i = 0; i < n; i++) {
        rig_collect(r[i], &got);
        rig_assert_same(&plain[i], &got, drafts[i]);
        assert_string_equal(got.draft_error, "");
        if (strncmp(drafts[i], "mtp", 3) == 0) assert_true(got.stats.drafted > 0);
        accepted += got.stats.accepted;
    }
    fr_engine_close(e);
    return accepted;
}

static void drafts_and_company_change_nothing(void **state) {
    (void)state;
    static Stream plain[N_DRAFTS];
    for (int m = 0; m < N_MODELS; m++) {
        fr_model *model = rig_open_random(&models[m]);
        int32_t prompt[N_PROMPT];
        fr_engine *e = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96, .n_threads = 1});
        for (int i = 0; i < n_drafts_of(&models[m]); i++) {
            fr_request_options o = request_of(prompt, i);
            rig_run_request(e, &o, &plain[i]);
        }
        fr_engine_close(e);
        int64_t accepted = 0;
        for (int threads = 1; threads <= 3; threads++) {
            fr_engine_options options = {.struct_size = sizeof options,
                                         .n_ctx = 96,
                                         .n_threads = threads,
                                         .max_requests = N_DRAFTS};
            options.kv_page_size = 2 * threads - 1, options.prefill_chunk = 5 * threads;
            if (threads == 3) options.kv_tokens = 2 * 96; /* pages are taken from the youngest */
            accepted += check_batch(model, n_drafts_of(&models[m]), plain, &options);
        }
        print_message("%-9s %d experts: %d drafts accepted\n", models[m].arch, models[m].n_expert, (int)accepted);
        if (accepted < 5) fail_msg("%s: only %d drafts accepted", models[m].arch, (int)accepted);
        fr_model_close(model);
    }
}

/* The second turn of a conversation: its prompt begins with the whole first turn. Tokens that were read then are not
 * read again, and the text is that of an engine which keeps nothing; the same holds once more. A model with a recurrent
 * state keeps the state after the last token, and the one at the last border of a page in the prompt. */
static void a_second_turn_takes_over_the_first(void **state) {
    (void)state;
    enum { N_MORE = 5, PAGE = 4 };
    static Stream first, second[2], again[2];
    for (int i = 0; i < 2 * N_MODELS; i++) {
        int m = i / 2;
        const char *draft = i % 2 ? "mtp" : drafts[0];
        if (i % 2 && !models[m].n_nextn) continue;
        fr_model *model = rig_open_random(&models[m]);
        int32_t prompt[N_PROMPT + N_TOKENS + N_MORE];
        fr_request_options o = {.struct_size = sizeof o};
        for (int shares = 0; shares < 2; shares++) {
            fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                       .n_ctx = 128,
                                                                       .n_threads = 1,
                                                                       .kv_page_size = PAGE,
                                                                       .prefix_cache = shares ? 2 : -1});
            o = request_of(prompt, 0);
            o.drafts = &draft, o.n_drafts = 1;
            rig_run_request(e, &o, &first);
            memcpy(prompt + N_PROMPT, first.tokens, N_TOKENS * sizeof *prompt);
            rig_tokens(77, 300, prompt + N_PROMPT + N_TOKENS, N_MORE);
            o.n_prompt = N_PROMPT + N_TOKENS + N_MORE;
            rig_run_request(e, &o, &second[shares]);
            rig_run_request(e, &o, &again[shares]);
            fr_engine_close(e);
        }
        rig_assert_same(&second[0], &second[1], models[m].arch);
        if (second[1].stats.n_prompt_shared < N_PROMPT + N_TOKENS - 1)
            fail_msg("%s: %d tokens taken over", models[m].arch, (int)second[1].stats.n_prompt_shared);
        rig_assert_same(&again[0], &again[1], models[m].arch);
        int n_most = (int)o.n_prompt - 1 - i % 2, n_again = (int)again[1].stats.n_prompt_shared;
        if (n_again != (models[m].n_conv ? n_most / PAGE * PAGE : n_most))
            fail_msg("%s: %d tokens taken over again", models[m].arch, n_again);
        fr_model_close(model);
    }
}

/* Another window, another temperature, or one more expert gives another text, which the tests above would detect. */
static void what_is_special_matters(void **state) {
    (void)state;
    static Stream a, b;
    for (int m = 0; m < N_MODELS; m++) {
        RandomModel other = models[m];
        if (!other.window && !other.n_expert && !(other.temperature_scale > 0)) continue;
        if (other.temperature_scale > 0) other.temperature_scale /= 2;
        if (other.window) other.window--;
        if (other.n_expert) other.n_expert_used--;
        int32_t prompt[N_PROMPT];
        fr_request_options o = request_of(prompt, 0);
        for (int k = 0; k < 2; k++) {
            fr_model *model = rig_open_random(k ? &other : &models[m]);
            fr_engine *e = rig_open_engine(
                model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96, .n_threads = 1});
            rig_run_request(e, &o, k ? &b : &a);
            fr_engine_close(e);
            fr_model_close(model);
        }
        if (a.stats.logits_hash == b.stats.logits_hash) fail_msg("%s: not detected", models[m].arch);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drafts_and_company_change_nothing),
                                       cmocka_unit_test(a_second_turn_takes_over_the_first),
                                       cmocka_unit_test(what_is_special_matters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_architectures.c - every architecture in the engine: texts with drafts are those of plain decoding, for a single
 * request and in a batch whose requests choose other experts, with pages of one token and with pages taken away; and
 * tests that detect a wrong window or a swapped expert. */
#include "engine_rig.h"

#include "model_rig.h"
#include "random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 40, N_PROMPT = 24 };

static fr_request_options request_of(int32_t prompt[N_PROMPT], int i) {
    rig_tokens((uint64_t)(i / 2), 300, prompt, N_PROMPT);
    /* The prompt repeats itself, so that drafters find matches. */
    for (int k = 0; k < N_PROMPT; k++) prompt[k] = k % 8 < 4 ? prompt[k % 4] : prompt[k];
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

/* Runs all requests at once with these options: each text is that of plain decoding by itself. */
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
    for (int m = 0; m < n_small_models; m++) {
        fr_model *model = rig_open_random(&small_models[m]);
        int32_t prompt[N_PROMPT];
        fr_engine *e = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96, .n_threads = 1});
        for (int i = 0; i < n_drafts_of(&small_models[m]); i++) {
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
            accepted += check_batch(model, n_drafts_of(&small_models[m]), plain, &options);
        }
        print_message("%-9s %d experts: %d drafts accepted\n", small_models[m].arch, small_models[m].n_expert,
                      (int)accepted);
        if (accepted < 5) fail_msg("%s: only %d drafts accepted", small_models[m].arch, (int)accepted);
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
    for (int i = 0; i < 2 * n_small_models; i++) {
        int m = i / 2;
        const char *draft = i % 2 ? "mtp" : drafts[0];
        if (i % 2 && !small_models[m].n_nextn) continue;
        fr_model *model = rig_open_random(&small_models[m]);
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
        rig_assert_same(&second[0], &second[1], small_models[m].arch);
        if (second[1].stats.n_prompt_shared < N_PROMPT + N_TOKENS - 1)
            fail_msg("%s: %d tokens taken over", small_models[m].arch, (int)second[1].stats.n_prompt_shared);
        rig_assert_same(&again[0], &again[1], small_models[m].arch);
        int n_most = (int)o.n_prompt - 1 - i % 2, n_again = (int)again[1].stats.n_prompt_shared;
        if (n_again != (small_models[m].n_conv ? n_most / PAGE * PAGE : n_most))
            fail_msg("%s: %d tokens taken over again", small_models[m].arch, n_again);
        fr_model_close(model);
    }
}

/* Another window, another temperature, or one more expert gives another text, which the tests above would detect. */
static void what_is_special_matters(void **state) {
    (void)state;
    static Stream a, b;
    for (int m = 0; m < n_small_models; m++) {
        RandomModel other = small_models[m];
        if (!other.window && !other.n_expert && !(other.temperature_scale > 0)) continue;
        if (other.temperature_scale > 0) other.temperature_scale /= 2;
        if (other.window) other.window--;
        if (other.n_expert) other.n_expert_used--;
        int32_t prompt[N_PROMPT];
        fr_request_options o = request_of(prompt, 0);
        for (int k = 0; k < 2; k++) {
            fr_model *model = rig_open_random(k ? &other : &small_models[m]);
            fr_engine *e = rig_open_engine(
                model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96, .n_threads = 1});
            rig_run_request(e, &o, k ? &b : &a);
            fr_engine_close(e);
            fr_model_close(model);
        }
        if (a.stats.logits_hash == b.stats.logits_hash) fail_msg("%s: not detected", small_models[m].arch);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drafts_and_company_change_nothing),
                                       cmocka_unit_test(a_second_turn_takes_over_the_first),
                                       cmocka_unit_test(what_is_special_matters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

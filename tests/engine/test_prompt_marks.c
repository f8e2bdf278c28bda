/* test_prompt_marks.c - models that can only be cut at marks (recurrent states, windows whose pages are released) in
 * the engine: prompts with common instructions read only the part that differs, from the last mark the first time and
 * from the last page later; windows use only their pages; and texts are the same when pages of windows, all pages, or
 * marks run out. */
#include "engine_rig.h"

#include "compute/sequences.h"
#include "engine/engine.h"
#include "model_rig.h"
#include "random_model.h"

#include <stdlib.h>
#include <string.h>

#define SHAPE(a, layers) \
    .arch = a, .n_layer = layers, .n_embd = 32, .n_head = 4, .n_head_kv = 2, .n_ff = 40, .n_vocab = N_VOCAB
#define HYBRID .n_key_heads = 2, .n_value_heads = 4, .delta_dim = 8, .n_conv = 4, .attention_interval = 2

enum { N_VOCAB = 300, N_CTX = 512, PAGE = 4, CHUNK = 16, N_COMMON = 200, N_OWN = 21, N_PROMPT = N_COMMON + N_OWN };
enum { WINDOW = 7, N_NEW = 60, N_REQUESTS = 6 };

static const RandomModel models[] = {
    {SHAPE("llama", 2), .seed = 1},
    {SHAPE("qwen35", 4), HYBRID, .seed = 2},
    {SHAPE("gemma2", 2), .window = WINDOW, .seed = 3},
    {SHAPE("gemma3", 6), .window = WINDOW, .seed = 4},
    {SHAPE("gpt-oss", 2), .n_expert = 4, .n_expert_used = 2, .n_ff_expert = 40, .window = WINDOW, .seed = 5},
    {SHAPE("phi3", 2), .window = WINDOW, .seed = 6},
    {SHAPE("gemma4", 6), .local_head_dim = 4, .window = WINDOW, .attention_interval = 3, .n_shared_kv = 3, .n_ple = 8,
     .seed = 7},
};
enum { N_MODELS = sizeof models / sizeof *models };

static bool is_whole_at_the_end_only(const RandomModel *m) { return m->n_conv || m->window; }

static fr_engine *open_engine(const fr_model *model, int64_t kv_tokens, int prefix_cache) {
    const fr_engine_options options = {.struct_size = sizeof options,
                                       .n_threads = 1,
                                       .n_ctx = N_CTX,
                                       .kv_page_size = PAGE,
                                       .prefill_chunk = CHUNK,
                                       .max_requests = N_REQUESTS,
                                       .kv_tokens = kv_tokens,
                                       .prefix_cache = prefix_cache};
    return rig_open_engine(model, &options);
}

/* Request i has the instructions, and a question of its own. */
static fr_request_options request_of(int32_t prompt[N_PROMPT], int i) {
    static const char *const draft = "suffix";
    rig_tokens(1, N_VOCAB, prompt, N_COMMON);
    rig_tokens((uint64_t)(10 + i), N_VOCAB, prompt + N_COMMON, N_OWN);
    prompt[N_COMMON] = 20 + i; /* no two questions begin alike */
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .prompt = prompt,
                                .n_prompt = N_PROMPT,
                                .max_tokens = N_NEW,
                                .sampling = fr_sampling_default(),
                                .drafts = &draft,
                                .n_drafts = 1,
                                .tree_budget = 4,
                                .ignore_eos = 1};
}

static fr_engine *open_with_draft(const fr_model *model, int64_t kv_tokens, int prefix_cache) {
    fr_error err;
    fr_engine *e = open_engine(model, kv_tokens, prefix_cache);
    if (fr_engine_open_draft(e, "suffix", &err)) fail_msg("%s", err.message);
    return e;
}

static void run_alone(const fr_model *model, Stream *out) {
    int32_t prompt[N_PROMPT];
    for (int i = 0; i < N_REQUESTS; i++) {
        fr_engine *e = open_with_draft(model, 0, -1);
        fr_request_options o = request_of(prompt, i);
        rig_run_request(e, &o, &out[i]);
        fr_engine_close(e);
    }
}

static void prompts_read_only_the_part_that_differs(void **state) {
    (void)state;
    static Stream alone[N_REQUESTS], got;
    for (int m = 0; m < N_MODELS; m++) {
        fr_model *model = rig_open_random(&models[m]);
        int32_t prompt[N_PROMPT];
        run_alone(model, alone);
        fr_engine *e = open_with_draft(model, 0, 4);
        assert_int_equal(executor_n_window_pages(e->executor) > 0, models[m].window > 0);
        for (int i = 0; i < N_REQUESTS; i++) {
            int32_t grid = (N_PROMPT / 4 + 1 + PAGE - 1) / PAGE * PAGE;
            fr_request_options o = request_of(prompt, i);
            rig_run_request(e, &o, &got);
            rig_assert_same(&alone[i], &got, models[m].arch);
            int64_t expected = i == 0                                           ? 0
                               : i == 1 && is_whole_at_the_end_only(&models[m]) ? N_COMMON / grid * grid
                                                                                : N_COMMON;
            if (got.stats.n_prompt_shared != expected)
                fail_msg("%s, request %d: %d tokens taken over, should be %d", models[m].arch, i,
                         (int)got.stats.n_prompt_shared, (int)expected);
        }
        fr_engine_close(e);
        fr_model_close(model);
    }
}

/* Checks the pages of windows that one long request holds in each step, and the memory of both kinds of layers. */
static void windows_hold_few_pages(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        if (!models[m].window) continue;
        fr_model *model = rig_open_random(&models[m]);
        fr_engine *e = open_engine(model, 0, -1);
        int32_t prompt[N_PROMPT];
        fr_request_options o = request_of(prompt, 0);
        fr_request *r;
        fr_error err;
        fr_engine_stats s = {.struct_size = sizeof s};
        o.n_drafts = 0, o.max_tokens = 200;
        if (rig_open_request(&r, e, &o, &err)) fail_msg("%s", err.message);
        int64_t most = 0, most_of_all = 0, mark = WINDOW + 2 * PAGE;
        for (int left = 1; left > 0;) {
            if ((left = fr_engine_step(e, &err)) < 0) fail_msg("%s", err.message);
            fr_engine_get_stats(e, &s);
            if (s.kv_window_tokens_held > most) most = s.kv_window_tokens_held;
            if (s.kv_tokens_running > most_of_all) most_of_all = s.kv_tokens_running;
        }
        assert_true(most_of_all >= N_PROMPT + 198);
        assert_in_range(most, WINDOW, WINDOW + CHUNK + 2 * PAGE + mark); /* the last border of the prompt is marked */
        fr_request_close(r);
        fr_engine_get_stats(e, &s);
        assert_int_equal(s.kv_window_tokens_held, 0);
        int n_layer = models[m].n_layer, n_window = model_n_mixers(e->model->model, MIXER_WINDOW);
        int64_t bytes_of_dim = 2 * 2 * 2, dim = 8; /* keys and values, heads, F16 */
        int64_t window_dim = models[m].local_head_dim ? models[m].local_head_dim : dim;
        n_layer -= models[m].n_shared_kv; /* these read the keys of others */
        assert_int_equal(s.kv_bytes, bytes_of_dim * (dim * (n_layer - n_window) * s.kv_tokens +
                                                     window_dim * n_window * s.kv_window_tokens));
        assert_true(s.kv_window_tokens > 0 && s.kv_window_tokens < s.kv_tokens / 2);
        fr_engine_close(e);
        fr_model_close(model);
    }
}

/* Keys and values of Gemma 3 1B (26 layers, of which 22 have a window of 512; one KV head of 256) for one context of
 * 8192. */
static void memory_of_gemma3_1b(void **state) {
    (void)state;
    const RandomModel m = {.arch = "gemma3",
                           .n_layer = 26,
                           .n_embd = 16,
                           .n_head = 1,
                           .n_head_kv = 1,
                           .head_dim = 256,
                           .n_ff = 16,
                           .n_vocab = N_VOCAB,
                           .window = 512,
                           .seed = 7};
    fr_model *model = rig_open_random(&m);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 8192});
    fr_engine_stats s = {.struct_size = sizeof s};
    fr_engine_get_stats(e, &s);
    int64_t bytes_of_token = 26 * 2 * 256 * 2, kept = s.kv_tokens * bytes_of_token;
    print_message("%lld tokens, %lld with windows: %.1f MB, %.1f MB if all pages were kept\n", (long long)s.kv_tokens,
                  (long long)s.kv_window_tokens, (double)s.kv_bytes / 1e6, (double)kept / 1e6);
    assert_true(s.kv_tokens >= 8192 && (double)s.kv_bytes < 0.4 * (double)kept);
    fr_engine_close(e);
    fr_model_close(model);
}

/* Runs all requests at once; n_window_pages > 0: the cache behaves as if it had no more pages of windows. */
static int run_together(const fr_model *model, const Stream *alone, int64_t kv_tokens, int prefix_cache,
                        int32_t n_window_pages, const char *what) {
    static Stream got;
    fr_request *r[N_REQUESTS];
    int32_t prompt[N_PROMPT];
    fr_error err;
    int left = 1, n_preempted = 0;
    fr_engine *e = open_with_draft(model, kv_tokens, prefix_cache);
    KvPages *windows = &executor_sequences(e->executor)->kv[KV_WINDOW];
    if (n_window_pages) windows->n_free = n_window_pages;
    for (int i = 0; i < N_REQUESTS; i++) {
        fr_request_options o = request_of(prompt, i);
        if (rig_open_request(&r[i], e, &o, &err)) fail_msg("%s", err.message);
    }
    while ((left = fr_engine_step(e, &err)) > 0) {}
    if (left < 0) fail_msg("%s", err.message);
    for (int i = 0; i < N_REQUESTS; i++) {
        rig_collect(r[i], &got);
        rig_assert_same(&alone[i], &got, what);
        n_preempted += (int)got.stats.n_preempted;
        fr_request_close(r[i]);
    }
    while (prefix_cache_drop(e)) {}
    if (n_window_pages) assert_int_equal(windows->n_free, n_window_pages);
    assert_int_equal(executor_n_free_pages(e->executor), executor_n_pages(e->executor));
    fr_engine_close(e);
    return n_preempted;
}

static void shortage_changes_no_text(void **state) {
    (void)state;
    static Stream alone[N_REQUESTS];
    for (int m = 0; m < N_MODELS; m++) {
        fr_model *model = rig_open_random(&models[m]);
        run_alone(model, alone);
        assert_int_equal(run_together(model, alone, 0, 3, 0, models[m].arch), 0);
        int n = run_together(model, alone, models[m].window ? 800 : N_CTX, -1, 0, models[m].arch);
        for (int32_t pages = 9; models[m].window && pages < 30; pages += 6)
            n += run_together(model, alone, 0, pages % 2 ? 3 : -1, pages, models[m].arch);
        assert_true(n > 0);
        print_message("%-8s pages taken %d times\n", models[m].arch, n);
        fr_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_read_only_the_part_that_differs),
                                       cmocka_unit_test(windows_hold_few_pages), cmocka_unit_test(memory_of_gemma3_1b),
                                       cmocka_unit_test(shortage_changes_no_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

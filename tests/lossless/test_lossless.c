/* test_lossless.c - the lossless ladder: with and without drafters, tokens, text and logits are the same, bit for bit;
 * greedy and seeded, for all drafters, budgets, threads, page sizes, kernel tables and batches. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "compute/cpu/kernels/kernels.h"
#include "random_model.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 48, N_PROMPT = 40 };

/* ---- models ---------------------------------------------------------------------------------------- */

static const RandomModel random_models[] = {
    {.arch = "llama", .n_layer = 2, .n_embd = 64, .n_head = 8, .n_head_kv = 2, .n_ff = 96, .n_vocab = 300, .seed = 1},
    {.arch = "llama",
     .n_layer = 2,
     .n_embd = 256,
     .n_head = 4,
     .n_head_kv = 4,
     .n_ff = 256,
     .n_vocab = 320,
     .types = {TYPE_Q4_K, TYPE_Q6_K, TYPE_Q5_K},
     .n_types = 3,
     .rope_factors = true,
     .seed = 2},
    {.arch = "qwen2",
     .n_layer = 2,
     .n_embd = 64,
     .n_head = 4,
     .n_head_kv = 1,
     .n_ff = 160,
     .n_vocab = 290,
     .tied = true,
     .types = {TYPE_Q8_0, TYPE_Q4_0, TYPE_Q5_1},
     .n_types = 3,
     .seed = 3},
    {.arch = "qwen3",
     .n_layer = 3,
     .n_embd = 64,
     .n_head = 4,
     .n_head_kv = 2,
     .head_dim = 32,
     .n_ff = 96,
     .n_vocab = 299,
     .types = {TYPE_F16, TYPE_BF16, TYPE_Q4_1},
     .n_types = 3,
     .rope_scaling = "yarn",
     .rope_factor = 4,
     .rope_n_ctx_orig = 64,
     .seed = 4},
};
enum { N_RANDOM = sizeof random_models / sizeof *random_models };

static const char *random_path(int i) {
    static char path[64];
    snprintf(path, sizeof path, "build/lossless-%d.gguf", i);
    return path;
}

static int write_models(void **state) {
    (void)state;
    for (int i = 0; i < N_RANDOM; i++) {
        fr_error err;
        if (random_model_write(&random_models[i], random_path(i), &err)) fail_msg("%s", err.message);
    }
    return 0;
}

/* A prompt with repetitions, so that drafters that copy have something to propose. */
static void make_prompt(int32_t n_vocab, uint64_t seed, int32_t *prompt) {
    for (int32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 3 + (int32_t)((seed * 2654435761u + (uint64_t)(i % 9) * 40503u) % (uint64_t)(n_vocab - 3));
}

/* ---- drafts and sampling ------------------------------------------------------------------------------------ */

static fr_request_options request_of(const int32_t *prompt, int i_sampling) {
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .prompt = prompt,
                                .n_prompt = N_PROMPT,
                                .max_tokens = N_TOKENS,
                                .sampling = rig_sampling(i_sampling),
                                .ignore_eos = 1};
}

/* Every method that needs no file, and some options. To limit the time each runs with every `stride`-th budget; these
 * shift with the sampling, so that over the ladder each runs with all. */
enum { MAX_DRAFTERS = 40 };
static struct {
    const char *spec;
    int stride;
} drafters[MAX_DRAFTERS] = {
    {"auto", 3}, {"ngram-trie:rule=paper,live=0", 3}, {"pld:match=latest,n=2", 4}, {"suffix:factor=2", 4}};
static int n_drafters = 4;

static void list_methods(fr_engine *e) {
    n_drafters = 4;
    for (const DrafterClass *const *c = drafter_classes(); *c; c++) {
        if (fr_engine_open_draft(e, (*c)->name, NULL)) continue; /* it needs a file */
        assert_true(n_drafters < MAX_DRAFTERS);
        drafters[n_drafters].spec = (*c)->name;
        drafters[n_drafters++].stride = 4;
    }
    assert_true(n_drafters >= 4 + 7);
}

/* Runs with one drafter and compares with plain decoding; returns the statistics. */
/* Writes the generated tokens to *out; they are valid until the next call. */
static const Stream *check(fr_engine *e, fr_request_options o, const char *draft, int budget, const Stream *plain,
                           const char *what) {
    static Stream got;
    o.drafts = &draft;
    o.n_drafts = 1;
    o.tree_budget = budget;
    char label[256];
    snprintf(label, sizeof label, "%s, %s, budget %d", what, draft, budget);
    rig_run_request(e, &o, &got);
    rig_assert_same(plain, &got, label);
    return &got;
}

static void check_devils(fr_engine *e, const fr_request_options *o, int32_t n_vocab, const Stream *plain,
                         const char *what) {
    int32_t stream[N_PROMPT + N_TOKENS];
    memcpy(stream, o->prompt, sizeof(int32_t) * N_PROMPT);
    memcpy(stream + N_PROMPT, plain->tokens, sizeof(int32_t) * (size_t)plain->n);
    static Devil random, right, wrong, malformed[DEVIL_N_FAULTS]; /* the engine closes them later */
    random = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, n_vocab, 5);
    right = devil_make(DEVIL_RIGHT, DEVIL_FAULT_NONE, n_vocab, 6);
    wrong = devil_make(DEVIL_WRONG, DEVIL_FAULT_NONE, n_vocab, 7);
    devil_oracle(&right, 0, stream, N_PROMPT + plain->n);
    devil_oracle(&wrong, 0, stream, N_PROMPT + plain->n);
    rig_add_drafter(e, "random", &random.base);
    rig_add_drafter(e, "right", &right.base);
    rig_add_drafter(e, "wrong", &wrong.base);
    for (int budget = 1; budget <= 64; budget = budget * 2 + 1) {
        check(e, *o, "random", budget, plain, what);
        assert_int_equal(check(e, *o, "wrong", budget, plain, what)->stats.accepted, 0);
        fr_stats s = check(e, *o, "right", budget, plain, what)->stats;
        assert_int_equal(s.accepted, s.drafted);
        assert_int_equal(s.n_steps, (N_TOKENS + budget) / (budget + 1));
    }
    for (int fault = DEVIL_FAULT_NONE + 1; fault < DEVIL_N_FAULTS; fault++) {
        static char names[DEVIL_N_FAULTS][32];
        snprintf(names[fault], sizeof names[fault], "malformed-%d", fault);
        malformed[fault] = devil_make(DEVIL_MALFORMED, (DevilFault)fault, n_vocab, 8);
        rig_add_drafter(e, names[fault], &malformed[fault].base);
        const Stream *got = check(e, *o, names[fault], 8, plain, what);
        assert_true(got->draft_error[0]);
        assert_int_equal(got->stats.drafted, 0);
    }
}

/* ThreadSanitizer makes everything thirty times slower: with it only the tests of threads run. */
#if defined(__SANITIZE_THREAD__)
#define not_under_tsan() (print_message("skipped: not about threads\n"), skip())
#else
#define not_under_tsan() ((void)0)
#endif

/* Closes the model. */
static void ladder_of_model(fr_model *model, const char *path, int first_sampling, int last_sampling) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    int32_t prompt[N_PROMPT];
    static Stream plain;
    for (int i = first_sampling; i <= last_sampling; i++) {
        make_prompt(info.n_vocab, (uint64_t)i + 1, prompt);
        fr_request_options o = request_of(prompt, i);
        fr_engine *e = rig_open_engine(model, NULL);
        rig_run_request(e, &o, &plain);
        assert_int_equal(plain.n, N_TOKENS);
        assert_int_equal(plain.stats.n_steps, N_TOKENS);
        char what[96];
        snprintf(what, sizeof what, "%s, %s, %s, sampling %d", path, info.backend, info.activations, i);
        list_methods(e);
        static const int budgets[] = {1, 2, 3, 5, 8, 13, 21, 32, 64};
        for (int b = 0; b < (int)(sizeof budgets / sizeof *budgets); b++)
            for (int d = 0; d < n_drafters; d++)
                if ((b + i + d) % drafters[d].stride == 0) check(e, o, drafters[d].spec, budgets[b], &plain, what);
        fr_engine_close(e);
        e = rig_open_engine(model, NULL); /* an engine has no room for all methods and all devils */
        check_devils(e, &o, info.n_vocab, &plain, what);
        fr_engine_close(e);
    }
    fr_model_close(model);
}

static void ladder_of(const char *path, const char *activations, int first_sampling, int last_sampling) {
    not_under_tsan();
    ladder_of_model(rig_open_model_with(path, NULL, activations), path, first_sampling, last_sampling);
}

static void random_models_are_lossless(void **state) {
    (void)state;
    for (int i = 0; i < N_RANDOM; i++) ladder_of(random_path(i), NULL, 0, RIG_N_SAMPLINGS - 1);
}

static void also_with_activations_of_8_bits(void **state) {
    (void)state;
    for (int i = 1; i < N_RANDOM; i++) ladder_of(random_path(i), "q8", i, i); /* the first one has only floats */
}

static void the_reference_backend_is_lossless(void **state) {
    (void)state;
    not_under_tsan();
    for (int i = 0; i < N_RANDOM; i++)
        if (random_models[i].n_embd == 64)
            ladder_of_model(rig_open_model_in(random_path(i), "reference"), random_path(i), i, i);
}

static void the_shipped_models_are_lossless(void **state) {
    (void)state;
    ladder_of("models/draft.gguf", NULL, 0, 2);
    ladder_of("models/target.gguf", NULL, 0, 1);
}

/* A second model drafts; test_draft_model.c has more tests. */
static void draft_models_are_lossless(void **state) {
    (void)state;
    static const char *const drafts[] = {"sps:model=models/draft.gguf", "rsd-c:model=models/draft.gguf,branch=4x2x2",
                                         "rsd-s:model=models/draft.gguf,width=6,depth=4,coupled=0"};
    static Stream plain;
    fr_model *model = rig_open_model("models/target.gguf", NULL);
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    int32_t prompt[N_PROMPT];
    for (int i = 0; i < RIG_N_SAMPLINGS; i++) {
        make_prompt(info.n_vocab, (uint64_t)i + 1, prompt);
        fr_request_options o = request_of(prompt, i);
        fr_engine *e = rig_open_engine(model, NULL);
        rig_run_request(e, &o, &plain);
        for (size_t k = 0; k < sizeof drafts / sizeof *drafts; k++)
            for (int budget = 1; budget <= 64; budget *= 4) {
                assert_string_equal(check(e, o, drafts[k], budget, &plain, "a draft model")->draft_error, "");
            }
        fr_engine_close(e);
    }
    fr_model_close(model);
}

static void a_published_model_is_lossless(void **state) {
    (void)state;
    need_shared();
    ladder_of("../shared/data/models/stories260K.gguf", NULL, 0, RIG_N_SAMPLINGS - 1);
}

/* Every architecture and tensor type of the golden files, one drafter and one devil each. */
static void golden_models(const char *activations) {
    glob_t files;
    assert_int_equal(glob("../shared/data/golden/models/*.gguf", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        static Stream plain;
        fr_model *model = rig_open_model_with(files.gl_pathv[i], NULL, activations);
        fr_model_info info = {.struct_size = sizeof info};
        fr_model_get_info(model, &info);
        int32_t prompt[N_PROMPT];
        make_prompt(info.n_vocab, i, prompt);
        fr_request_options o = request_of(prompt, (int)i % RIG_N_SAMPLINGS);
        fr_engine *e = rig_open_engine(model, NULL);
        Devil random = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, info.n_vocab, i);
        rig_add_drafter(e, "random", &random.base);
        rig_run_request(e, &o, &plain);
        check(e, o, "ngram-trie", 1 + (int)i * 3, &plain, files.gl_pathv[i]);
        check(e, o, "random", 64 - (int)i * 3, &plain, files.gl_pathv[i]);
        fr_engine_close(e);
        fr_model_close(model);
    }
    globfree(&files);
}

static void golden_models_are_lossless(void **state) {
    (void)state;
    need_shared();
    golden_models("q16");
    golden_models("q8");
}

/* ---- the same text on every engine ------------------------------------------------------------------- */

static void threads_pages_and_chunks_change_nothing(void **state) {
    (void)state;
    static const int page_sizes[] = {1, 2, 3, 16}, chunks[] = {1, 7, 256};
    for (int m = 0; m < N_RANDOM; m++) {
        fr_model *model = rig_open_model(random_path(m), NULL);
        fr_model_info info = {.struct_size = sizeof info};
        fr_model_get_info(model, &info);
        int32_t prompt[N_PROMPT];
        make_prompt(info.n_vocab, 9, prompt);
        fr_request_options o = request_of(prompt, m % RIG_N_SAMPLINGS);
        static Stream plain;
        fr_engine *e = rig_open_engine(model, NULL);
        rig_run_request(e, &o, &plain);
        fr_engine_close(e);
        for (int threads = 1; threads <= 8; threads++) {
            fr_engine_options options = {.struct_size = sizeof options,
                                         .n_threads = threads,
                                         .n_ctx = N_PROMPT + N_TOKENS + threads,
                                         .kv_page_size = page_sizes[threads % 4],
                                         .prefill_chunk = chunks[threads % 3]};
            e = rig_open_engine(model, &options);
            char what[64];
            snprintf(what, sizeof what, "%d threads, pages of %d", threads, options.kv_page_size);
            check(e, o, "ngram-trie", 16, &plain, what);
            check(e, o, "none", 16, &plain, what);
            fr_engine_close(e);
        }
        fr_model_close(model);
    }
}

static void each_kernel_table_agrees_with_itself(void **state) {
    (void)state;
    not_under_tsan();
    int n_tables;
    const Kernels *const *tables = kernels_available(&n_tables);
    static Stream plain, first;
    for (int m = 0; m < 2 * N_RANDOM; m++)
        for (int t = 0; t < n_tables; t++) {
            fr_model *model = rig_open_model_with(random_path(m / 2), tables[t]->name, m % 2 ? "q8" : "q16");
            fr_model_info info = {.struct_size = sizeof info};
            fr_model_get_info(model, &info);
            int32_t prompt[N_PROMPT];
            make_prompt(info.n_vocab, 4, prompt);
            fr_request_options o = request_of(prompt, 1);
            fr_engine *e = rig_open_engine(model, NULL);
            rig_run_request(e, &o, &plain);
            check(e, o, "ngram-trie", 24, &plain, tables[t]->name);
            if (t == 0) first = plain;
            else rig_assert_same(&first, &plain, tables[t]->name); /* all tables: the same bits */
            fr_engine_close(e);
            fr_model_close(model);
        }
}

static void both_kinds_of_kv_agree_with_themselves(void **state) {
    (void)state;
    for (int kv = FR_KV_F16; kv <= FR_KV_Q8; kv++) {
        fr_model *model = rig_open_model(random_path(1), NULL);
        int32_t prompt[N_PROMPT];
        make_prompt(300, 4, prompt);
        fr_request_options o = request_of(prompt, 2);
        fr_engine_options options = {.struct_size = sizeof options, .kv_type = (fr_kv_type)kv};
        fr_engine *e = rig_open_engine(model, &options);
        static Stream plain;
        rig_run_request(e, &o, &plain);
        check(e, o, "ngram-trie", 24, &plain, kv_type_name((KvType)kv));
        fr_engine_close(e);
        fr_model_close(model);
    }
}

/* Several requests in one engine, each with its own prompt, sampling and drafters, arriving at different steps: each
 * generates the text that it generates by itself, whatever pieces its prompt is read in (max_gap_s). */
static void neighbours_change_nothing_with(double max_gap_s) {
    enum { N_REQUESTS = 9, N_PLACES = 4 };
    static Stream alone[N_REQUESTS], got;
    static const char *const drafts[] = {"ngram-trie",      "random", "lookahead-trie", "recycling", "lookahead",
                                         "suffix:factor=2", "auto"};
    fr_model *model = rig_open_model(random_path(2), NULL);
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    int32_t prompts[N_REQUESTS][N_PROMPT];
    fr_request_options options[N_REQUESTS];
    for (int i = 0; i < N_REQUESTS; i++) {
        make_prompt(info.n_vocab, (uint64_t)i + 50, prompts[i]);
        options[i] = request_of(prompts[i], i % RIG_N_SAMPLINGS);
        options[i].n_prompt = N_PROMPT - 4 * (i % 3);
        options[i].max_tokens = N_TOKENS - 5 * (i % 4);
        fr_engine *e = rig_open_engine(model, NULL);
        rig_run_request(e, &options[i], &alone[i]);
        fr_engine_close(e);
        options[i].drafts = drafts;
        options[i].n_drafts = i % 8;
        options[i].tree_budget = 1 + 5 * i;
    }
    fr_engine_options eo = {.struct_size = sizeof eo,
                            .max_requests = N_PLACES,
                            .prefill_chunk = 11,
                            .kv_page_size = 3,
                            .max_gap_s = max_gap_s};
    fr_engine *e = rig_open_engine(model, &eo);
    Devil random = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, info.n_vocab, 5);
    rig_add_drafter(e, "random", &random.base);
    if (max_gap_s > 0) e->policy.cost = (CostCurve){.n = 2, .rows = {1, 2}, .seconds = {1, 2}};
    fr_request *running[N_PLACES] = {NULL};
    int which[N_PLACES] = {0}, n_started = 0, n_done = 0;
    for (int step = 0; n_done < N_REQUESTS; step++) {
        fr_error err;
        for (int p = 0; p < N_PLACES; p++) {
            if (running[p] && fr_request_finish_reason(running[p])) {
                rig_collect(running[p], &got);
                char what[32];
                snprintf(what, sizeof what, "request %d in a batch", which[p]);
                rig_assert_same(&alone[which[p]], &got, what);
                fr_request_close(running[p]);
                running[p] = NULL;
                n_done++;
            }
            if (!running[p] && n_started < N_REQUESTS && step % 2 == 0) {
                which[p] = n_started;
                if (rig_open_request(&running[p], e, &options[n_started++], &err)) fail_msg("%s", err.message);
                break; /* one arrival at a time */
            }
        }
        if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
        assert_true(step < 10000);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

static void neighbours_change_nothing(void **state) {
    (void)state;
    neighbours_change_nothing_with(0);
    neighbours_change_nothing_with(1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models_are_lossless),
        cmocka_unit_test(also_with_activations_of_8_bits),
        cmocka_unit_test(the_reference_backend_is_lossless),
        cmocka_unit_test(the_shipped_models_are_lossless),
        cmocka_unit_test(draft_models_are_lossless),
        cmocka_unit_test(a_published_model_is_lossless),
        cmocka_unit_test(golden_models_are_lossless),
        cmocka_unit_test(threads_pages_and_chunks_change_nothing),
        cmocka_unit_test(each_kernel_table_agrees_with_itself),
        cmocka_unit_test(both_kinds_of_kv_agree_with_themselves),
        cmocka_unit_test(neighbours_change_nothing),
    };
    return cmocka_run_group_tests(tests, write_models, NULL);
}

/* test_embedding.c - the mean of final hidden states over a prompt has the bits of a naive form that reads one token
 * per forward, whatever else the engine does meanwhile. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "model_rig.h"
#include "random_model.h"

#include <math.h>
#include <string.h>

enum { N_CTX = 96, N_VOCAB = 300, N_EMBD = 64, N_PROMPTS = 6 };

static const char *const path = "build/embedding.gguf";
static fr_model *model;
static int32_t prompts[N_PROMPTS][N_CTX];
static int64_t n_prompts[N_PROMPTS];
static float expected[N_PROMPTS][N_EMBD];

/* Runs one row per forward, in a fresh executor. */
static void naive(const Weights *w, const int32_t *tokens, int64_t n, float *out) {
    RigOptions o = rig_options(N_CTX, 1);
    o.kv_type = KV_F16; /* the engine's default */
    Executor *e = rig_executor(w, &o);
    int32_t sequence = rig_sequence(e), kept = 0;
    double sum[N_EMBD] = {0};
    fr_error err;
    for (int64_t i = 0; i < n; i++) {
        const Row row = {.token = tokens[i], .sequence = sequence, .parent = -1, .want_hidden = true};
        assert_int_equal(executor_reserve(e, sequence, 1, &err), FR_OK);
        assert_int_equal(executor_forward(e, &row, 1, &err), FR_OK);
        for (int k = 0; k < N_EMBD; k++) sum[k] += (double)executor_hidden(e, 0)[k];
        executor_commit(e, sequence, &kept, 1);
    }
    double squares = 0;
    for (int k = 0; k < N_EMBD; k++) squares += sum[k] * sum[k];
    for (int k = 0; k < N_EMBD; k++) out[k] = (float)(sum[k] / sqrt(squares));
    rig_executor_close(e);
}

/* Prompts 0 to 2 begin with the same 40 tokens; prompt 3 has one token. */
static int open_model(void **state) {
    (void)state;
    static const RandomModel random = {.arch = "llama",
                                       .n_layer = 2,
                                       .n_embd = N_EMBD,
                                       .n_head = 4,
                                       .n_head_kv = 2,
                                       .n_ff = 96,
                                       .n_vocab = N_VOCAB,
                                       .seed = 44};
    fr_error err;
    if (random_model_write(&random, path, &err)) fail_msg("%s", err.message);
    model = rig_open_model(path, NULL);
    Gguf *g = rig_gguf(path);
    Weights *w = rig_weights(g, NULL);
    for (int p = 0; p < N_PROMPTS; p++) {
        n_prompts[p] = p == 3 ? 1 : 50 + 7 * p;
        for (int i = 0; i < N_CTX; i++)
            prompts[p][i] = 3 + ((p < 3 && i < 40 ? 0 : p * 71) + i * i * 37 + i) % (N_VOCAB - 3);
        naive(w, prompts[p], n_prompts[p], expected[p]);
    }
    rig_weights_close(w);
    gguf_close(g);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

static fr_request *ask(fr_engine *e, int p, const char *draft) {
    fr_request *r;
    fr_error err;
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompts[p],
                            .n_prompt = n_prompts[p],
                            .max_tokens = p == 3 ? 1 : 96 - n_prompts[p],
                            .sampling = fr_sampling_default(),
                            .drafts = &draft,
                            .n_drafts = draft != NULL,
                            .ignore_eos = 1,
                            .want_embedding = 1};
    if (rig_open_request(&r, e, &o, &err)) fail_msg("%s", err.message);
    return r;
}

static void check(fr_request *r, int p, const char *where) {
    float got[N_EMBD];
    fr_error err;
    if (fr_request_embedding(r, got, &err)) fail_msg("%s", err.message);
    if (memcmp(got, expected[p], sizeof got) != 0) fail_msg("prompt %d %s has other bits", p, where);
    fr_request_close(r);
}

static void an_embedding_depends_only_on_its_prompt(void **state) {
    (void)state;
    int64_t n_preempted = 0;
    for (int chunk = 3; chunk <= 64; chunk += 61)
        for (int pages = 0; pages < 2; pages++) {
            fr_engine_options options = {.struct_size = sizeof options,
                                         .n_threads = 2,
                                         .n_ctx = N_CTX,
                                         .max_requests = N_PROMPTS,
                                         .kv_page_size = 8,
                                         .prefill_chunk = chunk,
                                         .kv_tokens = pages ? 0 : 120};
            fr_engine *e = rig_open_engine(model, &options);
            fr_request *r[N_PROMPTS];
            fr_stats s = {.struct_size = sizeof s};
            fr_error err;
            for (int round = 0; round < 2; round++) { /* the second finds its prompts in the prefix cache */
                for (int p = 0; p < N_PROMPTS; p++) r[p] = ask(e, p, p % 2 ? "suffix" : NULL);
                while (fr_engine_step(e, &err) > 0) {}
                for (int p = 0; p < N_PROMPTS; p++) {
                    fr_request_get_stats(r[p], &s);
                    n_preempted += s.n_preempted;
                    assert_int_equal(s.n_prompt_shared, 0);
                    check(r[p], p, round ? "again" : "among others");
                }
            }
            fr_engine_close(e);
        }
    assert_true(n_preempted > 0);
}

static void it_is_refused_where_there_is_none(void **state) {
    (void)state;
    float out[N_EMBD];
    fr_error err;
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = 1,
                                                               .n_ctx = N_CTX,
                                                               .prefill_chunk = 16});
    fr_request *r = ask(e, 5, NULL), *plain;
    assert_true(fr_engine_step(e, &err) > 0);
    assert_int_equal(fr_request_embedding(r, out, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "not been read yet: 16 of 85 tokens"));
    while (fr_engine_step(e, &err) > 0) {}
    check(r, 5, "alone");
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompts[0],
                            .n_prompt = 5,
                            .max_tokens = 1,
                            .sampling = fr_sampling_default()};
    assert_int_equal(fr_request_open(&plain, e, &o, &err), FR_OK);
    while (fr_engine_step(e, &err) > 0) {}
    assert_int_equal(fr_request_embedding(plain, out, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "without want_embedding"));
    assert_int_equal(fr_request_embedding(NULL, out, &err), FR_ERR_ARGUMENT);
    assert_int_equal(fr_request_embedding(plain, NULL, &err), FR_ERR_ARGUMENT);
    fr_request_close(plain);
    fr_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_embedding_depends_only_on_its_prompt),
                                       cmocka_unit_test(it_is_refused_where_there_is_none)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}

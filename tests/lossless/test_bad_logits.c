/* test_bad_logits.c - a model with finite weights whose numbers overflow: after a hostile token all logits are NaN. A
 * request ends with an error where plain decoding meets such a row, after the same tokens, and no other request is
 * affected; rows of rejected drafts have no influence. Under every rule no drafter crashes, neither on the data of such
 * rows, nor if its own numbers overflow. */
#include "engine_rig.h"

#include "all_drafters.h"
#include "model_patch.h"
#include "random_model.h"

#include "engine/engine.h"
#include "verify/verifier.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEETS "build/bad-meets.gguf"   /* generates hostile tokens now and then */
#define AVOIDS "build/bad-avoids.gguf" /* never generates one by itself */

enum {
    FIRST_HOSTILE = 240,
    EMBD = ALL_DRAFTERS_EMBD,
    VOCAB = ALL_DRAFTERS_VOCAB,
    N_PROMPT = 20,
    N_TOKENS = 40,
    N_SHORT = 12
};

/* Component 0 of the residual stream is 0 except for hostile tokens, and is multiplied by the greatest floats: for
 * hostile tokens gate * up is infinite, and everything after it is NaN. */
static void write_target(const char *path, bool avoids) {
    const RandomModel m = {.arch = "llama",
                           .n_layer = 2,
                           .n_embd = EMBD,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .n_ff = 96,
                           .n_vocab = VOCAB,
                           .seed = 31};
    fr_error err;
    ModelPatch p;
    if (random_model_write(&m, path, &err)) fail_msg("%s", err.message);
    model_patch_open(&p, path);
    float *embeddings = model_patch_tensor(&p, "token_embd.weight"), *output = model_patch_tensor(&p, "output.weight");
    for (int t = 0; t < VOCAB; t++) embeddings[t * EMBD] = t < FIRST_HOSTILE ? 0 : 4;
    for (int t = FIRST_HOSTILE; t < VOCAB && avoids; t++) memset(output + t * EMBD, 0, EMBD * sizeof *output);
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_output.weight", i);
        memset(model_patch_tensor(&p, name), 0, EMBD * sizeof(float)); /* output 0 */
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
        memset(model_patch_tensor(&p, name), 0, 96 * sizeof(float));
    }
    *(float *)model_patch_tensor(&p, "blk.0.ffn_gate.weight") = 3e38f;
    *(float *)model_patch_tensor(&p, "blk.0.ffn_up.weight") = 3e38f;
    model_patch_write(&p, path);
    model_patch_close(&p);
}

static int write_targets(void **state) {
    (void)state;
    write_target(MEETS, false);
    write_target(AVOIDS, true);
    return 0;
}

static int32_t prompt[N_PROMPT];

static fr_request_options request_of(double temperature, uint64_t seed) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1,
                            .allow_lossy = 1};
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = ALL_DRAFTERS_TOKEN(i);
    o.sampling.temperature = (float)temperature, o.sampling.seed = seed;
    return o;
}

/* Runs one request to its end, which may be an error. */
static void run(fr_engine *e, const fr_request_options *o, Stream *out, fr_error *why) {
    fr_request *r;
    fr_error err;
    if (rig_open_request(&r, e, o, &err)) fail_msg("%s", err.message);
    int left;
    while ((left = fr_engine_step(e, &err)) > 0) {}
    if (left < 0) fail_msg("%s", err.message);
    rig_collect(r, out);
    *why = *fr_request_error(r);
    fr_request_close(r);
}

enum { N_SEEDS = 6 };

/* Makes the numbers of a tensor the greatest of their sign, except accuracies and tokens, which are checked. */
static void inflate(ModelPatch *p, const GgufTensor *t) {
    char *data = model_patch_tensor(p, t->name);
    size_t each = t->type == TYPE_F32 ? 4 : 2;
    bool is_checked = gguf_is_list(t) || strcmp(t->name, "medusa.accuracy") == 0;
    for (size_t k = 0; k < t->bytes / each && !is_checked; k++, data += each)
        if (each == 4) memcpy(data, *(float *)(void *)data < 0 ? &(float){-3e38f} : &(float){3e38f}, each);
        else memcpy(data, *(uint16_t *)(void *)data & 0x8000 ? &(uint16_t){0xfbff} : &(uint16_t){0x7bff}, each);
}

/* Runs the request with each draft separately: the tokens and the error are those of plain decoding. */
static void check_with_each(fr_engine *e, fr_request_options *o, const char *const *drafts, size_t n_drafts,
                            const Stream *plain, const fr_error *plain_why) {
    static Stream got;
    for (size_t i = 0; i < n_drafts; i++) {
        fr_error why;
        o->drafts = &drafts[i], o->n_drafts = 1;
        run(e, o, &got, &why);
        rig_assert_same(plain, &got, drafts[i]);
        if (plain->finish == FR_FINISH_ERROR) assert_string_equal(why.message, plain_why->message);
    }
}

/* ---- the target meets a hostile token ------------------------------------------------------------------- */

static void the_text_ends_where_plain_decoding_ends(void **state) {
    (void)state;
    static Stream plain;
    fr_error plain_why;
    size_t n_drafters = 0;
    while (all_drafters[n_drafters]) n_drafters++;
    fr_model *model = rig_open_model(MEETS, NULL);
    all_drafters_write_for(MEETS);
    int n_errors = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        fr_request_options o = request_of(seed % 3 ? 1 : 0.6, seed);
        fr_engine *e = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 96});
        run(e, &o, &plain, &plain_why);
        n_errors += plain.finish == FR_FINISH_ERROR;
        if (plain.finish == FR_FINISH_ERROR) {
            char want[64];
            snprintf(want, sizeof want, "the logits after %d tokens of context", (int)(N_PROMPT + plain.n));
            assert_non_null(strstr(plain_why.message, want));
            assert_true(plain.n > 0 && plain.tokens[plain.n - 1] >= FIRST_HOSTILE);
        }
        check_with_each(e, &o, all_drafters, n_drafters, &plain, &plain_why);
        fr_engine_close(e);
    }
    fr_model_close(model);
    assert_true(n_errors > 1);
}

/* Accepted drafts before the hostile token, and drafts after it: an oracle drafts the plain text, and more. */
static void accepted_drafts_before_the_error_count(void **state) {
    (void)state;
    static Stream plain, got;
    fr_error why;
    fr_model *model = rig_open_model(MEETS, NULL);
    int n_errors = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++)
        for (int budget = 1; budget <= 8; budget += 2) {
            fr_request_options o = request_of(1, seed);
            fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                       .n_threads = 1,
                                                                       .n_ctx = 96,
                                                                       .max_requests = 2});
            run(e, &o, &plain, &why);
            int32_t stream[N_PROMPT + N_TOKENS + 16];
            memcpy(stream, prompt, sizeof prompt);
            memcpy(stream + N_PROMPT, plain.tokens, (size_t)plain.n * sizeof *stream);
            for (int i = 0; i < 16; i++) stream[N_PROMPT + plain.n + i] = i; /* drafted after the hostile token */
            Devil right = devil_make(DEVIL_RIGHT, DEVIL_FAULT_NONE, VOCAB, 1);
            for (int s = 0; s < 2; s++) devil_oracle(&right, s, stream, N_PROMPT + plain.n + 16);
            rig_add_drafter(e, "right", &right.base);
            o.drafts = (const char *const[]){"right"}, o.n_drafts = 1, o.tree_budget = budget;
            run(e, &o, &got, &why);
            rig_assert_same(&plain, &got, "right");
            if (plain.finish == FR_FINISH_ERROR) assert_int_equal(got.stats.accepted < plain.n, 1), n_errors++;
            fr_engine_close(e);
        }
    assert_true(n_errors > 4);
    fr_model_close(model);
}

static void other_requests_go_on(void **state) {
    (void)state;
    static Stream alone, got;
    fr_error err;
    fr_model *model = rig_open_model(AVOIDS, NULL);
    fr_engine *e = rig_open_engine(
        model,
        &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 2, .n_ctx = 96, .max_requests = 3});
    fr_request_options o = request_of(0, 1), bad = o;
    int32_t bad_prompt[N_PROMPT];
    run(e, &o, &alone, &err);
    memcpy(bad_prompt, prompt, sizeof prompt);
    bad_prompt[15] = FIRST_HOSTILE;
    bad.prompt = bad_prompt;
    fr_request *r[3];
    for (int i = 0; i < 3; i++)
        if (fr_request_open(&r[i], e, i == 1 ? &bad : &o, &err)) fail_msg("%s", err.message);
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < 3; i++) {
        rig_collect(r[i], &got);
        if (i != 1) rig_assert_same(&alone, &got, "beside a failing request");
    }
    assert_int_equal(fr_request_finish_reason(r[1]), FR_FINISH_ERROR);
    assert_non_null(strstr(fr_request_error(r[1])->message, "the logits after 20 tokens of context (0 generated)"));
    fr_engine_close(e);
    fr_model_close(model);
}

/* ---- only rejected drafts are hostile ---------------------------------------------------------------------- */

/* One request that unites a drafter with random trees, half of whose tokens are hostile. */
static void check_beside_random(fr_engine *e, const char *draft, const char *rule, const Stream *greedy) {
    static Stream got;
    const char *const drafts[] = {"random", draft};
    bool takes_chains = strcmp(rule, "chain") == 0 || strcmp(rule, "block") == 0 || strcmp(rule, "k-seq") == 0;
    fr_error err, why;
    if (fr_engine_open_draft(e, draft, &err)) fail_msg("%s", err.message);
    for (int is_warm = 0; is_warm < 2; is_warm++) {
        fr_request_options o = request_of(is_warm ? 0.5 : 0, 1);
        o.sampling.top_k = 8;
        o.drafts = drafts, o.n_drafts = 2, o.verify = rule, o.tree_budget = takes_chains ? 1 : 16;
        fr_request *r;
        if (fr_request_open(&r, e, &o, &err)) {
            assert_non_null(strstr(err.message, "cannot be united"));
            continue;
        }
        fr_request_close(r);
        run(e, &o, &got, &why);
        if (got.finish == FR_FINISH_ERROR) fail_msg("%s, %s: %s", draft, rule, why.message);
        if (!is_warm) rig_assert_same(greedy, &got, rule);
    }
}

static void rejected_rows_do_not_matter(void **state) {
    (void)state;
    static Stream greedy;
    fr_error why;
    fr_model *model = rig_open_model(AVOIDS, NULL);
    all_drafters_write_for(AVOIDS);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 96});
    Devil random = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, VOCAB, 3);
    rig_add_drafter(e, "random", &random.base);
    fr_request_options o = request_of(0, 1);
    run(e, &o, &greedy, &why);
    assert_int_equal(greedy.finish, FR_FINISH_LENGTH);
    for (int i = 0; all_drafters[i]; i++)
        for (const VerifyRule *const *rule = verify_rules(); *rule; rule++)
            check_beside_random(e, all_drafters[i], (*rule)->name, &greedy);
    fr_engine_close(e);
    fr_model_close(model);
}

/* ---- the drafter overflows --------------------------------------------------------------------------------- */

static void run_every_rule(const fr_model *model, const char *draft, const Stream *plain) {
    static Stream got;
    fr_error why;
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 96});
    for (const VerifyRule *const *rule = verify_rules(); *rule; rule++) {
        fr_request_options o = request_of(0.8, 5);
        o.max_tokens = N_SHORT, o.sampling.top_k = 8;
        o.drafts = &draft, o.n_drafts = 1, o.verify = (*rule)->name;
        run(e, &o, &got, &why);
        if (rule == verify_rules()) rig_assert_same(plain, &got, draft); /* `sampled` */
    }
    fr_engine_close(e);
}

/* Tests each tensor of the drafter's file in turn, and all of them. */
static void check_inflated(const fr_model *model, const char *draft, const char *path, const Stream *plain) {
    ModelPatch p;
    model_patch_open(&p, path);
    char *bytes = malloc(p.n);
    assert_non_null(bytes);
    memcpy(bytes, p.bytes, p.n);
    for (int64_t n = gguf_n_tensors(p.gguf), which = -1; which < n; which++) {
        for (int64_t i = 0; i < n; i++)
            if (which < 0 || which == i) inflate(&p, gguf_tensor(p.gguf, i));
        model_patch_write(&p, path);
        run_every_rule(model, draft, plain);
        memcpy(p.bytes, bytes, p.n);
    }
    model_patch_write(&p, path);
    model_patch_close(&p);
    free(bytes);
}

static void drafters_that_overflow(void **state) {
    (void)state;
    static Stream plain;
    fr_error why;
    fr_model *model = rig_open_model(AVOIDS, NULL);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 96});
    fr_request_options o = request_of(0.8, 5);
    all_drafters_write_for(AVOIDS);
    o.max_tokens = N_SHORT, o.sampling.top_k = 8;
    run(e, &o, &plain, &why);
    fr_engine_close(e);
    int n_drafters = 0;
    for (int i = 0; all_drafters[i]; i++) {
        const char *file = strstr(all_drafters[i], "file=build");
        if (!file && !strstr(all_drafters[i], ALL_DRAFTERS_MODEL)) continue;
        check_inflated(model, all_drafters[i], file ? file + strlen("file=") : ALL_DRAFTERS_MODEL, &plain);
        n_drafters++;
    }
    assert_int_equal(n_drafters, 19);
    fr_model_close(model);
}

/* ---- the target overflows everywhere ----------------------------------------------------------------------- */

#define HUGE_NUMBERS "build/bad-huge.gguf"

/* Compares the first error or the whole text, of plain decoding and with three drafters. Returns whether it was an
 * error. */
static bool check_huge(const char *backend) {
    static const char *const drafts[] = {"ngram-trie", "recycling", "lookahead"};
    static Stream plain;
    fr_error plain_why;
    fr_model *model = rig_open_model_in(HUGE_NUMBERS, backend);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 1, .n_ctx = 96});
    fr_request_options o = request_of(0.8, 7);
    o.max_tokens = N_SHORT;
    run(e, &o, &plain, &plain_why);
    check_with_each(e, &o, drafts, sizeof drafts / sizeof *drafts, &plain, &plain_why);
    fr_engine_close(e);
    fr_model_close(model);
    return plain.finish == FR_FINISH_ERROR;
}

static void every_tensor_may_be_huge(void **state) {
    (void)state;
    const RandomModel m = {.arch = "qwen2",
                           .n_layer = 2,
                           .n_embd = EMBD,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .n_ff = 96,
                           .n_vocab = VOCAB,
                           .types = {TYPE_F32, TYPE_F16, TYPE_BF16},
                           .n_types = 3,
                           .seed = 33};
    int n_errors = 0, n_texts = 0;
    fr_error err;
    ModelPatch p;
    if (random_model_write(&m, MEETS, &err)) fail_msg("%s", err.message);
    model_patch_open(&p, MEETS);
    char *bytes = malloc(p.n);
    assert_non_null(bytes);
    memcpy(bytes, p.bytes, p.n);
    for (int64_t i = 0; i < gguf_n_tensors(p.gguf); i++) {
        inflate(&p, gguf_tensor(p.gguf, i));
        model_patch_write(&p, HUGE_NUMBERS);
        bool is_error = check_huge("cpu");
        check_huge("reference");
        n_errors += is_error, n_texts += !is_error;
        memcpy(p.bytes, bytes, p.n);
    }
    model_patch_close(&p);
    free(bytes);
    assert_true(n_errors > 0 && n_texts > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_ends_where_plain_decoding_ends),
        cmocka_unit_test(accepted_drafts_before_the_error_count),
        cmocka_unit_test(other_requests_go_on),
        cmocka_unit_test(rejected_rows_do_not_matter),
        cmocka_unit_test(drafters_that_overflow),
        cmocka_unit_test(every_tensor_may_be_huge),
    };
    return cmocka_run_group_tests(tests, write_targets, NULL);
}

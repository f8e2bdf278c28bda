/* test_logprobs.c - log-probabilities and logit_bias in the engine: the log-probabilities of an event are those of
 * softmax(logits) in the row that decided its token, under every rule; and with drafters, threads, kernel tables and
 * neighbours they have the bits of plain decoding. A bias changes tokens as it should, and drafting changes none of
 * them. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "compute/cpu/kernels/kernels.h"
#include "random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/logprobs.gguf"

enum { N_VOCAB = 300, N_PROMPT = 24, N_TOKENS = 40, N_TOP = 20 };

static int make_model(void **state) {
    (void)state;
    fr_error err;
    const RandomModel m = {.arch = "llama",
                           .n_layer = 2,
                           .n_embd = 64,
                           .n_head = 4,
                           .n_head_kv = 2,
                           .n_ff = 96,
                           .n_vocab = N_VOCAB,
                           .seed = 6};
    return random_model_write(&m, TARGET, &err);
}

static int remove_model(void **state) {
    (void)state;
    return remove(TARGET);
}

typedef struct Event {
    int32_t token;
    double logprob;
    fr_top_logprob top[N_TOP];
} Event;

/* The events of a request. */
typedef struct Run {
    fr_request *request;
    int64_t n_steps, n_in_step; /* tokens emitted since the last forward */
    int n, n_top;
    Event events[N_TOKENS];
    int32_t prompt[N_PROMPT];
} Run;

static int by_logit(const void *a, const void *b, void *logits) {
    int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    const float *x = logits;
    return x[i] != x[k] ? (x[i] < x[k] ? 1 : -1) : (i > k) - (i < k);
}

/* Compares an event with softmax in double precision, and with a sorted row. */
static void check_event(const float *logits, const fr_token_event *e) {
    static float row[N_VOCAB];
    int32_t order[N_VOCAB];
    double sum = 0;
    memcpy(row, logits, sizeof row);
    for (int32_t t = 0; t < N_VOCAB; t++) order[t] = t;
    qsort_r(order, N_VOCAB, sizeof *order, by_logit, row);
    for (int32_t t = 0; t < N_VOCAB; t++) sum += exp((double)row[t] - (double)row[order[0]]);
    double log_sum = log(sum) + (double)row[order[0]];
    assert_true(fabs(e->logprob - ((double)row[e->token] - log_sum)) < 1e-12);
    for (int i = 0; i < e->n_top_logprobs; i++) {
        assert_int_equal(e->top_logprobs[i].token, order[i]);
        assert_true(fabs(e->top_logprobs[i].logprob - ((double)row[order[i]] - log_sum)) < 1e-12);
        if (order[i] == e->token) assert_true(e->top_logprobs[i].logprob == e->logprob);
    }
}

static int on_token(void *user, const fr_token_event *e) {
    Run *run = user;
    const fr_request *r = run->request;
    if (r->stats.n_steps != run->n_steps) run->n_steps = r->stats.n_steps, run->n_in_step = 0;
    int32_t node = run->n_in_step ? r->verdict.result.path[run->n_in_step - 1] : 0;
    run->n_in_step++;
    check_event(r->engine->step.row_logits[r->first_row + node], e);
    assert_int_equal(e->n_top_logprobs, run->n_top);
    Event *out = &run->events[run->n++];
    memset(out, 0, sizeof *out);
    out->token = e->token, out->logprob = e->logprob;
    for (int i = 0; i < run->n_top; i++) {
        out->top[i].token = e->top_logprobs[i].token;
        out->top[i].logprob = e->top_logprobs[i].logprob;
    }
    return 0;
}

static fr_request_options request_of(Run *run, int i) {
    *run = (Run){.n_top = i % 3 == 2 ? 0 : i % 3 ? 5 : N_TOP};
    for (int k = 0; k < N_PROMPT; k++) run->prompt[k] = 3 + (k % 5 * 11 + i / 6) % 290;
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = run->prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1,
                            .want_logprobs = 1,
                            .n_top_logprobs = run->n_top,
                            .tree_budget = 6,
                            .on_token = on_token,
                            .user = run};
    o.sampling.temperature = (float)(i % 2) * 0.8f;
    o.sampling.seed = (uint64_t)i;
    if (i % 4 == 3) o.sampling.top_p = 0.9f, o.sampling.repeat_penalty = 1.2f;
    return o;
}

static void run_one(fr_engine *e, Run *run, const fr_request_options *o) {
    fr_error err;
    if (rig_open_request(&run->request, e, o, &err)) fail_msg("%s", err.message);
    while (fr_engine_step(e, &err) > 0) {}
    assert_int_equal(run->n, N_TOKENS);
    fr_request_close(run->request);
}

static void assert_same_events(const Run *want, const Run *got, const char *what) {
    for (int k = 0; k < N_TOKENS; k++)
        if (memcmp(&want->events[k], &got->events[k], sizeof *want->events) != 0)
            fail_msg("%s: event %d: token %d with %.17g, in plain decoding %d with %.17g", what, k,
                     got->events[k].token, got->events[k].logprob, want->events[k].token, want->events[k].logprob);
}

enum { N_CASES = 12 };
static const char *const drafts[] = {"ngram-trie", "recycling", "lookahead", "suffix", "lookahead-trie"};
enum { N_DRAFTS = 5 };

static Run plain[N_CASES];

static void run_plainly(const fr_model *model) {
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96, .n_threads = 1});
    for (int i = 0; i < N_CASES; i++) {
        fr_request_options o = request_of(&plain[i], i);
        run_one(e, &plain[i], &o);
    }
    fr_engine_close(e);
}

/* ThreadSanitizer makes everything thirty times slower: with it only the test of threads runs in full. */
#if defined(__SANITIZE_THREAD__)
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif

static void drafts_and_tables_change_no_bit(void **state) {
    (void)state;
    int n_tables;
    const Kernels *const *tables = kernels_available(&n_tables);
    if (UNDER_TSAN) n_tables = 1;
    for (int t = 0; t < n_tables; t++) {
        fr_model *model = rig_open_model(TARGET, tables[t]->name);
        if (t == 0) run_plainly(model);
        static Run got;
        int64_t accepted = 0;
        fr_engine *e = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96, .n_threads = 1 + t % 3});
        for (int i = 0; i < N_CASES; i++)
            for (int d = -1; d < N_DRAFTS; d++) {
                fr_request_options o = request_of(&got, i);
                o.drafts = &drafts[d < 0 ? 0 : d];
                o.n_drafts = d >= 0;
                run_one(e, &got, &o);
                assert_same_events(&plain[i], &got, d < 0 ? tables[t]->name : drafts[d]);
                accepted += got.n_steps < N_TOKENS;
            }
        assert_true(accepted > 10);
        fr_engine_close(e);
        fr_model_close(model);
    }
}

/* All cases at once, each twice, so that prompts are shared and trees are verified in parallel. */
static void neighbours_change_no_bit(void **state) {
    (void)state;
    static Run got[2 * N_CASES];
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_error err;
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_ctx = 96,
                                                               .n_threads = 4,
                                                               .max_requests = 2 * N_CASES});
    for (int i = 0; i < 2 * N_CASES; i++) {
        fr_request_options o = request_of(&got[i], i % N_CASES);
        o.drafts = &drafts[i % N_DRAFTS];
        o.n_drafts = i % 4 != 0;
        if (rig_open_request(&got[i].request, e, &o, &err)) fail_msg("%s", err.message);
    }
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < 2 * N_CASES; i++) assert_same_events(&plain[i % N_CASES], &got[i], "among 23 others");
    for (int i = 0; i < 2 * N_CASES; i++) fr_request_close(got[i].request);
    fr_engine_close(e);
    fr_model_close(model);
}

/* The texts differ there; on_token compares each event with its row. */
static void events_of_all_rules_are_those_of_their_rows(void **state) {
    (void)state;
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96});
    for (const VerifyRule *const *rule = verify_rules(); *rule; rule++)
        for (int i = 0; i < 6; i++) {
            static Run got;
            const char *const chain[] = {"pld"};
            fr_request_options o = request_of(&got, i);
            o.verify = (*rule)->name, o.allow_lossy = 1;
            o.drafts = chain, o.n_drafts = 1;
            run_one(e, &got, &o);
        }
    fr_engine_close(e);
    fr_model_close(model);
}

/* ---- logit_bias -------------------------------------------------------------------------------------------- */

static bool has_token(const Run *r, int32_t token) {
    for (int i = 0; i < r->n; i++)
        if (r->events[i].token == token) return true;
    return false;
}

static void a_bias_bans_and_favours_with_and_without_drafts(void **state) {
    (void)state;
    if (UNDER_TSAN) skip();
    static Run first, biased, got;
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96});
    for (int i = 0; i < N_CASES; i++) {
        fr_request_options o = request_of(&first, i);
        run_one(e, &first, &o);
        fr_logit_bias bias[] = {{first.events[0].token, -INFINITY},
                                {250, 3},
                                {first.events[3].token, -INFINITY},
                                {250, 1}};
        o = request_of(&biased, i);
        o.logit_bias = bias, o.n_logit_bias = 4;
        run_one(e, &biased, &o);
        assert_false(has_token(&biased, bias[0].token));
        assert_false(has_token(&biased, bias[2].token));
        /* log-probabilities are the model's, so those of the first row have not changed */
        assert_memory_equal(biased.events[0].top, first.events[0].top, sizeof biased.events[0].top);
        for (int d = 0; d < N_DRAFTS; d++) {
            o = request_of(&got, i);
            o.logit_bias = bias, o.n_logit_bias = 4;
            o.drafts = &drafts[d], o.n_drafts = 1;
            run_one(e, &got, &o);
            assert_same_events(&biased, &got, drafts[d]);
        }
        fr_logit_bias exclusive = {77, 1000};
        o = request_of(&got, i);
        o.sampling.repeat_penalty = 1;
        o.logit_bias = &exclusive, o.n_logit_bias = 1;
        run_one(e, &got, &o);
        for (int k = 0; k < N_TOKENS; k++) assert_int_equal(got.events[k].token, 77);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

static void refuse(fr_engine *e, const fr_request_options *o, const char *fragment) {
    fr_error err;
    fr_request *r;
    assert_int_equal(fr_request_open(&r, e, o, &err), FR_ERR_ARGUMENT);
    assert_null(r);
    if (!strstr(err.message, fragment)) fail_msg("'%s' does not contain '%s'", err.message, fragment);
}

static void senseless_options_are_refused(void **state) {
    (void)state;
    static Run run;
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 96});
    fr_logit_bias bias = {3, 1};
    fr_request_options o = request_of(&run, 0);
    o.n_top_logprobs = 21, refuse(e, &o, "n_top_logprobs is 21"), o.n_top_logprobs = -1;
    refuse(e, &o, "from 0 to 20"), o.n_top_logprobs = 0;
    o.n_logit_bias = 1, refuse(e, &o, "logit_bias"), o.logit_bias = &bias, o.n_logit_bias = -1;
    refuse(e, &o, "logit_bias"), o.n_logit_bias = 1;
    bias.token = N_VOCAB, refuse(e, &o, "logit bias 0 is of token 300"), bias.token = -1;
    refuse(e, &o, "token -1"), bias.token = 0;
    bias.bias = NAN, refuse(e, &o, "logit_bias is nan"), bias.bias = INFINITY, refuse(e, &o, "or -infinity");
    fr_engine_close(e);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_and_tables_change_no_bit),
        cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(events_of_all_rules_are_those_of_their_rows),
        cmocka_unit_test(a_bias_bans_and_favours_with_and_without_drafts),
        cmocka_unit_test(senseless_options_are_refused),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}

/* test_alloc_failures.c - memory runs out at any moment. For every drafting method under every verification rule, the
 * k-th allocation of opening an engine, a draft and requests, of their steps and of closing them fails: nothing
 * crashes, nothing leaks, and the outcome is an error with a message or, under the rule `sampled`, the text that is
 * generated with enough memory. (The linker replaces malloc and its relatives by the functions below; see the
 * Makefile.)
 *
 *     test_alloc_failures        every STRIDE-th k
 *     test_alloc_failures all    every k, and also all allocations from the k-th on */
#include "engine_rig.h"

#include "all_drafters.h"
#include "verify/verifier.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRIDE = 7, N_PROMPT = 20, N_TOKENS = 12 };

/* ---- allocations ---------------------------------------------------------------------------------------- */

static long n_calls, fail_at, n_live; /* the program has one thread; fail_at 0: never */
static bool fails_on;                 /* from fail_at on, and not only there */

static bool refuses(void) {
    n_calls++;
    return fail_at && (n_calls == fail_at || (fails_on && n_calls > fail_at));
}

#define ALLOCATION(type, name, parameters, arguments) \
    type __real_##name parameters; \
    type __wrap_##name parameters; \
    type __wrap_##name parameters { \
        if (refuses()) return NULL; \
        type made = __real_##name arguments; \
        n_live += made != NULL; \
        return made; \
    }
ALLOCATION(void *, malloc, (size_t n), (n))
ALLOCATION(void *, calloc, (size_t n, size_t each), (n, each))
ALLOCATION(void *, aligned_alloc, (size_t align, size_t n), (align, n))
ALLOCATION(char *, strdup, (const char *s), (s))
ALLOCATION(char *, strndup, (const char *s, size_t n), (s, n))

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) {
    if (refuses()) return NULL;
    bool is_new = !p;
    void *made = __real_realloc(p, n);
    n_live += is_new && made;
    return made;
}

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p) {
    n_live -= p != NULL;
    __real_free(p);
}

/* ---- one run -------------------------------------------------------------------------------------------- */

typedef struct Case {
    const char *draft, *rule;
    int tree_budget;
} Case;

/* The outcome: an error, or the texts of three requests. The second drafts nothing, and the third waits until another
 * one has ended and shares its prompt as far as possible. */
enum { N_REQUESTS = 3 };
typedef struct Outcome {
    int status;
    Stream streams[N_REQUESTS];
} Outcome;

static int32_t prompt[N_PROMPT];
static const fr_model *model;
static fr_grammar *grammar; /* the grammar of the request that drafts by it; NULL: none */

static int open_request(fr_request **out, fr_engine *e, const Case *c, fr_error *err) {
    static const fr_logit_bias bias[] = {{5, -2}, {9, 1}};
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1,
                            .allow_lossy = 1,
                            .logit_bias = bias,
                            .n_logit_bias = 2,
                            .n_top_logprobs = 3};
    o.sampling.temperature = 1, o.sampling.seed = 4; /* no token is impossible: stale draws might be accepted */
    if (c) o.drafts = &c->draft, o.n_drafts = 1, o.verify = c->rule, o.tree_budget = c->tree_budget;
    if (c && grammar) o.grammar = grammar, o.ignore_eos = 0;
    return fr_request_open(out, e, &o, err);
}

/* Opens a grammar that never ends, for the drafter that proposes forced text. */
static int open_grammar(const Case *c, fr_error *err) {
    static const char regex[] = "(?:abab ){100,}";
    if (strcmp(c->draft, "grammar") != 0) return FR_OK;
    return fr_grammar_open(&grammar, model, FR_GRAMMAR_REGEX, regex, sizeof regex - 1, err);
}

static int run_requests(fr_engine *e, const Case *c, Outcome *out, fr_error *err) {
    fr_request *r[N_REQUESTS] = {NULL};
    int status = FR_OK;
    for (int i = 0; i < N_REQUESTS && !status; i++) status = open_request(&r[i], e, i == 1 ? NULL : c, err);
    while (!status && (status = fr_engine_step(e, err)) > 0) status = 0;
    for (int i = 0; i < N_REQUESTS && !status; i++) {
        rig_collect(r[i], &out->streams[i]);
        if (out->streams[i].finish == FR_FINISH_ERROR) assert_true(fr_request_error(r[i])->message[0]);
    }
    for (int i = 0; i < N_REQUESTS; i++) fr_request_close(r[i]);
    return status;
}

/* Lets the k-th allocation fail; k 0: none. Returns the number of allocations. */
static long run(const Case *c, long k, Outcome *out) {
    fr_engine *e;
    fr_error err = {0};
    const fr_engine_options eo = {.struct_size = sizeof eo,
                                  .n_threads = 1,
                                  .n_ctx = 64,
                                  .max_requests = 2,
                                  .max_queued = 1,
                                  .drafts = &c->draft,
                                  .n_drafts = 1};
    if (!k && !open_grammar(c, &err))
        fr_grammar_close(grammar), grammar = NULL; /* makes the model's index, which stays */
    long n_live_before = n_live;
    n_calls = 0, fail_at = k;
    out->status = fr_engine_open(&e, model, &eo, &err);
    if (!out->status) out->status = open_grammar(c, &err);
    if (!out->status) out->status = run_requests(e, c, out, &err);
    fr_engine_close(e);
    fr_grammar_close(grammar);
    grammar = NULL;
    fail_at = 0;
    long n = n_calls;
    if (out->status && (err.code != (fr_code)out->status || !err.message[0]))
        fail_msg("%s, %s, allocation %ld: no message for error %d", c->draft, c->rule, k, out->status);
    if (n_live != n_live_before)
        fail_msg("%s, %s, allocation %ld: %ld blocks were not freed", c->draft, c->rule, k, n_live - n_live_before);
    return n;
}

/* ---- the sweep ------------------------------------------------------------------------------------------- */

static bool does_all;
static Outcome whole, got;

/* A request that met the failure may have lost its drafter or ended with an error, but its text must not differ. */
static void check(const Case *c, long k) {
    char what[160];
    bool is_sampled = strcmp(c->rule, "sampled") == 0;
    if (got.status) return;
    snprintf(what, sizeof what, "%s, %s, allocation %ld", c->draft, c->rule, k);
    for (int i = 0; i < N_REQUESTS; i++)
        if (got.streams[i].finish != FR_FINISH_ERROR && (i == 1 || is_sampled))
            rig_assert_same(&whole.streams[i], &got.streams[i], what);
}

static long sweep(const Case *c, long first) {
    long stride = does_all ? 1 : STRIDE, n = run(c, 0, &whole), n_runs = 0;
    assert_int_equal(whole.status, FR_OK);
    for (int i = 0; i < N_REQUESTS; i++) assert_int_equal(whole.streams[i].finish, FR_FINISH_LENGTH);
    bool is_hybrid = strcmp(c->draft, ALL_DRAFTERS_MTP) ==
                     0; /* the state is known at the border of a page of 16 tokens */
    if (whole.streams[2].stats.n_prompt_shared < (is_hybrid ? N_PROMPT / 16 * 16 : N_PROMPT - 2))
        fail_msg("%s, %s: nothing was shared", c->draft, c->rule);
    assert_string_equal(whole.streams[0].draft_error, "");
    if (!whole.streams[0].stats.drafted) fail_msg("%s, %s: nothing was drafted", c->draft, c->rule);
    for (long k = does_all ? 1 : 1 + first % STRIDE; k <= n; k += stride)
        for (fails_on = false;; fails_on = true) {
            run(c, k, &got);
            check(c, k);
            n_runs++;
            if (fails_on || !does_all) break;
        }
    fails_on = false;
    return n_runs;
}

/* chain, block and k-seq take chains: from most drafters, trees of one node. */
static int budget_of(const char *draft, const char *rule) {
    bool is_chain = strncmp(draft, "sps", 3) == 0, is_iid = is_chain || strncmp(draft, "spectr", 6) == 0;
    if (strcmp(rule, "chain") == 0 || strcmp(rule, "block") == 0) return is_chain ? 8 : 1;
    if (strcmp(rule, "k-seq") == 0) return is_iid ? 8 : 1;
    if (strcmp(rule, "multi-round") == 0 && strncmp(draft, "rsd-", 4) == 0) return 1;
    return 8;
}

static long sweep_rules(const char *draft, long first) {
    long n_runs = 0;
    for (int k = 0; verify_rules()[k]; k++) {
        const char *rule = verify_rules()[k]->name;
        Case c = {draft, rule, budget_of(draft, rule)};
        n_runs += sweep(&c, 5 * k + first);
    }
    return n_runs;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    long n_runs = 0;
    all_drafters_write_files();
    fr_model *opened = rig_open_model(ALL_DRAFTERS_TARGET, NULL), *nextn = rig_open_model(ALL_DRAFTERS_NEXTN, NULL),
             *gemma = rig_open_model(ALL_DRAFTERS_GEMMA, NULL);
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = ALL_DRAFTERS_TOKEN(i);
    model = nextn;
    n_runs += sweep_rules(ALL_DRAFTERS_MTP, 0);
    model = gemma;
    n_runs += sweep_rules(ALL_DRAFTERS_ASSISTANT, 1);
    model = opened;
    for (int i = 0; all_drafters[i]; i++) n_runs += sweep_rules(all_drafters[i], i);
    fr_model_close(opened);
    fr_model_close(nextn);
    fr_model_close(gemma);
    print_message("%ld runs\n", n_runs);
    assert_true(n_runs > 500);
}

/* Tests opening a model, too. */
static void opening_a_model_may_fail(void **state) {
    (void)state;
    long n = 1;
    for (long k = 0; k <= n; k++)
        for (int i = 0; i < 2; i++) {
            static const char *const backends[] = {"cpu", "reference"};
            const fr_model_options o = {.struct_size = sizeof o, .backend = backends[i], .n_threads = 1};
            fr_model *m;
            fr_error err = {0};
            long n_live_before = n_live;
            n_calls = 0, fail_at = k;
            int status = fr_model_open(&m, ALL_DRAFTERS_TARGET, &o, &err);
            fr_model_close(m);
            fail_at = 0;
            if (n_calls > n) n = n_calls;
            if (status) assert_true(err.message[0]);
            if (n_live != n_live_before) fail_msg("%s, allocation %ld: a leak", backends[i], k);
            if (k == 0) assert_int_equal(status, FR_OK);
        }
    assert_true(n > 20);
}

/* Saves the prefix of a request, and restores it in another engine. A drafter that got nothing changes no text. */
static void saving_a_prefix_may_fail(void **state) {
    (void)state;
    static const char *const specs[] = {"eagle:file=build/all-eagle.gguf", "suffix", "lookahead-trie",
                                        "specinfer:length=2,models=" ALL_DRAFTERS_MODEL "+" ALL_DRAFTERS_MODEL};
    fr_model *opened = rig_open_model(ALL_DRAFTERS_TARGET, NULL);
    model = opened;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        const Case c = {specs[i], "sampled", 8};
        const fr_engine_options o = {.struct_size = sizeof o,
                                     .n_threads = 1,
                                     .n_ctx = 64,
                                     .max_requests = 2,
                                     .max_queued = 1,
                                     .drafts = &c.draft,
                                     .n_drafts = 1};
        fr_engine *from = rig_open_engine(opened, &o), *to;
        fr_error err = {0};
        const int32_t *tokens;
        int64_t n_tokens;
        void *data;
        size_t n_bytes;
        assert_int_equal(run_requests(from, &c, &whole, &err), FR_OK);
        assert_true(fr_engine_get_prefix(from, 0, &tokens, &n_tokens));
        assert_int_equal(fr_engine_save_prefix(from, tokens, n_tokens, &data, &n_bytes, &err), FR_OK);
        for (long k = 1, n = 1; k <= n; k++) {
            void *other;
            size_t n_other;
            long n_live_before = n_live;
            n_calls = 0, fail_at = k;
            int status = fr_engine_save_prefix(from, tokens, n_tokens, &other, &n_other, &err);
            fail_at = 0;
            n = n_calls;
            if (status) assert_true(status == FR_ERR_MEMORY && err.message[0] && !other);
            else assert_true(n_other == n_bytes && memcmp(other, data, n_bytes) == 0);
            fr_free(other);
            assert_int_equal(n_live, n_live_before);
        }
        for (long k = 1, n = 1; k <= n; k++) {
            long n_live_before = n_live;
            to = rig_open_engine(opened, &o);
            n_calls = 0, fail_at = k;
            int status = fr_engine_restore_prefix(to, data, n_bytes, NULL, NULL, &err);
            fail_at = 0;
            n = n_calls;
            if (status) assert_true(status == FR_ERR_MEMORY && err.message[0]);
            assert_int_equal(fr_engine_get_prefix(to, 0, NULL, NULL), status == FR_OK);
            got.status = run_requests(to, &c, &got, &err);
            assert_int_equal(got.status, FR_OK);
            check(&c, k);
            fr_engine_close(to);
            assert_int_equal(n_live, n_live_before);
        }
        fr_free(data);
        fr_engine_close(from);
    }
    fr_model_close(opened);
}

int main(int argc, char **argv) {
    does_all = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(opening_a_model_may_fail),
        cmocka_unit_test(saving_a_prefix_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_isolation.c - a request's random numbers and trees: under a ratio or lossy rule the text and the trees depend
 * only on the request, also with drafters that remember other requests; a request that is repeated with its seed
 * follows the target's distribution although its first answer is remembered; requests with the same seed and different
 * prompts are independent; and a drafter that fails for one request keeps working for the others. */
#include "engine/engine.h"
#include "engine_rig.h"

#include "model_rig.h"
#include "random_model.h"
#include "statistics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/isolation-target.gguf"

enum { N_VOCAB = 260, N_TOKENS = 24, N_PROMPT = 12 };

static const char *const drafts[] = {"suffix", "lookahead-trie", "recycling", "lookahead", "ngram-trie"};
static const char *const rules[] = {"multi-round", "recursive", "transport", "typical"}; /* the rules that accept any
                                                                                          * tree */
enum { N_DRAFTS = 5, N_RULES = 3 };

static int make_model(void **state) {
    (void)state;
    fr_error err;
    RandomModel m = {SMALL_LLAMA, .n_vocab = N_VOCAB, .types = {TYPE_F32}, .n_types = 1, .seed = 5};
    return random_model_write(&m, TARGET, &err);
}

static int remove_model(void **state) {
    (void)state;
    return remove(TARGET);
}

/* The prompt of each request; several begin alike, so that the text of one can be drafted for another. */
static void set_prompt(int32_t prompt[N_PROMPT], int i) {
    rig_tokens(3, N_VOCAB, prompt, N_PROMPT);
    prompt[0] = 3 + i;
}

static fr_request_options request_of(const int32_t *prompt, const char *rule, const char *const *of, int n_drafts) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_PROMPT,
                            .max_tokens = N_TOKENS,
                            .ignore_eos = 1,
                            .sampling = fr_sampling_default(),
                            .verify = rule,
                            .allow_lossy = 1,
                            .drafts = of,
                            .n_drafts = n_drafts,
                            .tree_budget = 12};
    o.sampling.temperature = 0.7f;
    o.sampling.top_k = 4;
    o.sampling.seed = 11;
    return o;
}

static void assert_same_trees(const Stream *a, const Stream *b, const char *what) {
    rig_assert_same(a, b, what);
    assert_int_equal(a->stats.drafted, b->stats.drafted);
    assert_int_equal(a->stats.accepted, b->stats.accepted);
}

/* Runs a request by itself; then after others with its seed and after itself; then together with them. */
static void nothing_outside_a_request_reaches_its_trees(void **state) {
    (void)state;
    static Stream alone, got;
    fr_model *model = rig_open_model(TARGET, NULL);
    int64_t accepted = 0;
    for (int i = 0; i < N_RULES * N_DRAFTS; i++) {
        const char *const of[] = {drafts[i % N_DRAFTS], "pld"};
        int n_drafts = 1 + i % 2;
        int32_t prompts[4][N_PROMPT];
        fr_request *r[4];
        fr_error err;
        fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                   .n_ctx = 64,
                                                                   .n_threads = 1,
                                                                   .max_requests = 4});
        for (int k = 0; k < 4; k++) set_prompt(prompts[k], k);
        fr_request_options o = request_of(prompts[0], rules[i / N_DRAFTS], of, n_drafts);
        rig_run_request(e, &o, &alone);
        assert_string_equal(alone.draft_error, "");
        for (int k = 1; k < 4; k++) {
            fr_request_options other = request_of(prompts[k], k % 2 ? NULL : o.verify, of, n_drafts);
            rig_run_request(e, &other, &got);
        }
        rig_run_request(e, &o, &got);
        assert_same_trees(&alone, &got, of[0]);
        for (int k = 0; k < 4; k++) {
            fr_request_options other = request_of(prompts[k], k % 2 ? NULL : o.verify, of, n_drafts);
            if (rig_open_request(&r[k], e, &other, &err)) fail_msg("%s", err.message);
        }
        while (fr_engine_step(e, &err) > 0) {}
        rig_collect(r[0], &got);
        assert_same_trees(&alone, &got, of[0]);
        for (int k = 0; k < 4; k++) fr_request_close(r[k]);
        fr_engine_close(e);
        accepted += alone.stats.accepted;
    }
    assert_true(accepted > 0);
    fr_model_close(model);
}

/* Writes the trees of all sequences as pld does, and then fails if one of them is sequence 1. */
static int propose_and_fail(Drafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                            fr_error *err) {
    int status = drafter_find("pld")->propose(d, sequences, budgets, trees, n, err);
    for (int i = 0; i < n && !status; i++)
        if (sequences[i] == 1) status = error_set(err, FR_ERR_INTERNAL, "sequence 1 fails");
    return status;
}

/* Three requests share a drafter whose proposal fails for the second one: only that one loses it. */
static void a_failing_proposal_leaves_other_requests_their_drafter(void **state) {
    (void)state;
    static Stream alone[3], got;
    static const char *const of[] = {"pld"};
    fr_model *model = rig_open_model(TARGET, NULL);
    for (int i = 0; i <= N_RULES; i++) {
        int32_t prompts[3][N_PROMPT];
        fr_request *r[3];
        fr_error err;
        fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                   .n_ctx = 64,
                                                                   .n_threads = 1,
                                                                   .max_requests = 3});
        if (fr_engine_open_draft(e, "pld", &err)) fail_msg("%s", err.message);
        for (int k = 0; k < 3; k++) {
            set_prompt(prompts[k], k);
            fr_request_options o = request_of(prompts[k], i < N_RULES ? rules[i] : NULL, of, k == 1 ? 0 : 1);
            rig_run_request(e, &o, &alone[k]);
            assert_true(k == 1 || alone[k].stats.drafted > 0);
        }
        DrafterClass failing = *drafter_find("pld");
        failing.propose = propose_and_fail;
        e->drafters[0].drafter->class = &failing;
        for (int k = 0; k < 3; k++) {
            fr_request_options o = request_of(prompts[k], i < N_RULES ? rules[i] : NULL, of, 1);
            if (fr_request_open(&r[k], e, &o, &err)) fail_msg("%s", err.message);
        }
        while (fr_engine_step(e, &err) > 0) {}
        for (int k = 0; k < 3; k++) {
            rig_collect(r[k], &got);
            assert_string_equal(got.draft_error, k == 1 ? "pld: sequence 1 fails" : "");
            assert_same_trees(&alone[k], &got, "a request beside one whose drafter fails");
            fr_request_close(r[k]);
        }
        fr_engine_close(e);
    }
    fr_model_close(model);
}

/* The first tokens after two prompts, for many seeds: each seed is used for both. Tokens are counted modulo N_KINDS,
 * and the counts of pairs are compared with the product of the shares of their tokens. */
static void requests_of_one_seed_are_independent(void **state) {
    (void)state;
    enum { N_SEEDS = 4000, N_KINDS = 4 };
    static Stream got;
    int counts[N_KINDS * N_KINDS] = {0}, df;
    int32_t prompts[2][N_PROMPT];
    double p[N_KINDS * N_KINDS], share[2][N_KINDS] = {{0}};
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_engine *e = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 64, .n_threads = 1});
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        int32_t kind[2];
        for (int k = 0; k < 2; k++) {
            set_prompt(prompts[k], k);
            fr_request_options o = request_of(prompts[k], NULL, NULL, 0);
            o.sampling.seed = seed;
            o.sampling.temperature = 1;
            o.sampling.top_k = 0;
            o.max_tokens = 1;
            rig_run_request(e, &o, &got);
            kind[k] = got.tokens[0] % N_KINDS;
            share[k][kind[k]] += 1.0 / N_SEEDS;
        }
        counts[kind[0] * N_KINDS + kind[1]]++;
    }
    for (int i = 0; i < N_KINDS * N_KINDS; i++) p[i] = share[0][i / N_KINDS] * share[1][i % N_KINDS];
    double x = chi_square(counts, p, N_KINDS * N_KINDS, N_SEEDS, &df);
    if (x > chi_square_limit(df)) fail_msg("pairs of first tokens: chi-square %g, limit %g", x, chi_square_limit(df));
    fr_engine_close(e);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_outside_a_request_reaches_its_trees),
        cmocka_unit_test(a_failing_proposal_leaves_other_requests_their_drafter),
        cmocka_unit_test(requests_of_one_seed_are_independent),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}

/* test_shared_prefix.c - requests whose drafters keep data of each prompt token (hidden states, keys of a layer or of a
 * model of their own) share these data with requests that began with the same tokens. A prompt that was read before is
 * not read again, and neither texts nor proposals differ from those of an engine that shares nothing. */
#include "engine_rig.h"

#include "all_drafters.h"
#include "engine/engine.h"
#include "engine/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define M "model=models/draft.gguf"

enum { MAX_PROMPT = 400, N_TWINS = 4, N_TOKENS = 30 };

static const char *const shipped[] = {"eagle:file=models/eagle.gguf",
                                      "lyanna:file=models/lyanna.gguf",
                                      "redrafter:file=models/redrafter.gguf",
                                      "medusa:file=models/medusa.gguf",
                                      "hydra:file=models/hydra.gguf",
                                      "sps:" M,
                                      "rsd-c:" M,
                                      "rsd-s:" M,
                                      "spectr:" M,
                                      "specinfer:models=models/draft.gguf+models/draft.gguf"};
enum { N_SHIPPED = sizeof shipped / sizeof *shipped };

static const char text[] =
    "Once upon a time there was a little girl who had a red coat. She lived with her mother and her "
    "brother in a small house near the forest. One day she went into the forest to look for";

static fr_model *model;
static int32_t prompt[MAX_PROMPT];
static int64_t n_prompt;

static int open_model(void **state) {
    (void)state;
    int32_t *tokens;
    fr_error err;
    model = rig_open_model_with("models/target.gguf", NULL, "q8");
    if (fr_tokenize(model, text, strlen(text), FR_TOKENIZE_PROMPT, &tokens, &n_prompt, &err))
        fail_msg("%s", err.message);
    assert_in_range(n_prompt, 40, MAX_PROMPT / 4);
    memcpy(prompt, tokens, (size_t)n_prompt * sizeof *tokens);
    fr_free(tokens);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

static fr_engine *open_engine(const fr_model *of, int page_size, int n_threads, int prefix_cache) {
    return rig_open_engine(of, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                    .n_threads = n_threads,
                                                    .n_ctx = MAX_PROMPT,
                                                    .max_requests = N_TWINS + 1,
                                                    .kv_page_size = page_size,
                                                    .prefill_chunk = 16,
                                                    .prefix_cache = prefix_cache});
}

static fr_request_options ask(const int32_t *tokens, int64_t n, const char *const *spec, float temperature) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = tokens,
                            .n_prompt = n,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = spec,
                            .n_drafts = 1,
                            .tree_budget = 12,
                            .ignore_eos = 1};
    o.sampling.temperature = temperature, o.sampling.seed = 5;
    return o;
}

/* The same text, and the same proposals. */
static void assert_same_drafts(const Stream *want, const Stream *got, const char *what) {
    rig_assert_same(want, got, what);
    assert_string_equal(got->draft_error, "");
    if (got->stats.drafted != want->stats.drafted || got->stats.accepted != want->stats.accepted ||
        got->stats.n_steps != want->stats.n_steps)
        fail_msg("%s: %d of %d drafted nodes accepted in %d steps, but %d of %d in %d without sharing", what,
                 (int)got->stats.accepted, (int)got->stats.drafted, (int)got->stats.n_steps, (int)want->stats.accepted,
                 (int)want->stats.drafted, (int)want->stats.n_steps);
}

typedef struct Pair {
    fr_engine *sharing, *apart;
    const char *spec;
} Pair;

/* Each request has a different sequence from the two before it. */
static void run_in_turns(fr_engine *e, const fr_request_options *o, Stream *got) {
    static int n_runs;
    fr_request *others[2] = {NULL}, *r;
    fr_error err;
    const fr_request_options other = {.struct_size = sizeof other,
                                      .prompt = prompt,
                                      .n_prompt = 1,
                                      .sampling = fr_sampling_default()};
    for (int i = 0; i < n_runs % 3; i++)
        if (fr_request_open(&others[i], e, &other, &err)) fail_msg("%s", err.message);
    n_runs++;
    if (rig_open_request(&r, e, o, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < 2; i++) fr_request_close(others[i]);
    while (fr_engine_step(e, &err) > 0) {}
    rig_collect(r, got);
    fr_request_close(r);
}

/* Runs a request in both engines. Returns the number of tokens of its prompt that were computed, including the pending
 * one. */
static int64_t compute(const Pair *p, const fr_request_options *o, Stream *got) {
    static Stream alone;
    rig_run_request(p->apart, o, &alone);
    assert_int_equal(alone.stats.n_prompt_shared, 0);
    run_in_turns(p->sharing, o, got);
    assert_same_drafts(&alone, got, p->spec);
    return o->n_prompt - got->stats.n_prompt_shared;
}

/* The hidden state of one token is computed again, and the pending token is run by the first tree. */
static void expect_computed(const Pair *p, const int32_t *tokens, int64_t n, float temperature, int64_t most,
                            Stream *got) {
    fr_request_options o = ask(tokens, n, &p->spec, temperature);
    int64_t n_computed = compute(p, &o, got);
    if (n_computed > most)
        fail_msg("%s: %d tokens were computed, at most %d expected", p->spec, (int)n_computed, (int)most);
}

static void check_conversation(const Pair *p, float temperature) {
    static Stream got;
    int32_t talk[MAX_PROMPT], other[MAX_PROMPT];
    int64_t n = n_prompt, accepted = 0;
    memcpy(talk, prompt, sizeof talk);
    talk[0] = 5 + (int32_t)(10 * temperature); /* nothing is shared with the conversation before */
    expect_computed(p, talk, n, temperature, n, &got);
    for (int turn = 0; turn < 3; turn++) {
        accepted += got.stats.accepted;
        expect_computed(p, talk, n, temperature, 2, &got); /* the same again */
        memcpy(talk + n, got.tokens, (size_t)got.n * sizeof *talk);
        n += got.n;
        for (int i = 0; i < 5; i++) talk[n++] = 300 + turn + 7 * i;
        expect_computed(p, talk, n, temperature, 5 + 2, &got); /* the last token of an answer was not read */
    }
    if (accepted < 15) fail_msg("%s: only %d drafts were accepted", p->spec, (int)accepted);
    for (int64_t same = 0; same < n; same += 41) {
        memcpy(other, talk, sizeof other);
        other[same] = 777;
        expect_computed(p, other, n, temperature, n - same + 1, &got);
    }
}

static void a_prompt_read_before_is_not_read_again(void **state) {
    (void)state;
    static const int page_sizes[] = {16, 1, 7};
    for (int i = 0; i < N_SHIPPED; i++) {
        int page_size = page_sizes[i % 3], n_threads = 1 + i % 2;
        Pair p = {open_engine(model, page_size, n_threads, 2), open_engine(model, 16, 1, -1), shipped[i]};
        check_conversation(&p, 0);
        check_conversation(&p, 0.8f);
        fr_engine_close(p.sharing);
        fr_engine_close(p.apart);
    }
}

/* Several continuations of one prompt, opened together or while one of them reads: it is computed once. */
static void forks_compute_their_prompt_once(void **state) {
    (void)state;
    static Stream alone, got;
    for (int i = 0; i < N_SHIPPED; i++) {
        fr_engine *e = open_engine(model, 7, 1, 0), *apart = open_engine(model, 16, 1, -1);
        for (int late = 0; late < 2; late++) {
            fr_request *r[N_TWINS];
            fr_request_options o = ask(prompt, n_prompt, &shipped[i], 1);
            fr_error err;
            for (int k = 0; k < N_TWINS; k++) {
                o.sampling.seed = (uint64_t)k;
                if (rig_open_request(&r[k], e, &o, &err)) fail_msg("%s", err.message);
                if (late && k < 3) assert_true(fr_engine_step(e, &err) > 0);
            }
            while (fr_engine_step(e, &err) > 0) {}
            for (int k = 0; k < N_TWINS; k++) {
                o.sampling.seed = (uint64_t)k;
                rig_run_request(apart, &o, &alone);
                rig_collect(r[k], &got);
                assert_same_drafts(&alone, &got, shipped[i]);
                if (k > 0) assert_true(got.stats.n_prompt_shared >= n_prompt - 2);
                else assert_int_equal(got.stats.n_prompt_shared, 0);
                fr_request_close(r[k]);
            }
            while (prefix_cache_drop(e)) {}
        }
        fr_engine_close(e);
        fr_engine_close(apart);
    }
}

/* The text of a ratio rule depends on the proposals. */
static void the_text_of_a_ratio_rule_does_not_depend_on_sharing(void **state) {
    (void)state;
    static Stream got;
    for (int i = 0; i < N_SHIPPED; i++) {
        if (strncmp(shipped[i], "rsd-c", 5) == 0) continue;
        Pair p = {open_engine(model, 3, 1, 0), open_engine(model, 16, 1, -1), shipped[i]};
        fr_request_options o = ask(prompt, n_prompt, &p.spec, 1);
        o.n_drafts = 0;
        rig_run_request(p.sharing, &o, &got); /* its pages have no data for a drafter */
        o.n_drafts = 1;
        o.verify = strncmp(p.spec, "sp", 2) == 0 ? "multi-round" : "recursive";
        for (int k = 0; k < 3; k++) assert_true(compute(&p, &o, &got) <= (k ? 2 : n_prompt));
        fr_engine_close(p.sharing);
        fr_engine_close(p.apart);
    }
}

/* The last entry of a drafter's layer is computed from a token that the target has not read yet. Another text may have
 * a different token there, whether it uses that drafter or makes the entry of the cache longer without it. */
static void another_token_after_it_is_detected(void **state) {
    (void)state;
    static Stream got;
    for (int i = 0; i < 2; i++) /* eagle, lyanna */
        for (int way = 0; way < 2; way++) {
            Pair p = {open_engine(model, 16, 1, 1), open_engine(model, 16, 1, -1), shipped[i]};
            for (int k = 0; k < 8; k++) {
                int32_t talk[MAX_PROMPT];
                memcpy(talk, prompt, sizeof talk);
                talk[1] = 40 + k; /* nothing is shared with the last one */
                fr_request_options o = ask(talk, n_prompt, &p.spec, 1);
                o.max_tokens = 6;
                compute(&p, &o, &got);
                memcpy(talk + n_prompt, got.tokens, (size_t)got.n * sizeof *talk);
                int64_t n = n_prompt + got.n, n_read = n - 1;
                talk[n - 1] = talk[n - 1] == 500 ? 501 : 500;
                for (int m = 0; m < 3; m++) talk[n++] = 600 + m;
                if (way) { /* without the drafter */
                    o = ask(talk, n, NULL, 1);
                    o.n_drafts = 0, o.max_tokens = 2;
                    run_in_turns(p.sharing, &o, &got);
                }
                expect_computed(&p, talk, n, 1, n, &got);
                if (got.stats.n_prompt_shared > n_read - 1)
                    fail_msg("%s, way %d: %d tokens taken over", p.spec, way, (int)got.stats.n_prompt_shared);
            }
            fr_engine_close(p.sharing);
            fr_engine_close(p.apart);
        }
}

/* ---- all drafters, and too few pages --------------------------------------------------------------------- */

enum { SMALL_CTX = 80, N_REQUESTS = 12, N_PLACES = 3 };

static int64_t n_preempted, n_shared;

/* Requests that begin alike come and go in a cache that does not hold them all. */
static void run_short_of_pages(const fr_model *small, const char *spec, int page_size, int n_threads) {
    static Stream alone, got;
    static int32_t prompts[N_REQUESTS][SMALL_CTX];
    fr_engine *e = rig_open_engine(small, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = n_threads,
                                                               .n_ctx = SMALL_CTX,
                                                               .max_requests = N_PLACES,
                                                               .max_queued = N_REQUESTS,
                                                               .kv_tokens = SMALL_CTX + 16,
                                                               .kv_page_size = page_size,
                                                               .prefill_chunk = 7});
    fr_engine *apart = rig_open_engine(
        small, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = SMALL_CTX, .prefix_cache = -1});
    fr_request *r[N_REQUESTS];
    fr_request_options o[N_REQUESTS];
    fr_error err;
    for (int i = 0; i < N_REQUESTS; i++) {
        for (int k = 0; k < SMALL_CTX; k++) prompts[i][k] = ALL_DRAFTERS_TOKEN(k) + (k > 12 + 5 * (i % 3) ? i : 0);
        o[i] = ask(prompts[i], 20 + 2 * (i % 4), &spec, i % 2 ? 1.0f : 0.0f);
        o[i].max_tokens = 14 + i;
        if (rig_open_request(&r[i], e, &o[i], &err)) fail_msg("%s: %s", spec, err.message);
    }
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < N_REQUESTS; i++) {
        o[i].n_drafts = 0;
        rig_run_request(apart, &o[i], &alone);
        rig_collect(r[i], &got);
        rig_assert_same(&alone, &got, spec);
        assert_string_equal(got.draft_error, "");
        n_preempted += got.stats.n_preempted;
        n_shared += got.stats.n_prompt_shared;
        fr_request_close(r[i]);
    }
    while (prefix_cache_drop(e)) {}
    assert_int_equal(executor_n_free_pages(e->executor), executor_n_pages(e->executor));
    fr_engine_close(e);
    fr_engine_close(apart);
}

static void requests_short_of_pages_share_too(void **state) {
    (void)state;
    static const int page_sizes[] = {1, 3, 16};
    all_drafters_write_files();
    fr_model *small = rig_open_model(ALL_DRAFTERS_TARGET, NULL), *nextn = rig_open_model(ALL_DRAFTERS_NEXTN, NULL),
             *gemma = rig_open_model(ALL_DRAFTERS_GEMMA, NULL);
    for (int i = -2; i < 0 || all_drafters[i]; i++) {
        const char *spec = i == -2 ? ALL_DRAFTERS_ASSISTANT : i < 0 ? ALL_DRAFTERS_MTP : all_drafters[i];
        const fr_model *of = i == -2 ? gemma : i < 0 ? nextn : small;
        n_preempted = n_shared = 0;
        for (int k = 0; k < 3; k++) run_short_of_pages(of, spec, page_sizes[k], 1 + (i + 3 + k) % 2);
        if (n_preempted < 3 || n_shared < 60)
            fail_msg("%s: %d preemptions, %d tokens shared", spec, (int)n_preempted, (int)n_shared);
    }
    fr_model_close(small);
    fr_model_close(nextn);
    fr_model_close(gemma);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_read_before_is_not_read_again),
        cmocka_unit_test(forks_compute_their_prompt_once),
        cmocka_unit_test(the_text_of_a_ratio_rule_does_not_depend_on_sharing),
        cmocka_unit_test(another_token_after_it_is_detected),
        cmocka_unit_test(requests_short_of_pages_share_too),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

/* test_hidden_states.c - the hidden states that the engine passes to drafters. A test drafter keeps all of them and
 * compares them, when its request ends, with a plain forward over the whole text: each token's state comes once, in
 * order and with the same bits, and with the residual streams that the target keeps for it, whatever the prefill
 * chunks, neighbours, accepted drafts and preemptions were. */
#include "learned_rig.h"

#include "base/rng.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/hidden-states-target.gguf"

enum { H = 64, WIDTH = 3 * H, V = 300, N_CTX = 80, N_PLACES = 4, N_REQUESTS = 10 };

typedef struct Spy {
    Drafter base;
    int64_t n_tokens[N_PLACES], n_hidden[N_PLACES];
    int32_t text[N_PLACES][N_CTX + 1];
    float hidden[N_PLACES][N_CTX + 1][WIDTH];
    int32_t n_checked, n_accepted;
} Spy;

static Gguf *target_gguf;
static Weights *target;
static Spy spy;
static const KeptLayers kept = {2, {1, 0}}; /* after the first layer, and before it */

static int spy_begin(Drafter *d, int32_t s, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)d, (void)err;
    memcpy(spy.text[s], tokens, (size_t)n * sizeof *tokens);
    spy.n_tokens[s] = n;
    spy.n_hidden[s] = 0;
    return FR_OK;
}

static void keep(int32_t s, const float *hidden) {
    assert_true(spy.n_hidden[s] < N_CTX);
    memcpy(spy.hidden[s][spy.n_hidden[s]++], hidden, sizeof spy.hidden[s][0]);
}

static int spy_observe_prompt(Drafter *d, int32_t s, int64_t first, const float *const *hidden, int32_t n,
                              fr_error *err) {
    (void)d, (void)err;
    assert_int_equal(first, spy.n_hidden[s]);
    for (int32_t i = 0; i < n; i++) keep(s, hidden[i]);
    assert_true(spy.n_hidden[s] < spy.n_tokens[s]);
    return FR_OK;
}

static int spy_observe_tree(Drafter *d, int32_t s, const VerifiedTree *v, fr_error *err) {
    (void)d, (void)err;
    assert_int_equal(spy.n_hidden[s], spy.n_tokens[s] - 1);
    keep(s, v->hidden[0]);
    for (int32_t i = 0; i < v->verdict->n_path; i++) keep(s, v->hidden[v->verdict->path[i]]);
    spy.n_accepted += v->verdict->n_path;
    return FR_OK;
}

static int spy_observe(Drafter *d, int32_t s, const int32_t *tokens, int64_t n, fr_error *err) {
    (void)d, (void)err;
    assert_true(spy.n_tokens[s] + n <= N_CTX + 1);
    memcpy(spy.text[s] + spy.n_tokens[s], tokens, (size_t)n * sizeof *tokens);
    spy.n_tokens[s] += n;
    return FR_OK;
}

/* Random children; some are right by chance, because the vocabulary is small. */
static int spy_propose(Drafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                       fr_error *err) {
    (void)d, (void)err;
    for (int i = 0; i < n; i++)
        for (int32_t k = 0; k < budgets[i]; k++) {
            uint32_t words[4];
            rng_words(4, RNG_TEST, (uint64_t)spy.n_tokens[sequences[i]], (uint32_t)k, words);
            tree_add(trees[i], (int32_t)(words[0] % (uint32_t)trees[i]->n % 5), (int32_t)(words[1] % V), 0, 0);
        }
    return FR_OK;
}

static void spy_end(Drafter *d, int32_t s) {
    (void)d;
    static float want[N_CTX][WIDTH];
    int32_t n = (int32_t)spy.n_tokens[s] - 1; /* the target may have read more than the text if the text was cut */
    assert_true(spy.n_hidden[s] >= n && n >= 1);
    RigOptions options = rig_options(N_CTX + 1, N_CTX);
    options.kv_type = KV_F16;
    Executor *e = rig_executor(target, &options);
    Row rows[N_CTX];
    fr_error err;
    int32_t sequence = rig_sequence(e);
    if (executor_keep_layers(e, &kept, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = spy.text[s][i], .sequence = sequence, .parent = i - 1, .want_hidden = true};
    if (executor_reserve(e, sequence, n, &err) || executor_forward(e, rows, n, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n; i++) memcpy(want[i], executor_hidden(e, i), sizeof want[i]);
    for (int32_t i = 0; i < n; i++)
        if (memcmp(want[i], spy.hidden[s][i], sizeof want[i]) != 0)
            fail_msg("the hidden state of token %d of %d differs", i, n);
    spy.n_checked++;
    rig_executor_close(e);
}

static void spy_close(Drafter *d) { (void)d; }

static const DrafterClass spy_class = {.name = "spy",
                                       .needs_hidden = true,
                                       .close = spy_close,
                                       .begin = spy_begin,
                                       .observe_prompt = spy_observe_prompt,
                                       .observe_tree = spy_observe_tree,
                                       .observe = spy_observe,
                                       .propose = spy_propose,
                                       .end = spy_end};

static int32_t n_preempted, n_shared;

/* Requests whose prompts begin alike come and go; every third has no drafter that needs hidden states. */
static void run_world(const fr_model *model, int64_t kv_tokens, int32_t chunk, uint64_t seed) {
    fr_engine_options eo = {.struct_size = sizeof eo,
                            .max_requests = N_PLACES,
                            .prefill_chunk = chunk,
                            .kv_page_size = 4,
                            .n_ctx = N_CTX,
                            .kv_tokens = kv_tokens};
    fr_engine *e = rig_open_engine(model, &eo);
    fr_request *running[N_PLACES] = {NULL};
    int32_t prompts[N_REQUESTS][40];
    int n_started = 0, n_done = 0;
    fr_error err;
    spy.base.class = &spy_class;
    rig_add_drafter(e, "spy", &spy.base);
    if (executor_keep_layers(e->executor, &kept, &err)) fail_msg("%s", err.message);
    for (int step = 0; n_done < N_REQUESTS; step++) {
        for (int p = 0; p < N_PLACES; p++) {
            if (running[p] && fr_request_finish_reason(running[p])) {
                fr_stats stats = {.struct_size = sizeof stats};
                fr_request_get_stats(running[p], &stats);
                assert_string_equal(fr_request_draft_error(running[p]), "");
                assert_int_not_equal(fr_request_finish_reason(running[p]), FR_FINISH_ERROR);
                n_preempted += (int32_t)stats.n_preempted;
                n_shared += (int32_t)stats.n_prompt_shared;
                fr_request_close(running[p]);
                running[p] = NULL;
                n_done++;
            }
            if (running[p] || n_started == N_REQUESTS || (step + p) % 3) continue;
            const char *draft = n_started % 3 == 2 ? "ngram-trie" : "spy";
            fr_request_options o = {.struct_size = sizeof o,
                                    .prompt = prompts[n_started],
                                    .n_prompt = 12 + 7 * (n_started % 4),
                                    .max_tokens = 20 + n_started,
                                    .sampling = fr_sampling_default(),
                                    .ignore_eos = 1,
                                    .drafts = &draft,
                                    .n_drafts = 1,
                                    .tree_budget = 1 + 20 * (n_started % 4)};
            for (int k = 0; k < 40; k++)
                prompts[n_started][k] = 3 + rig_token(k < 20 ? seed : seed + (uint64_t)n_started, (uint64_t)k, V - 3);
            o.sampling.temperature = n_started % 2 ? 0.9f : 0;
            if (rig_open_request(&running[p], e, &o, &err)) fail_msg("%s", err.message);
            n_started++;
        }
        if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
        assert_true(step < 10000);
    }
    fr_engine_close(e);
}

static void each_token_is_shown_once_with_its_own_hidden_state(void **state) {
    (void)state;
    static const int32_t chunks[] = {1, 7, 64};
    fr_model *model = rig_open_model(TARGET, NULL);
    for (uint64_t seed = 0; seed < 6; seed++) run_world(model, seed % 2 ? 84 : 0, chunks[seed % 3], seed * 100);
    print_message("%d requests checked, %d drafts accepted, %d preemptions, %d tokens shared\n", spy.n_checked,
                  spy.n_accepted, n_preempted, n_shared);
    assert_int_equal(spy.n_checked, 6 * 7);
    assert_true(spy.n_accepted > 10);
    assert_true(n_preempted > 5);
    assert_true(n_shared > 0); /* tokens are shared by the requests without such a drafter */
    fr_model_close(model);
}

static int open_target(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 12);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    return 0;
}

static int close_target(void **state) {
    (void)state;
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_token_is_shown_once_with_its_own_hidden_state)};
    return cmocka_run_group_tests(tests, open_target, close_target);
}

/* test_parallel_verify.c - trees of several requests are verified in parallel on the threads of the engine: tokens,
 * log-probabilities, statistics and the order of all callbacks are those of one thread, under every kind of rule, also
 * if a callback closes a request whose tree has already been verified. Run it with MODE=tsan, too. */
#include "engine_rig.h"

#include "random_model.h"

#include <stdio.h>
#include <string.h>

#define TARGET "build/parallel-verify.gguf"

enum { N_VOCAB = 300, N_REQUESTS = 7, N_PROMPT = 12, N_TOKENS = 20, MAX_EVENTS = N_REQUESTS * N_TOKENS };

static int make_model(void **state) {
    (void)state;
    fr_error err;
    const RandomModel m = {SMALL_LLAMA, .n_vocab = N_VOCAB, .seed = 5};
    return random_model_write(&m, TARGET, &err);
}

static int remove_model(void **state) {
    (void)state;
    return remove(TARGET);
}

/* All callbacks of an engine, in order. */
typedef struct Event {
    int request;
    int32_t token, source;
    double logprob;
} Event;

typedef struct Run {
    Event events[MAX_EVENTS];
    int n;
    Stream streams[N_REQUESTS];
    fr_request *requests[N_REQUESTS];
    int closer, n_until_close; /* the request whose callback closes the one after it */
} Run;

typedef struct User {
    Run *run;
    int request;
} User;

static int on_token(void *user, const fr_token_event *event) {
    const User *u = user;
    Run *run = u->run;
    assert_true(run->n < MAX_EVENTS);
    run->events[run->n++] = (Event){u->request, event->token, event->source, event->logprob};
    if (u->request == run->closer && --run->n_until_close == 0) {
        fr_request_close(run->requests[u->request + 1]);
        run->requests[u->request + 1] = NULL;
    }
    return 0;
}

/* Seven requests of different options at once; text drafters whose texts repeat themselves. */
static void run_all(const fr_model *model, int n_threads, const char *rule, int closer, Run *out) {
    static const char *const drafts[] = {"ngram-trie", "recycling", "lookahead"};
    User users[N_REQUESTS];
    int32_t prompts[N_REQUESTS][N_PROMPT];
    fr_error err;
    *out = (Run){.closer = closer, .n_until_close = 3};
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_ctx = 64,
                                                               .n_threads = n_threads,
                                                               .max_requests = N_REQUESTS});
    for (int i = 0; i < N_REQUESTS; i++) {
        users[i] = (User){out, i};
        for (int k = 0; k < N_PROMPT; k++) prompts[i][k] = 3 + (k % 4 * 7 + i) % 290;
        fr_request_options o = {.struct_size = sizeof o,
                                .prompt = prompts[i],
                                .n_prompt = N_PROMPT,
                                .max_tokens = N_TOKENS - i,
                                .ignore_eos = 1,
                                .sampling = fr_sampling_default(),
                                .verify = rule,
                                .allow_lossy = 1,
                                .drafts = &drafts[i % 3],
                                .n_drafts = i != 4,
                                .want_logprobs = i % 2,
                                .on_token = on_token,
                                .user = &users[i]};
        o.sampling.temperature = (float)(i % 3) * 0.4f;
        o.sampling.seed = (uint64_t)i;
        if (i == 5) o.sampling.top_p = 0.8f;
        if (i == 6) o.sampling.repeat_penalty = 1.3f, o.sampling.top_k = 40;
        if (rig_open_request(&out->requests[i], e, &o, &err)) fail_msg("%s", err.message);
    }
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < N_REQUESTS; i++)
        if (out->requests[i]) rig_collect(out->requests[i], &out->streams[i]);
    for (int i = 0; i < N_REQUESTS; i++) fr_request_close(out->requests[i]);
    fr_engine_close(e);
}

static void threads_change_nothing(void **state) {
    (void)state;
    static const char *const rules[] = {"sampled", "multi-round", "transport", "typical"};
    static Run one, many;
    fr_model *model = rig_open_model(TARGET, NULL);
    int64_t accepted = 0;
    for (int i = 0; i < 4; i++)
        for (int closer = -1; closer < 3; closer += 2) {
            run_all(model, 1, rules[i], closer, &one);
            for (int n_threads = 2; n_threads <= 5; n_threads += 1 + (n_threads == 3)) {
                run_all(model, n_threads, rules[i], closer, &many);
                assert_int_equal(one.n, many.n);
                for (int k = 0; k < one.n; k++) {
                    const Event *a = &one.events[k], *b = &many.events[k];
                    if (a->request != b->request || a->token != b->token || a->source != b->source ||
                        memcmp(&a->logprob, &b->logprob, sizeof a->logprob) != 0)
                        fail_msg("%s, %d threads: event %d differs", rules[i], n_threads, k);
                }
                for (int k = 0; k < N_REQUESTS; k++)
                    if (k != closer + 1 || closer < 0) rig_assert_same(&one.streams[k], &many.streams[k], rules[i]);
            }
            for (int k = 0; k < N_REQUESTS; k++) accepted += one.streams[k].stats.accepted;
        }
    assert_true(accepted > 0);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_change_nothing)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}

/* test_request_queue.c - more requests than may run at once: which requests wait, which one runs next, and what closing
 * a request frees in each of its states. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "random_model.h"

#include <string.h>

enum { N_CTX = 96, N_VOCAB = 300, N_PROMPT = 20, N_OPEN = 5, N_RUNNING = 2, N_QUEUED = N_OPEN - N_RUNNING };

static const char *const path = "build/request-queue.gguf";
static fr_model *model;
static int32_t prompts[N_OPEN + 1][N_CTX];

static int open_model(void **state) {
    (void)state;
    static const RandomModel random = {SMALL_LLAMA, .n_vocab = N_VOCAB, .seed = 12};
    fr_error err;
    if (random_model_write(&random, path, &err)) fail_msg("%s", err.message);
    model = rig_open_model(path, NULL);
    for (int p = 0; p <= N_OPEN; p++)
        for (int i = 0; i < N_CTX; i++) prompts[p][i] = 3 + (p * 71 + i * i * 37 + i) % (N_VOCAB - 3);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

static fr_engine *open_engine(int prefix_cache) {
    return rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                       .n_threads = 1,
                                                       .n_ctx = N_CTX,
                                                       .max_requests = N_RUNNING,
                                                       .max_queued = N_QUEUED,
                                                       .prefill_chunk = 8,
                                                       .prefix_cache = prefix_cache});
}

static fr_request_options ask(int i) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompts[i],
                            .n_prompt = N_PROMPT,
                            .max_tokens = 4 + 3 * i,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1};
    o.sampling.temperature = 1, o.sampling.seed = 5;
    return o;
}

static fr_request *open_request(fr_engine *e, int i) {
    fr_request_options o = ask(i);
    fr_request *r;
    fr_error err;
    if (rig_open_request(&r, e, &o, &err)) fail_msg("%s", err.message);
    return r;
}

static int step(fr_engine *e) {
    fr_error err;
    int left = fr_engine_step(e, &err);
    if (left < 0) fail_msg("%s", err.message);
    return left;
}

static bool is_waiting(const fr_request *r) { return !fr_request_finish_reason(r) && r->sequence < 0; }

static void check_counts(const fr_engine *e, int n_running, int n_queued) {
    fr_engine_stats s = {.struct_size = sizeof s};
    fr_engine_get_stats(e, &s);
    assert_int_equal(s.n_running, n_running);
    assert_int_equal(s.n_queued, n_queued);
}

static void requests_run_in_order_of_arrival(void **state) {
    (void)state;
    static Stream alone, got;
    fr_engine *e = open_engine(0);
    fr_request *r[N_OPEN];
    for (int i = 0; i < N_OPEN; i++) r[i] = open_request(e, i);
    for (int i = 0; i < N_OPEN; i++) assert_int_equal(is_waiting(r[i]), i >= N_RUNNING);
    check_counts(e, N_RUNNING, N_QUEUED);
    int n_begun = N_RUNNING, left = N_OPEN;
    while (left > 0) {
        left = step(e);
        int n_running = 0, n_open = 0;
        for (int i = 0; i < N_OPEN; i++) n_running += r[i]->sequence >= 0, n_open += !fr_request_finish_reason(r[i]);
        assert_true(n_running <= N_RUNNING);
        assert_int_equal(left, n_open); /* waiting requests count as well */
        while (n_begun < N_OPEN && !is_waiting(r[n_begun])) n_begun++;
        for (int i = n_begun; i < N_OPEN; i++) assert_true(is_waiting(r[i])); /* no request overtakes another */
    }
    check_counts(e, 0, 0);
    for (int i = 0; i < N_OPEN; i++) {
        fr_engine *apart = open_engine(-1);
        fr_request_options o = ask(i);
        rig_run_request(apart, &o, &alone);
        rig_collect(r[i], &got);
        rig_assert_same(&alone, &got, "after waiting");
        assert_true(i < N_RUNNING ? got.stats.queue_s < 1 : got.stats.queue_s > 0);
        if (i > 0) assert_true(r[i]->started_s >= r[i - 1]->started_s); /* in the order of arrival */
        fr_engine_close(apart);
    }
    for (int i = 0; i < N_OPEN; i++) fr_request_close(r[i]);
    fr_engine_close(e);
}

static void a_full_queue_refuses(void **state) {
    (void)state;
    fr_engine *e = open_engine(0);
    fr_request *r[N_OPEN], *more;
    fr_error err;
    for (int i = 0; i < N_OPEN; i++) r[i] = open_request(e, i);
    fr_request_options o = ask(N_OPEN), wrong = o;
    assert_int_equal(fr_request_open(&more, e, &o, &err), FR_ERR_MEMORY);
    assert_null(more);
    assert_non_null(strstr(err.message, "the queue is full"));
    wrong.n_prompt = 0; /* an invalid request is refused at once */
    assert_int_equal(fr_request_open(&more, e, &wrong, &err), FR_ERR_ARGUMENT);
    fr_request_close(r[3]);
    assert_int_equal(fr_request_open(&r[3], e, &o, &err), FR_OK);
    assert_true(is_waiting(r[3]));
    while (!fr_request_finish_reason(r[0])) step(e);
    assert_int_equal(fr_request_open(&more, e, &o, &err), FR_ERR_MEMORY); /* r[0] is still open */
    fr_request_close(r[0]);
    r[0] = open_request(e, N_OPEN);
    assert_true(is_waiting(r[0])); /* after r[4] and r[3] */
    step(e);
    assert_false(is_waiting(r[2]));
    while (is_waiting(r[4])) step(e);
    assert_true(is_waiting(r[3]) && is_waiting(r[0]));
    while (is_waiting(r[3])) step(e);
    assert_true(is_waiting(r[0]));
    fr_engine_close(e); /* closes those that run and those that wait */
}

/* A request that has ended keeps its results, but no sequence and no pages. */
static void an_ended_request_makes_room_before_it_is_closed(void **state) {
    (void)state;
    static Stream first;
    fr_engine *e = open_engine(0);
    fr_request *r[3];
    for (int i = 0; i < 3; i++) r[i] = open_request(e, i);
    while (!fr_request_finish_reason(r[0])) step(e);
    rig_collect(r[0], &first);
    assert_true(is_waiting(r[2]));
    step(e);
    assert_false(is_waiting(r[2]));
    while (step(e) > 0) {}
    static Stream still;
    rig_collect(r[0], &still);
    rig_assert_same(&first, &still, "after others ran");
    assert_int_equal(fr_request_finish_reason(r[2]), FR_FINISH_LENGTH);
    fr_engine_close(e);
}

typedef enum State { QUEUED, JUST_OPENED, IN_PREFILL, DECODING, N_STATES } State;

/* Closing a request between two steps frees its pages at once, and its place goes to a waiting request. */
static void closing_gives_pages_back_in_each_state(void **state) {
    (void)state;
    for (int prefix_cache = -1; prefix_cache <= 0; prefix_cache++)
        for (State s = 0; s < N_STATES; s++) {
            fr_engine *e = open_engine(prefix_cache);
            fr_request *other = s == QUEUED ? open_request(e, 4) : NULL,
                       *also = s == QUEUED ? open_request(e, 3) : NULL;
            fr_request *r = open_request(e, 2);
            for (int i = 0; i < (s == JUST_OPENED ? 0 : s == DECODING ? 5 : 1); i++) step(e);
            assert_int_equal(is_waiting(r), s == QUEUED);
            fr_engine_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
            fr_engine_get_stats(e, &before);
            fr_request_close(r);
            fr_engine_get_stats(e, &after);
            assert_int_equal(after.n_running + after.n_queued, before.n_running + before.n_queued - 1);
            if (s == QUEUED) {
                assert_int_equal(after.kv_tokens_running, before.kv_tokens_running);
                assert_int_equal(after.n_queued, 0);
            } else {
                assert_true(s == JUST_OPENED ? before.kv_tokens_running == 0 : before.kv_tokens_running > 0);
                assert_int_equal(after.kv_tokens_running, 0);
                assert_int_equal(after.kv_tokens_prefixes, prefix_cache < 0 ? 0 : before.kv_tokens_running);
            }
            fr_request_close(other);
            fr_request_close(also);
            while (prefix_cache_drop(e)) {}
            assert_int_equal(executor_n_free_pages(e->executor), executor_n_pages(e->executor));
            fr_engine_close(e);
        }
}

static void a_closed_request_is_passed_over(void **state) {
    (void)state;
    fr_engine *e = open_engine(0);
    fr_request *r[N_OPEN];
    for (int i = 0; i < N_OPEN; i++) r[i] = open_request(e, i);
    fr_request_close(r[2]);
    fr_request_close(r[0]);
    step(e);
    assert_false(is_waiting(r[3]));
    assert_true(is_waiting(r[4]));
    check_counts(e, 2, 1);
    fr_request_close(r[3]);
    fr_request_close(r[4]);
    check_counts(e, 1, 0);
    while (step(e) > 0) {}
    assert_int_equal(fr_request_finish_reason(r[1]), FR_FINISH_LENGTH);
    fr_engine_close(e);
}

static int close_other(void *user, const fr_token_event *event) {
    (void)event;
    fr_request **other = user;
    fr_request_close(*other);
    *other = NULL;
    return 0;
}

static void a_callback_may_close_a_waiting_request(void **state) {
    (void)state;
    fr_engine *e = open_engine(0);
    fr_request *r[4];
    fr_error err;
    fr_request_options o = ask(0);
    o.on_token = close_other, o.user = &r[2];
    assert_int_equal(fr_request_open(&r[0], e, &o, &err), FR_OK);
    for (int i = 1; i < 4; i++) r[i] = open_request(e, i);
    while (r[2]) step(e);
    check_counts(e, 2, 1);
    while (step(e) > 0) {}
    assert_int_equal(fr_request_finish_reason(r[3]), FR_FINISH_LENGTH);
    fr_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_run_in_order_of_arrival),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(an_ended_request_makes_room_before_it_is_closed),
        cmocka_unit_test(closing_gives_pages_back_in_each_state),
        cmocka_unit_test(a_closed_request_is_passed_over),
        cmocka_unit_test(a_callback_may_close_a_waiting_request),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

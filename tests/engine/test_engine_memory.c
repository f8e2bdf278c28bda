/* test_engine_memory.c - with a large vocabulary the logits are the largest part of an engine's memory: there is memory
 * only for the logits of the trees that the open requests may have. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "random_model.h"

#include <malloc.h>

enum { N_VOCAB = 17000, N_CTX = 256, N_REQUESTS = 32 };
#define ROW_MB (N_VOCAB * sizeof(float) / 1e6) /* a row of logits: 68 kB */

static const char *const path = "build/engine-memory.gguf";
static fr_model *model;

static int open_model(void **state) {
    (void)state;
    static const RandomModel random = {SMALL_LLAMA, .n_vocab = N_VOCAB, .seed = 3};
    fr_error err;
    if (random_model_write(&random, path, &err)) fail_msg("%s", err.message);
    model = rig_open_model(path, NULL);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

/* Returns the memory that the program has taken; 0 if the allocator does not count it (sanitizers). */
static double taken_mb(void) {
    struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd) / 1e6;
}

static fr_request *open_request(fr_engine *e, int tree_budget) {
    static const int32_t prompt[] = {5, 6, 7, 5, 6, 7, 5};
    const char *draft = "pld:n=1";
    const fr_request_options o = {.struct_size = sizeof o,
                                  .prompt = prompt,
                                  .n_prompt = 7,
                                  .max_tokens = 6,
                                  .sampling = fr_sampling_default(),
                                  .ignore_eos = 1,
                                  .drafts = &draft,
                                  .n_drafts = tree_budget > 0,
                                  .tree_budget = tree_budget};
    fr_request *r;
    fr_error err;
    if (rig_open_request(&r, e, &o, &err)) fail_msg("%s", err.message);
    return r;
}

static void expect_mb(const char *what, double mb, double least, double most) {
    print_message("%s: %.1f MB\n", what, mb);
    if (mb < least || mb > most) fail_msg("%s takes %.1f MB instead of %.1f to %.1f", what, mb, least, most);
}

static void logits_take_memory_by_planned_rows(void **state) {
    (void)state;
    double before = taken_mb();
    if (before <= 0) skip();
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = 1,
                                                               .n_ctx = N_CTX,
                                                               .max_requests = N_REQUESTS,
                                                               .max_queued = 100});
    expect_mb("an engine", taken_mb() - before, 0,
              N_REQUESTS * ROW_MB + 120); /* 64 of them for the rows of a forward */
    before = taken_mb();
    for (int i = 0; i < 10; i++) open_request(e, 0);
    expect_mb("10 requests without drafts", taken_mb() - before, 0, 2);
    before = taken_mb();
    open_request(e, 8);
    open_request(e, 255);
    double rows_mb = (10 + 9 + 256 - N_REQUESTS) * ROW_MB; /* memory for N_REQUESTS rows existed before */
    expect_mb("one of 8 and one of 255 nodes", taken_mb() - before, rows_mb - 4, rows_mb + 4);
    before = taken_mb();
    for (int i = 0; i < 100; i++) open_request(e, 8);
    rows_mb = (30 * 9 - 10) * ROW_MB; /* 32 run together; the requests themselves take memory, too */
    expect_mb("100 more of 8 nodes", taken_mb() - before, rows_mb - 4, rows_mb + 9);
    fr_error err;
    before = taken_mb();
    while (fr_engine_step(e, &err) > 0) {}
    expect_mb("running them all", taken_mb() - before, -4, 4);
    fr_engine_close(e);
}

static void more_rows_than_planned_are_refused(void **state) {
    (void)state;
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_threads = 1,
                                                               .n_ctx = N_CTX,
                                                               .max_requests = 2});
    fr_error err;
    Row rows[3];
    for (int32_t i = 0; i < 3; i++) rows[i] = (Row){.token = 5, .sequence = 0, .parent = i - 1, .want_logits = true};
    assert_int_equal(executor_reserve(e->executor, 0, 3, &err), FR_OK);
    assert_int_equal(executor_forward(e->executor, rows, 3, &err), FR_ERR_ARGUMENT);
    assert_int_equal(executor_reserve_logits(e->executor, 3, &err), FR_OK);
    assert_int_equal(executor_forward(e->executor, rows, 3, &err), FR_OK);
    assert_non_null(executor_logits(e->executor, 2));
    executor_commit(e->executor, 0, NULL, 0);
    fr_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_take_memory_by_planned_rows),
        cmocka_unit_test(more_rows_than_planned_are_refused),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

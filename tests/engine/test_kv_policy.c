/* test_kv_policy.c - which requests lose pages, and to which requests, step by step: the example of
 * src/engine/kv_policy.c, and the order of its rule. test_kv_pressure.c tests that no token changes. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "random_model.h"

/* A KV cache of 5 pages of 4 tokens. After two steps (read, decode) a prompt of n tokens holds n slots, and one more
 * slot after each further step. */
enum { PAGE = 4, N_PAGES = 5, N_CTX = PAGE * N_PAGES, N_VOCAB = 300, MOST = 4 };

static const char *const path = "build/pages.gguf";
static fr_model *model;

static int make_model(void **state) {
    (void)state;
    static const RandomModel random = {.arch = "llama",
                                       .n_layer = 1,
                                       .n_embd = 64,
                                       .n_head = 2,
                                       .n_head_kv = 2,
                                       .n_ff = 64,
                                       .n_vocab = N_VOCAB,
                                       .seed = 6};
    fr_error err;
    if (random_model_write(&random, path, &err)) fail_msg("%s", err.message);
    model = rig_open_model(path, NULL);
    return 0;
}

static int drop_model(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

typedef struct Scene {
    fr_engine *engine;
    fr_request *r[MOST];
    int n;
} Scene;

static Scene open_scene(int prefill_chunk) {
    fr_engine_options options = {.struct_size = sizeof options,
                                 .n_threads = 1,
                                 .n_ctx = N_CTX,
                                 .kv_tokens = N_CTX,
                                 .kv_page_size = PAGE,
                                 .max_requests = MOST,
                                 .prefill_chunk = prefill_chunk,
                                 .prefix_cache = -1};
    return (Scene){.engine = rig_open_engine(model, &options)};
}

static void arrive(Scene *s, int n_prompt) {
    int32_t prompt[N_CTX];
    for (int i = 0; i < n_prompt; i++) prompt[i] = 20 + 30 * s->n + i;
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = n_prompt,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1};
    fr_error err;
    if (rig_open_request(&s->r[s->n++], s->engine, &o, &err)) fail_msg("%s", err.message);
}

static void step(Scene *s, int n) {
    fr_error err;
    while (n-- > 0)
        if (fr_engine_step(s->engine, &err) < 0) fail_msg("%s", err.message);
}

/* Returns the number of tokens of request i in the cache. */
static int held(const Scene *s, int i) { return executor_sequence_length(s->engine->executor, s->r[i]->sequence); }

static void leave(Scene *s, int i) {
    fr_request_close(s->r[i]);
    s->r[i] = NULL;
}

static void close_scene(Scene *s) {
    for (int i = 0; i < s->n; i++) leave(s, i);
    fr_engine_close(s->engine);
}

static void one_page_is_needed_and_one_is_released(void **state) {
    (void)state;
    Scene s = open_scene(32);
    arrive(&s, 8);
    arrive(&s, 12);
    step(&s, 2);
    assert_int_equal(held(&s, 0), 8);
    assert_int_equal(held(&s, 1), 12);
    step(&s, 1);
    assert_int_equal(held(&s, 0), 9);
    assert_int_equal(held(&s, 1), 8);
    assert_true(s.r[1]->is_preempted);
    leave(&s, 0);
    step(&s, 1);
    assert_int_equal(held(&s, 1), 12);
    assert_true(!s.r[1]->is_preempted);
    assert_int_equal(s.r[1]->stats.n_preempted, 1);
    assert_int_equal(s.r[1]->stats.n_recomputed, 4);
    close_scene(&s);
}

/* In chunks of 2: a token that is read again is counted once. */
static void it_is_read_again_in_chunks(void **state) {
    (void)state;
    Scene s = open_scene(2);
    arrive(&s, 3);
    arrive(&s, 11);
    while (!s.r[1]->is_preempted) step(&s, 1);
    int n_read = s.r[1]->n_read, had = held(&s, 1);
    assert_true(n_read > had + 2);
    leave(&s, 0);
    while (request_is_prefilling(s.r[1])) step(&s, 1);
    assert_int_equal(s.r[1]->stats.n_recomputed, n_read - had);
    close_scene(&s);
}

static void the_youngest_gives_first(void **state) {
    (void)state;
    Scene s = open_scene(32);
    arrive(&s, 8);
    arrive(&s, 6);
    arrive(&s, 4);
    step(&s, 2);
    assert_int_equal(held(&s, 2), 4);
    step(&s, 1);
    assert_int_equal(held(&s, 0), 9);
    assert_int_equal(held(&s, 1), 7);
    assert_int_equal(held(&s, 2), 0);
    close_scene(&s);
}

/* The last request would fit, but it would take the pages for which the second one waits. */
static void a_waiting_request_makes_younger_ones_wait(void **state) {
    (void)state;
    Scene s = open_scene(32);
    arrive(&s, 10);
    step(&s, 2);
    arrive(&s, 12);
    arrive(&s, 3);
    step(&s, 1);
    assert_int_equal(held(&s, 1) + held(&s, 2), 0);
    leave(&s, 0);
    step(&s, 1);
    assert_int_equal(held(&s, 1), 11);
    assert_int_equal(held(&s, 2), 2);
    close_scene(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_page_is_needed_and_one_is_released),
        cmocka_unit_test(it_is_read_again_in_chunks),
        cmocka_unit_test(the_youngest_gives_first),
        cmocka_unit_test(a_waiting_request_makes_younger_ones_wait),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}

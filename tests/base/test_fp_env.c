/* test_fp_env.c - the caller's floating-point environment changes no bit: texts and logits are the same under every
 * rounding mode and with subnormal numbers flushed, whether the environment is set before the model is opened or after,
 * for the calling thread and all workers. The caller's environment is restored after each call and within callbacks. */
#include "engine_rig.h"

#include "base/system.h"
#include "random_model.h"

#include <fenv.h>
#include <string.h>

#define MODEL "build/fp-env.gguf"
#define DRAFT_MODEL "build/fp-env-draft.gguf"

enum { N_TOKENS = 40, N_RUNS = 16 };

#if defined(__x86_64__)
#include <xmmintrin.h>
enum { FLUSH = 0x8040 }; /* FTZ and DAZ */
static uint64_t control(void) { return _mm_getcsr() & ~0x3fu; /* without the flags of past exceptions */ }
static void set_flush(int on) {
    if (on) _mm_setcsr(_mm_getcsr() | FLUSH);
}
#elif defined(__aarch64__)
static uint64_t control(void) {
    uint64_t c;
    __asm__ volatile("mrs %0, fpcr" : "=r"(c));
    return c;
}
static void set_flush(int on) {
    uint64_t c = control();
    if (on) __asm__ volatile("msr fpcr, %0" : : "r"(c | 1u << 24) : "memory");
}
#else
static uint64_t control(void) { return (uint64_t)fegetround(); }
static void set_flush(int on) { (void)on; }
#endif

/* Run i has a rounding mode, flushes subnormals or not, and sets this before the model is opened, or after the engine
 * is. */
static void set_environment(int i) {
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    fesetround(modes[i % 4]);
    set_flush(i / 4 % 2);
}

static void set_default(void) { fesetenv(FE_DFL_ENV); }

static int write_models(void **state) {
    (void)state;
    fr_error err;
    const RandomModel target = {.arch = "llama",
                                .n_layer = 2,
                                .n_embd = 64,
                                .n_head = 4,
                                .n_head_kv = 2,
                                .n_ff = 96,
                                .n_vocab = 300,
                                .types = {TYPE_Q4_0, TYPE_F32, TYPE_BF16},
                                .n_types = 3,
                                .seed = 1};
    RandomModel draft = target;
    draft.n_layer = 1, draft.seed = 2;
    if (random_model_write(&target, MODEL, &err) || random_model_write(&draft, DRAFT_MODEL, &err))
        fail_msg("%s", err.message);
    return 0;
}

typedef struct Caller {
    uint64_t control;
    int n_calls, n_wrong;
} Caller;

static void look(Caller *c) {
    c->n_calls++;
    c->n_wrong += control() != c->control;
}
static int on_token(void *user, const fr_token_event *event) {
    (void)event;
    look(user);
    return 0;
}
static void on_progress(void *user, double part) {
    (void)part;
    look(user);
}

/* Generates a text in the environment of run i (-1: the default one). */
static void run(int i, const char *backend, Stream *out) {
    static const char *const drafts[] = {"ngram-trie", "sps:model=" DRAFT_MODEL};
    int32_t prompt[24];
    fr_error err;
    fr_model *model;
    fr_engine *engine;
    fr_request *request;
    set_default();
    if (i >= 0 && i < N_RUNS / 2) set_environment(i);
    Caller caller = {.control = control()};
    for (int k = 0; k < 24; k++) prompt[k] = 3 + k * k % 11 * 19;
    const fr_model_options mo = {.struct_size = sizeof mo,
                                 .backend = backend,
                                 .n_threads = 2,
                                 .progress = on_progress,
                                 .progress_user = &caller};
    if (fr_model_open(&model, MODEL, &mo, &err)) fail_msg("%s", err.message);
    look(&caller);
    const fr_engine_options eo = {.struct_size = sizeof eo,
                                  .n_threads = 3,
                                  .n_ctx = 128,
                                  .drafts = drafts,
                                  .n_drafts = 2};
    if (fr_engine_open(&engine, model, &eo, &err)) fail_msg("%s", err.message);
    look(&caller);
    if (i >= N_RUNS / 2) set_environment(i);
    caller.control = control();
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = 24,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1,
                            .drafts = drafts,
                            .n_drafts = 2,
                            .on_token = on_token,
                            .user = &caller};
    o.sampling.temperature = 0.9f, o.sampling.top_p = 0.95f, o.sampling.seed = 3;
    if (fr_request_open(&request, engine, &o, &err)) fail_msg("%s", err.message);
    look(&caller);
    while (fr_engine_step(engine, &err) > 0) look(&caller);
    rig_collect(request, out);
    fr_request_close(request);
    fr_engine_close(engine);
    fr_model_close(model);
    look(&caller);
    set_default();
    assert_int_equal(caller.n_wrong, 0);
    assert_true(caller.n_calls > N_TOKENS + 5);
}

static void check(const char *backend) {
    static Stream plain, got;
    run(-1, backend, &plain);
    assert_int_equal(plain.n, N_TOKENS);
    for (int i = 0; i < N_RUNS; i++) {
        run(i, backend, &got);
        rig_assert_same(&plain, &got, "in another environment");
    }
}

static void cpu(void **state) {
    (void)state;
    check("cpu");
}

static void reference(void **state) {
    (void)state;
    check("reference");
}

/* A control: such an environment changes results if nothing restores the default. */
static void environments_differ(void **state) {
    (void)state;
    volatile float third = 1, tiny = 0x1p-126f, three = 3;
    third /= three;
    for (int i = 0; i < N_RUNS / 2; i++) {
        set_environment(i);
        volatile float down = 1, half = tiny;
        down /= three, half *= 0.5f;
        FpEnv before = fp_env_enter();
        volatile float again = 1, kept = tiny;
        again /= three, kept *= 0.5f;
        fp_env_leave(&before);
        set_default();
        if (i % 4 == 2) assert_true(down < third); /* 1/3 is rounded up to the nearest */
#if defined(__x86_64__) || defined(__aarch64__)
        if (i / 4 % 2) assert_true(half == 0);
#endif
        assert_true(again == third && kept > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu),
        cmocka_unit_test(reference),
        cmocka_unit_test(environments_differ),
    };
    return cmocka_run_group_tests(tests, write_models, NULL);
}

/* test_drafter_buffers.c - drafters with a device whose memory the CPU does not see: the learned drafters draft the
 * same trees as on a device that computes in main memory, so they push whatever they have written and pull whatever
 * they read. With a device that loses what is pushed, or never gives anything back, they must draft otherwise. */
#include "engine_rig.h"
#include "model_rig.h"

#include "base/mem.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- the CPU backend, with a second copy of each buffer ---------------------------------------------------- */

typedef struct FarBuffer {
    Buffer base;
    float *near, *device; /* what the CPU sees, and what the operations use */
} FarBuffer;

static Backend far;
static bool loses_pushes, loses_pulls;

static int open_device(Device **out, const DeviceOptions *options, fr_error *err) {
    int status = backend_cpu.device_open(out, options, err);
    if (!status) (*out)->backend = &far;
    return status;
}

static int open_submodel(Weights **out, const Weights *target, const Model *layers, bool is_divided, fr_error *err) {
    int status = backend_cpu.submodel(out, target, layers, is_divided, err);
    if (!status) (*out)->backend = &far;
    return status;
}

static int open_buffer(Buffer **out, Device *d, int64_t n, fr_error *err) {
    FarBuffer *b = mem_calloc(1, sizeof *b);
    assert_non_null(b);
    b->near = mem_calloc((size_t)n, sizeof *b->near);
    b->device = mem_calloc((size_t)n, sizeof *b->device);
    assert_true(b->near && b->device);
    b->base = (Buffer){.device = d, .n = n, .floats = b->near};
    *out = &b->base;
    (void)err;
    return FR_OK;
}

static void close_buffer(Buffer *buffer) {
    FarBuffer *b = (FarBuffer *)buffer;
    mem_free(b->near);
    mem_free(b->device);
    mem_free(b);
}

static void push(Buffer *buffer, int64_t first, int64_t n) {
    FarBuffer *b = (FarBuffer *)buffer;
    if (!loses_pushes) memcpy(b->device + first, b->near + first, (size_t)n * sizeof *b->near);
}

static void pull(Buffer *buffer, int64_t first, int64_t n) {
    FarBuffer *b = (FarBuffer *)buffer;
    if (!loses_pulls) memcpy(b->near + first, b->device + first, (size_t)n * sizeof *b->near);
}

/* The CPU's operations work on Buffer.floats: on the device's copy while they run. */
static void show_device(Slice s) { s.buffer->floats = ((FarBuffer *)s.buffer)->device; }
static void show_near(Slice s) { s.buffer->floats = ((FarBuffer *)s.buffer)->near; }

static void run_linear(Device *d, const Linear *l, LinearOp op, Slice x, int32_t n_rows, Slice y) {
    show_device(x), show_device(y);
    backend_cpu.linear(d, l, op, x, n_rows, y);
    show_near(x), show_near(y);
}

static void run_head(Device *d, const Weights *w, Slice x, int32_t n_rows, Slice y) {
    show_device(x), show_device(y);
    backend_cpu.head(d, w, x, n_rows, y);
    show_near(x), show_near(y);
}

static void run_embed(Device *d, const Weights *w, const int32_t *tokens, int32_t n, Slice out) {
    show_device(out);
    backend_cpu.embed(d, w, tokens, n, out);
    show_near(out);
}

static void run_rmsnorm(Device *d, Slice x, int32_t n_rows, int64_t n, const float *gain, float eps) {
    show_device(x);
    backend_cpu.rmsnorm(d, x, n_rows, n, gain, eps);
    show_near(x);
}

static void open_far(void) {
    far = backend_cpu;
    far.device_open = open_device, far.submodel = open_submodel;
    far.buffer_open = open_buffer, far.buffer_close = close_buffer, far.buffer_push = push, far.buffer_pull = pull;
    far.linear = run_linear, far.head = run_head, far.embed = run_embed, far.rmsnorm = run_rmsnorm;
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

static void draft(fr_model *m, const Backend *backend, const char *spec, float temperature, Stream *out) {
    static const char prompt[] = "Once upon a time there was a little girl who";
    const fr_engine_options eo = {.struct_size = sizeof eo, .n_ctx = 128, .n_threads = 1};
    int32_t *tokens;
    int64_t n;
    assert_int_equal(fr_tokenize(m, prompt, strlen(prompt), FR_TOKENIZE_BOS, &tokens, &n, NULL), FR_OK);
    fr_request_options ro = {.struct_size = sizeof ro,
                             .prompt = tokens,
                             .n_prompt = n,
                             .max_tokens = 40,
                             .sampling = fr_sampling_default(),
                             .ignore_eos = 1,
                             .drafts = &spec,
                             .n_drafts = 1,
                             .tree_budget = 12};
    ro.sampling.temperature = temperature;
    ro.sampling.seed = 7;
    m->weights->backend = backend;
    fr_engine *e = rig_open_engine(m, &eo);
    rig_run_request(e, &ro, out);
    fr_engine_close(e);
    free(tokens);
    m->weights->backend = &backend_cpu;
}

static const char *const specs[] = {
    "eagle:file=models/eagle.gguf",   "hydra:file=models/hydra.gguf",
    "lyanna:file=models/lyanna.gguf", "lyanna:file=models/lyanna.gguf,table=factors,resample=off",
    "medusa:file=models/medusa.gguf", "redrafter:file=models/redrafter.gguf",
};

static bool drafted_alike(const Stream *a, const Stream *b) {
    return a->stats.drafted == b->stats.drafted && a->stats.accepted == b->stats.accepted &&
           a->stats.n_steps == b->stats.n_steps;
}

static void drafters_push_and_pull_what_they_share(void **state) {
    (void)state;
    fr_model *m = rig_open_model(RIG_TARGET, NULL);
    static Stream want, got;
    open_far();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int t = 0; t < 2; t++) {
            draft(m, &backend_cpu, specs[i], (float)t, &want);
            assert_true(want.stats.accepted > 10);
            draft(m, &far, specs[i], (float)t, &got);
            rig_assert_same(&want, &got, specs[i]);
            if (!drafted_alike(&want, &got))
                fail_msg("%s: %lld of %lld accepted, and %lld of %lld in main memory", specs[i],
                         (long long)got.stats.accepted, (long long)got.stats.drafted, (long long)want.stats.accepted,
                         (long long)want.stats.drafted);
        }
    fr_model_close(m);
}

static void a_device_that_loses_them_is_noticed(void **state) {
    (void)state;
    fr_model *m = rig_open_model(RIG_TARGET, NULL);
    static Stream want, got;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int way = 0; way < 2; way++) {
            draft(m, &backend_cpu, specs[i], 0, &want);
            loses_pushes = way == 0, loses_pulls = way == 1;
            draft(m, &far, specs[i], 0, &got);
            loses_pushes = loses_pulls = false;
            rig_assert_same(&want, &got, specs[i]); /* worse drafts change no text */
            if (drafted_alike(&want, &got)) fail_msg("%s: nothing was noticed", specs[i]);
        }
    fr_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drafters_push_and_pull_what_they_share),
                                       cmocka_unit_test(a_device_that_loses_them_is_noticed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_failing_device.c - a device that is lost while it computes: the step of the engine ends with the device's error,
 * whichever operation failed; no token is taken from results of the failed device, and the tokens before are those of a
 * working device. */
#include "engine_rig.h"

#include "compute/backend.h"
#include "engine/engine.h"

#include <string.h>

enum { N_PROMPT = 12, N_TOKENS = 24 };

static const RandomModel model = {
    .arch = "llama", .n_layer = 2, .n_embd = 64, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = 300, .seed = 9};

/* ---- the CPU backend, with a device that fails at a forward ----------------------------------------------- */

static Backend failing;
static int forwards_left;

static int open_device(Device **out, const DeviceOptions *options, fr_error *err) {
    int status = backend_cpu.device_open(out, options, err);
    if (!status) (*out)->backend = &failing;
    return status;
}

static void run_forward(Context *c, const RowPlace *rows, int32_t n_rows) {
    if (forwards_left-- == 0) device_fail(c->device, FR_ERR_INTERNAL, "the accelerator was lost");
    else backend_cpu.forward(c, rows, n_rows);
}

typedef struct Run {
    int64_t n;
    int32_t tokens[N_TOKENS];
    int status;
    fr_error err;
} Run;

static int note_token(void *user, const fr_token_event *event) {
    Run *run = user;
    assert_true(run->n < N_TOKENS);
    run->tokens[run->n++] = event->token;
    return 0;
}

/* Runs a request until a step fails, or it ends. The device fails at forward n_forwards, or is lost between two steps,
 * for example after a product of a drafter, after n_steps steps; -1: never. */
static void run_request(const fr_model *m, int n_forwards, int n_steps, Run *run) {
    static const int32_t prompt[N_PROMPT] = {5, 9, 3, 5, 9, 3, 5, 9, 3, 5, 9, 3};
    const fr_engine_options eo = {.struct_size = sizeof eo, .n_ctx = 64, .n_threads = 1};
    const fr_request_options ro = {.struct_size = sizeof ro,
                                   .prompt = prompt,
                                   .n_prompt = N_PROMPT,
                                   .max_tokens = N_TOKENS,
                                   .sampling = fr_sampling_default(),
                                   .ignore_eos = 1,
                                   .drafts = (const char *const[]){"pld"},
                                   .n_drafts = 1,
                                   .on_token = note_token,
                                   .user = run};
    *run = (Run){.n = 0};
    forwards_left = n_forwards;
    fr_engine *e = rig_open_engine(m, &eo);
    fr_request *r;
    if (rig_open_request(&r, e, &ro, &run->err)) fail_msg("%s", run->err.message);
    do {
        if (n_steps-- == 0) device_fail(e->device, FR_ERR_INTERNAL, "the accelerator was lost");
        run->status = fr_engine_step(e, &run->err);
    } while (run->status > 0);
    if (run->status < 0) { /* and it remains lost */
        fr_error again;
        assert_int_equal(fr_engine_step(e, &again), run->status);
    }
    fr_request_close(r);
    fr_engine_close(e);
}

static void expect_failure(const Run *sound, const Run *run) {
    assert_int_equal(run->status, FR_ERR_INTERNAL);
    assert_non_null(strstr(run->err.message, "the accelerator was lost"));
    assert_true(run->n < sound->n);
    assert_memory_equal(run->tokens, sound->tokens, (size_t)run->n * sizeof *run->tokens);
}

static void a_step_ends_with_the_error_of_its_device(void **state) {
    (void)state;
    fr_model *m = rig_open_random(&model);
    Run sound, run;
    failing = backend_cpu;
    failing.device_open = open_device, failing.forward = run_forward;
    m->weights->backend = &failing;
    run_request(m, -1, -1, &sound);
    assert_int_equal(sound.status, 0);
    assert_int_equal(sound.n, N_TOKENS);
    for (int i = 0; i < 6; i++) {
        run_request(m, i, -1, &run);
        expect_failure(&sound, &run);
        run_request(m, -1, i, &run);
        expect_failure(&sound, &run);
    }
    m->weights->backend = &backend_cpu;
    fr_model_close(m);
}

static void names_are_those_of_the_table(void **state) {
    (void)state;
    int n = 0;
    for (; backends()[n]; n++) assert_string_equal(backends()[n]->name, backend_names[n]);
    assert_null(backend_names[n]);
    const Backend *found;
    fr_error err;
    assert_int_equal(backend_find("abacus", &found, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "choose cpu or reference"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_ends_with_the_error_of_its_device),
                                       cmocka_unit_test(names_are_those_of_the_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "app/cli.h"

#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_KV = 1024, KEY_BACKEND, KEY_KERNELS, KEY_ACT, KEY_PIN };

static const struct argp_option option_table[] = {
    {"model", 'm', "FILE", 0, "GGUF file of the model", 0},
    {"threads", 't', "N", 0, "threads (default: all cores)", 0},
    {"pin", KEY_PIN, NULL, 0, CLI_PIN_HELP, 0},
    {"kv", KEY_KV, "TYPE", 0, CLI_KV_HELP, 0},
    {"backend", KEY_BACKEND, "NAME", 0, CLI_BACKEND_HELP, 0},
    {"kernels", KEY_KERNELS, "NAME", 0, "kernel table: auto (default), ref; avx2, avx-vnni, avx512, avx512-bf16; neon, neon-dot, neon-i8mm", 0},
    {"act", KEY_ACT, "FORM", 0, CLI_ACT_HELP, 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    CliModel *m = state->input;
    switch (key) {
    case 'm': m->path = arg; return 0;
    case KEY_BACKEND: m->backend = arg; return 0;
    case KEY_KERNELS: m->kernels = arg; return 0;
    case KEY_PIN: m->pin = true; return 0;
    case KEY_ACT:
        if (!act_precision_from_name(arg, &m->activations)) argp_error(state, "--act: '%s' is neither q16 nor q8", arg);
        return 0;
    case 't': m->n_threads = (int)cli_parse_int(state, arg, 1, THREADS_MAX, "--threads"); return 0;
    case KEY_KV:
        if (!kv_type_from_name(arg, &m->kv)) argp_error(state, "--kv: '%s' is none of f16, f32, q8", arg);
        return 0;
    case ARGP_KEY_END:
        if (!m->path) argp_error(state, "no model given: -m FILE.gguf");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_model_argp = {.options = option_table, .parser = parse};

void cli_model_defaults(CliModel *m) { *m = (CliModel){.n_threads = threads_n_cores(), .kv = KV_F16}; }

int cli_model_open(CliModel *m, fr_error *err) {
    const Backend *backend;
    const WeightsOptions options = {.kernels = m->kernels, .activations = m->activations, .n_threads = m->n_threads};
    int status = backend_find(m->backend, &backend, err);
    if (!status) status = gguf_open(&m->gguf, m->path, err);
    if (!status) status = model_open(&m->model, m->gguf, err);
    if (!status) status = backend->weights_open(&m->weights, m->model, &options, err);
    const DeviceOptions device = {.kernels = m->kernels, .n_threads = m->n_threads, .pin_threads = m->pin};
    if (!status) status = backend->device_open(&m->device, &device, err);
    if (status) cli_model_close(m);
    return status;
}

void cli_model_close(CliModel *m) {
    device_close(m->device);
    weights_close(m->weights);
    model_close(m->model);
    gguf_close(m->gguf);
    m->device = NULL;
    m->weights = NULL;
    m->model = NULL;
    m->gguf = NULL;
}

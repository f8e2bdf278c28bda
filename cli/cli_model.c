/* cli_model.c - the options of the commands that run a model below the public API, and opening it.
 *
 * `logits` and `perf` read single rows and time single forwards, which the public API hides, so they open the model
 * themselves.
 */
#include "cli/cli.h"

#include "base/threads.h"
#include "draft/drafter_file.h"

#include <stdlib.h>
#include <string.h>

const Option cli_model_options[] = {
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(CliModel, path),
     .required = "model",
     .section = "Model",
     .help = "GGUF file of the model"},
    {.key = "threads",
     .letter = 't',
     OPT_INT(CliModel, n_threads, 1, THREADS_MAX),
     .default_help = "all cores",
     .help = CLI_HELP_THREADS},
    {.key = "pin", OPT_FLAG(CliModel, pin), .help = CLI_HELP_PIN},
    {.key = "kv",
     OPT_CHOICE(CliModel, kv, "f16", "f32", "q8"),
     .values = (const int32_t[]){KV_F16, KV_F32, KV_Q8},
     .default_value = "f16",
     .help = CLI_HELP_KV},
    {.key = "backend", OPT_NAME(CliModel, backend, backend_names), .default_value = "cpu", .help = CLI_HELP_BACKEND},
    {.key = "kernels",
     OPT_TEXT(CliModel, kernels),
     .metavar = "NAME",
     .default_value = "auto",
     .suggest = cli_suggest_kernels,
     .help = CLI_HELP_KERNELS},
    {.key = "act",
     OPT_CHOICE(CliModel, activations, "q16", "q8"),
     .values = (const int32_t[]){ACT_PRECISION_Q16, ACT_PRECISION_Q8},
     .default_value = "q16",
     .help = CLI_HELP_ACT},
    {.key = NULL},
};

void cli_model_defaults(CliModel *m) { *m = (CliModel){.n_threads = threads_n_cores()}; }

int cli_model_open(CliModel *m, fr_error *err) {
    const Backend *backend;
    const WeightsOptions options = {.kernels = m->kernels,
                                    .activations = m->activations,
                                    .packed_file = m->is_packed_anew ? NULL : cli_packed_file(m->path),
                                    .n_threads = m->n_threads};
    int status = backend_find(m->backend, &backend, err);
    if (!status) status = gguf_open(&m->gguf, m->path, err);
    if (!status) status = drafter_file_refuse_as_target(m->gguf, err);
    if (!status) status = model_open(&m->model, m->gguf, err);
    if (!status) status = backend->weights_open(&m->weights, m->model, &options, err);
    if (!status) cli_note_packed(m->weights->packed_error);
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

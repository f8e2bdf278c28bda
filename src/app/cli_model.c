/* cli_model.c - the options of the commands that run a model below the public API, and opening it.
 *
 * `logits` and `perf` read single rows and time single forwards, which the public API hides, so they open the model themselves.
 */
#include "app/cli.h"

#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

const Option cli_model_options[] = {
    {.key = "model", .letter = 'm', OPT_FILE(CliModel, path), .required = "model", .section = "Model", .help = "GGUF file of the model"},
    {.key = "threads", .letter = 't', OPT_INT(CliModel, n_threads, 1, THREADS_MAX), .default_help = "all cores", .help = CLI_HELP_THREADS},
    {.key = "pin", OPT_FLAG(CliModel, pin), .help = CLI_HELP_PIN},
    {.key = "kv", OPT_CHOICE(CliModel, kv, "f16", "f32", "q8"), .values = (const int32_t[]){KV_F16, KV_F32, KV_Q8}, .default_value = "f16",
     .help = CLI_HELP_KV},
    {.key = "kernels", OPT_TEXT(CliModel, kernels), .metavar = "NAME", .default_value = "auto", .suggest = cli_suggest_kernels,
     .help = CLI_HELP_KERNELS},
    {.key = "act", OPT_CHOICE(CliModel, activations, "q16", "q8"), .values = (const int32_t[]){ACT_Q16, ACT_Q8}, .default_value = "q16",
     .help = CLI_HELP_ACT},
    {.key = NULL},
};

void cli_model_defaults(CliModel *m) { *m = (CliModel){.n_threads = threads_n_cores()}; }

int cli_model_open(CliModel *m, fr_error *err) {
    ModelOptions options = {.activations = m->activations, .n_threads = m->n_threads};
    int status = kernels_find(m->kernels, &options.kernels, err);
    if (!status) status = gguf_open(&m->gguf, m->path, err);
    if (!status) status = model_open(&m->model, m->gguf, &options, err);
    if (status) cli_model_close(m);
    return status;
}

void cli_model_close(CliModel *m) {
    model_close(m->model);
    gguf_close(m->gguf);
    m->model = NULL;
    m->gguf = NULL;
}

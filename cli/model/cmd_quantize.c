/* cmd_quantize.c - `forerun quantize IN OUT --type T`: writes a model file with smaller weights. */
#include "cli/cli.h"
#include "base/progress.h"
#include "base/threads.h"
#include "gguf/quantize.h"
#include "draft/drafter_file.h"

#include <stdio.h>
#include <string.h>

typedef struct QuantizeArgs {
    const char *in, *out, *importance;
    const QuantMix *mix;
    bool requantize;
    int n_threads;
} QuantizeArgs;

static QuantizeArgs args;

static int set_type(void *to, const char *name, fr_error *err) {
    QuantizeArgs *a = to;
    a->mix = quant_mix_find(name);
    if (a->mix) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "there is no such type; 'forerun quantize --help-all' lists them");
}

static const char *suggest_type(int i) { return quant_mixes()[i].name; }

static const Option option_table[] = {
    {.key = "IN",
     OPT_FILE(QuantizeArgs, in),
     .is_argument = true,
     .required = "model to quantise",
     .help = "GGUF file of the model in F32, F16 or BF16"},
    {.key = "OUT",
     OPT_OUTPUT(QuantizeArgs, out),
     .is_argument = true,
     .required = "output file",
     .help = "GGUF file to write; an existing file is replaced when the new one is complete"},
    {.key = "type",
     .letter = 'T',
     OPT_CUSTOM(set_type),
     .metavar = "TYPE",
     .suggest = suggest_type,
     .help = "type of the matrices, or a mixture of types; they are listed below (required)"},
    {.key = "imatrix",
     OPT_FILE(QuantizeArgs, importance),
     .help = "weight errors by this importance matrix, made by 'forerun imatrix' or llama.cpp (GGUF)"},
    {.key = "requantize",
     OPT_FLAG(QuantizeArgs, requantize),
     .help = "also convert matrices that are already quantised; the result is worse than from F16"},
    CLI_ROW_THREADS(QuantizeArgs, n_threads),
    {.key = NULL},
};

static void set_defaults(void) { args = (QuantizeArgs){.n_threads = threads_n_physical_cores()}; }

static int check(fr_error *err) {
    return args.mix ? FR_OK : error_set(err, FR_ERR_ARGUMENT, "missing type: pass --type=TYPE, for example Q4_K_M");
}

static bool list_types(Buf *out) {
    bool fits = buf_puts(out, "Values of TYPE, with their bits per weight:\n");
    for (const QuantMix *m = quant_mixes(); m->name && fits; m++)
        fits = buf_printf(out, "  %-9s %s\n", m->name, m->summary);
    return fits;
}

static void show(void *user, double part) { progress_update(user, (int64_t)(part * 1000)); }

static void note(void *user, const char *sentence) {
    (void)user;
    fprintf(stderr, "forerun quantize: %s\n", sentence);
}

static void print_result(const QuantizeArgs *a, const QuantizeResult *r) {
    double mib = 1024.0 * 1024.0;
    printf("%s: %.1f MiB, %.2f bits a weight (%s: %.1f MiB);", a->out, (double)r->bytes_out / mib,
           8 * (double)r->bytes_out / (double)r->n_weights, a->in, (double)r->bytes_in / mib);
    const char *between = " ";
    for (int t = 0; t < TYPE_COUNT; t++)
        if (r->n_tensors[t]) {
            printf("%s%lld %s", between, (long long)r->n_tensors[t], tensor_type_info((TensorType)t)->name);
            between = ", ";
        }
    puts("");
}

static int quantize(const QuantizeArgs *a, const Gguf *in, const Importance *importance, fr_error *err) {
    Progress bar;
    QuantizeResult result;
    const QuantizeOptions options = {.mix = a->mix,
                                     .importance = importance,
                                     .importance_path = a->importance,
                                     .requantize = a->requantize,
                                     .n_threads = a->n_threads,
                                     .note = note,
                                     .progress = show,
                                     .user = &bar};
    progress_begin(&bar, stderr, "quantising", 1000);
    int status = quantize_file(in, a->out, &options, &result, err);
    progress_end(&bar);
    if (status) return status;
    print_result(a, &result);
    if (importance && result.n_importances == 0)
        fprintf(stderr, "forerun quantize: %s has no entry for any quantised matrix of this model, and was not used\n",
                a->importance);
    if (result.n_unread)
        fprintf(
            stderr,
            "forerun quantize: no token of the text of %s reached %lld matrices of experts, so their inputs have the "
            "same weight\n",
            a->importance, (long long)result.n_unread);
    return FR_OK;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    const QuantizeArgs *a = &args;
    fr_error err = {0};
    Gguf *in = NULL;
    Importance importance = {.gguf = NULL};
    int status = gguf_open(&in, a->in, &err);
    if (!status) status = drafter_file_refuse_as_target(in, &err);
    if (!status && a->importance) status = importance_open(&importance, a->importance, &err);
    if (!status) status = quantize(a, in, a->importance ? &importance : NULL, &err);
    importance_close(&importance);
    gguf_close(in);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_quantize = {
    .name = "quantize",
    .summary = "write a model file with smaller weights: Q4_K_M, Q8_0, ...",
    .about =
        "Convert the matrices of a model file to another type, with scales that minimise the weighted error. A mixture "
        "gives the matrices that matter most a type with more bits. Norms and biases stay as they are. A matrix whose "
        "rows are not whole blocks of the type gets another type, which is noted on standard error.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .list = list_types,
    .notes = "IN may be the first part of a model in several files (NAME-00001-of-00003.gguf); OUT is one file.",
    .examples = "  forerun quantize model-f16.gguf model-q4_k_m.gguf --type Q4_K_M\n"
                "  forerun imatrix -m model-f16.gguf text.txt -o model.imatrix\n"
                "  forerun quantize model-f16.gguf model-q4_k_m.gguf --type Q4_K_M --imatrix model.imatrix\n"
                "  forerun perplexity -m model-q4_k_m.gguf text.txt --base model-f16.gguf\n",
    .defaults = set_defaults,
    .check = check,
    .run = run,
};

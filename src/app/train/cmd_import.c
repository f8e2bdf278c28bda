/* cmd_import.c - `forerun import-drafter`: published weights of a drafter become a drafter file. */
#include "app/cli.h"

#include "base/progress.h"
#include "import/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ImportArgs {
    const ImportMethod *method;
    const char *model, *output;
    TensorType type;
    const char *const *paths;
    int n_paths;
} ImportArgs;

static const struct argp_option option_table[] = {
    {"model", 'm', "TARGET", 0, "GGUF file of the target that the drafter was trained for", 0},
    {"output", 'o', "FILE", 0, "the drafter file; one that is there is replaced when all is done", 0},
    {"type", 'T', "TYPE", 0, "of its matrices: F16 (default), Q8_0 or F32", 0},
    {0},
};

static TensorType parse_type(struct argp_state *state, const char *arg) {
    TensorType type = TYPE_COUNT;
    tensor_type_from_name(arg, &type);
    if (type != TYPE_F16 && type != TYPE_Q8_0 && type != TYPE_F32) argp_error(state, "--type: '%s' is none of F16, Q8_0, F32", arg);
    return type;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    ImportArgs *a = state->input;
    switch (key) {
    case 'm': a->model = arg; return 0;
    case 'o': a->output = arg; return 0;
    case 'T': a->type = parse_type(state, arg); return 0;
    case ARGP_KEY_ARGS:
        a->method = import_find(state->argv[state->next]);
        if (!a->method) argp_error(state, "drafters of the method '%s' cannot be imported; --help lists those that can", state->argv[state->next]);
        a->paths = (const char *const *)(state->argv + state->next + 1);
        a->n_paths = state->argc - state->next - 1;
        return 0;
    case ARGP_KEY_END:
        if (!a->method) argp_error(state, "which method? METHOD CHECKPOINT...");
        if (a->n_paths == 0) argp_error(state, "which weights? name one CHECKPOINT.safetensors or more, or their folder");
        if (!a->model) argp_error(state, "for which target? -m TARGET.gguf");
        if (!a->output) argp_error(state, "where to? -o DRAFTER.gguf");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char doc[] =
    "Make published weights of a learned drafter into a drafter file.\v"
    "CHECKPOINT is a safetensors file, several, or the folder they lie in; a pickle (*.bin, *.pt) is not read, for it is a "
    "program, and the error says how it is converted. TARGET is the model that the drafter was trained for, quantised as it will "
    "be run. What is missing, unknown, of another shape or for another target is refused.\n\n"
    "Examples:\n"
    "  forerun import-drafter eagle -m vicuna-7b.gguf EAGLE-Vicuna-7B-v1.3/ -o eagle.gguf\n"
    "  forerun run -m vicuna-7b.gguf -p \"Once\" --draft eagle:file=eagle.gguf\n"
    "  forerun import-drafter medusa -m vicuna-7b.gguf medusa_lm_head.safetensors --type Q8_0 -o medusa.gguf";

/* Behind the options: the methods. */
static char *add_methods(int key, const char *text, void *input) {
    (void)input;
    if (key != ARGP_KEY_HELP_EXTRA) return (char *)(uintptr_t)text;
    Buf out = {.max_bytes = 4 << 10};
    bool fits = buf_append(&out, "METHOD:", 7);
    for (const ImportMethod *m = import_methods(); m->name && fits; m++) {
        char line[256];
        int n = snprintf(line, sizeof line, "\n  %s: %s", m->name, m->source);
        fits = buf_append(&out, line, (size_t)n);
    }
    return out.data; /* argp frees it */
}

static void show(void *user, double part) { progress_update(user, (int64_t)(part * 1000)); }

static int open_target(const char *path, Gguf **gguf, Model **model, fr_error *err) {
    int status = gguf_open(gguf, path, err);
    return status ? status : model_open(model, *gguf, err);
}

static int import(const ImportArgs *a, const Model *target, Published *from, fr_error *err) {
    Progress bar;
    progress_begin(&bar, stderr, "importing", 1000);
    int status = import_drafter(a->method, target, from, &(ImportOptions){.type = a->type, .progress = show, .progress_user = &bar}, a->output, err);
    progress_end(&bar);
    return status;
}

int cmd_import(int argc, char **argv) {
    static const struct argp argp = {.options = option_table, .parser = parse, .args_doc = "METHOD CHECKPOINT...", .doc = doc,
                                     .help_filter = add_methods};
    ImportArgs a = {.type = TYPE_F16};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    fr_error err = {0};
    Gguf *gguf = NULL;
    Model *target = NULL;
    Published from;
    int status = published_open(&from, a.paths, a.n_paths, &err);
    if (!status) status = open_target(a.model, &gguf, &target, &err);
    if (!status) status = import(&a, target, &from, &err);
    if (!status) printf("%s: %s for %s; use it with --draft %s:file=%s\n", a.output, a.method->name, a.model, a.method->name, a.output);
    published_close(&from);
    model_close(target);
    gguf_close(gguf);
    return status ? cli_fail(&err) : CLI_OK;
}

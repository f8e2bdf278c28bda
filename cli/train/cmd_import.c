/* cmd_import.c - `forerun import-drafter`: converts published weights of a drafter into a drafter file. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/progress.h"
#include "train/import.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATHS = 1024 };

typedef struct ImportArgs {
    const ImportMethod *method;
    const char *model, *output;
    TensorType type;
    const char *paths[MAX_PATHS];
    int n_paths;
} ImportArgs;

static ImportArgs args;

static int set_method(void *to, const char *name, fr_error *err) {
    ImportArgs *a = to;
    a->method = import_find(name);
    if (a->method) return FR_OK;
    return error_set(
        err, FR_ERR_ARGUMENT,
        "drafters of this method cannot be imported; 'forerun import-drafter --help' lists the methods that can be");
}

static const char *suggest_method(int i) { return import_methods()[i].name; }

static const Option option_table[] = {
    {.key = "METHOD",
     OPT_CUSTOM(set_method),
     .is_argument = true,
     .suggest = suggest_method,
     .help = "method of the drafter; the methods are listed below (required)"},
    {.key = "CHECKPOINT",
     OPT_FILES(ImportArgs, paths, n_paths),
     .is_argument = true,
     .required = "weights: a .safetensors file, several, or their folder",
     .help = "published weights: a safetensors file, several, or the folder that contains them"},
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(ImportArgs, model),
     .required = "target",
     .help = "GGUF file of the target that the drafter was trained for"},
    {.key = "output",
     .letter = 'o',
     OPT_OUTPUT(ImportArgs, output),
     .required = "output file",
     .help = "drafter file to write; an existing file is replaced when the new one is complete"},
    {.key = "type",
     .letter = 'T',
     OPT_CHOICE(ImportArgs, type, "F16", "Q8_0", "F32"),
     .values = (const int32_t[]){TYPE_F16, TYPE_Q8_0, TYPE_F32},
     .default_value = "F16",
     .help = "type of the drafter's matrices"},
    {.key = NULL},
};

static int check(fr_error *err) {
    return args.method ? FR_OK : error_set(err, FR_ERR_ARGUMENT, "missing method: pass METHOD");
}

/* Adds the files that published_open reads from a folder of weights. */
static bool add_folder(CommandFiles *out, const char *path) {
    DIR *folder = opendir(path);
    bool fits = true;
    for (struct dirent *d; folder && fits && (d = readdir(folder));) {
        const char *dot = strrchr(d->d_name, '.');
        char file[4096 + 300];
        if (!dot || strcmp(dot, ".safetensors") != 0) continue;
        snprintf(file, sizeof file, "%.4095s/%s", path, d->d_name);
        fits = command_files_add(out, "CHECKPOINT", file, false);
    }
    if (folder) closedir(folder);
    return fits;
}

static bool files(CommandFiles *out) {
    bool fits = true;
    for (int i = 0; i < args.n_paths && fits; i++) fits = add_folder(out, args.paths[i]); /* adds nothing for a file */
    return fits;
}

static bool list_methods(Buf *out) {
    bool fits = buf_puts(out, "Values of METHOD:\n");
    for (const ImportMethod *m = import_methods(); m->name && fits; m++)
        fits = buf_printf(out, "  %s: %s\n", m->name, m->source);
    return fits;
}

static void show(void *user, double part) { progress_update(user, (int64_t)(part * 1000)); }

static int open_target(const char *path, Gguf **gguf, Model **model, fr_error *err) {
    int status = gguf_open(gguf, path, err);
    return status ? status : model_open(model, *gguf, err);
}

static int import(const ImportArgs *a, const Model *target, Published *from, fr_error *err) {
    Progress bar;
    progress_begin(&bar, stderr, "importing", 1000);
    int status = import_drafter(a->method, target, from,
                                &(ImportOptions){.type = a->type, .progress = show, .progress_user = &bar}, a->output,
                                err);
    progress_end(&bar);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    const ImportArgs *a = &args;
    fr_error err = {0};
    Gguf *gguf = NULL;
    Model *target = NULL;
    Published from;
    int status = published_open(&from, a->paths, a->n_paths, &err);
    if (!status) status = open_target(a->model, &gguf, &target, &err);
    if (!status) status = import(a, target, &from, &err);
    if (!status)
        printf("%s: %s for %s; use it with --draft %s:file=%s\n", a->output, a->method->name, a->model, a->method->name,
               a->output);
    published_close(&from);
    model_close(target);
    gguf_close(gguf);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_import = {
    .name = "import-drafter",
    .summary = "convert published weights of a drafter into a drafter file",
    .about = "Convert the published weights of a learned drafter into a drafter file.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .list = list_methods,
    .notes = "A pickle (*.bin, *.pt) is refused, because reading it would run a program; the error explains how to "
             "convert it. The target must be the model that the drafter was trained for, quantised as it will be run. "
             "Weights that are missing, unknown, of the wrong shape or for another target are refused.",
    .examples =
        "  forerun import-drafter eagle -m vicuna-7b.gguf EAGLE-Vicuna-7B-v1.3/ -o eagle.gguf\n"
        "  forerun run -m vicuna-7b.gguf -p \"Once\" --draft eagle:file=eagle.gguf\n"
        "  forerun import-drafter medusa -m vicuna-7b.gguf medusa_lm_head.safetensors --type Q8_0 -o medusa.gguf\n",
    .check = check,
    .files = files,
    .run = run,
};

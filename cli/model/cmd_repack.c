/* cmd_repack.c - `forerun repack`: writes the packed form of a model's weights into the cache, where every command
 * finds it (src/compute/cpu/packed_file.c). */
#include "cli/cli.h"
#include "cli/model_name.h"
#include "cli/model/fetch.h"

#include "base/threads.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static CliModel args;

static const Option options[] = {
    {.key = "model", .letter = 'm', OPT_MODEL(CliModel, path), .required = "model", .help = "GGUF file of the model"},
    CLI_ROW_THREADS(CliModel, n_threads),
    {.key = NULL},
};

static void set_defaults(void) {
    cli_model_defaults(&args);
    args.is_packed_anew = true;
}

static int make_folder_of(const char *path, fr_error *err) {
    char folder[MODEL_CACHE_PATH];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    return fetch_make_folder(folder, err);
}

static int repack(fr_error *err) {
    struct stat st;
    int status = cli_model_open(&args, err);
    const char *path = status ? NULL : cli_packed_file(args.path);
    if (!status && !path)
        status = error_set(
            err, FR_ERR_IO,
            "there is no folder for packed weights: set HOME or XDG_CACHE_HOME to one that may be written");
    if (!status) status = make_folder_of(path, err);
    if (!status) status = args.weights->backend->weights_save(args.weights, path, err);
    if (!status && stat(path, &st) == 0) printf("%s, %.1f MB\n", path, (double)st.st_size / 1e6);
    cli_model_close(&args);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    return repack(&err) ? cli_fail(&err) : CLI_OK;
}

static const OptionSet sets[] = {{options, &args}, {NULL, NULL}};

const Command command_repack = {
    .name = "repack",
    .summary = "store a model in the form that the CPU reads, for quicker starts",
    .about =
        "Write a copy of a model's weights, in the form that the CPU reads, into the cache folder, "
        "$XDG_CACHE_HOME/forerun/packed (~/.cache/forerun/packed). From then on every command that runs the model maps "
        "this copy instead of packing the weights at its start, and processes that run the same model share the "
        "memory. The results stay the same, bit for bit. The model's file is still needed.\n"
        "If the copy is damaged, or the model's file has been replaced, the copy is not used, and a note is printed. "
        "It takes as much disk space as the model, and may be deleted at any time.",
    .sets = sets,
    .examples = "  forerun repack -m model.gguf\n",
    .defaults = set_defaults,
    .run = run,
};

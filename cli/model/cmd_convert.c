/* cmd_convert.c - `forerun convert FOLDER OUT.gguf`: converts a model as Hugging Face publishes it into a GGUF file. */
#include "cli/cli.h"
#include "cli/command.h"
#include "base/progress.h"
#include "cli/convert/convert.h"
#include "cli/convert/convert_arch.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

typedef struct ConvertArgs {
    const char *folder, *out;
    int type;
} ConvertArgs;

static ConvertArgs args;

static const Option option_table[] = {
    {.key = "FOLDER",
     OPT_FILE(ConvertArgs, folder),
     .is_argument = true,
     .metavar = "FOLDER",
     .required = "folder of a model",
     .help = "folder with config.json, the weights as safetensors, and tokenizer.json or tokenizer.model"},
    {.key = "OUT",
     OPT_OUTPUT(ConvertArgs, out),
     .is_argument = true,
     .required = "output file",
     .help = "GGUF file to write; an existing file is replaced when the new one is complete"},
    {.key = "type",
     .letter = 'T',
     OPT_CHOICE(ConvertArgs, type, "F16", "BF16", "F32", "Q8_0"),
     .values = (const int32_t[]){TYPE_F16, TYPE_BF16, TYPE_F32, TYPE_Q8_0},
     .default_value = "F16",
     .help = "type of the matrices; 'forerun quantize' makes smaller files"},
    {.key = NULL},
};

/* Adds all files of the folder, so that none of them can be replaced. */
static bool files(CommandFiles *out) {
    DIR *folder = opendir(args.folder);
    bool fits = true;
    for (struct dirent *d; folder && fits && (d = readdir(folder));) {
        char path[4096 + 300];
        if (d->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.4095s/%s", args.folder, d->d_name);
        fits = command_files_add(out, "FOLDER", path, false);
    }
    if (folder) closedir(folder);
    return fits;
}

/* Returns the number of the first architecture of that name in GGUF files. */
static int first_of_name(const char *name) {
    int i = 0;
    while (strcmp(convert_arch_at(i)->name, name) != 0) i++;
    return i;
}

/* Appends the published names of all architectures that have the same name in GGUF files. */
static bool put_published(Buf *out, int first) {
    const ConvertArch *a;
    Buf names = {.max_bytes = 4096};
    const char *name = convert_arch_at(first)->name;
    bool fits = buf_printf(&names, "%s:", name);
    for (int i = first; fits && (a = convert_arch_at(i)) != NULL; i++)
        if (strcmp(a->name, name) == 0) fits = buf_printf(&names, " %s", a->published);
    fits = fits && buf_append(&names, "", 1) && buf_puts(out, "  ") && text_wrap(out, names.data, 2, 4, CLI_WIDTH) &&
           buf_puts(out, "\n");
    buf_free(&names);
    return fits;
}

static bool list_archs(Buf *out) {
    bool fits = buf_puts(out, "Architectures, by their name in GGUF files, with their names in config.json:\n");
    const ConvertArch *a;
    for (int i = 0; fits && (a = convert_arch_at(i)) != NULL; i++)
        if (first_of_name(a->name) == i) fits = put_published(out, i);
    return fits;
}

static void show(void *user, double part) { progress_update(user, (int64_t)(part * 1000)); }

static void note(void *user, const char *sentence) {
    (void)user;
    fprintf(stderr, "forerun convert: %s\n", sentence);
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err = {0};
    Progress bar;
    const ConvertOptions options = {.type = (TensorType)args.type, .note = note, .progress = show, .user = &bar};
    progress_begin(&bar, stderr, "converting", 1000);
    int status = convert_folder(args.folder, args.out, &options, &err);
    progress_end(&bar);
    if (status) return cli_fail(&err);
    printf("%s: %s as a GGUF file; try it with forerun run -m %s -p \"Once upon a time\"\n", args.out, args.folder,
           args.out);
    return CLI_OK;
}

const Command command_convert = {
    .name = "convert",
    .summary = "convert a Hugging Face folder (safetensors) into a GGUF file",
    .about =
        "Convert a model as Hugging Face publishes it, a folder with config.json, safetensors and a tokenizer, into a "
        "GGUF file. The vocabulary, special tokens and chat template are converted, too. A model that cannot be "
        "converted exactly is refused.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .list = list_archs,
    .examples = "  forerun convert Qwen2.5-0.5B-Instruct/ qwen2.5-0.5b-f16.gguf\n"
                "  forerun convert TinyLlama-1.1B/ tinyllama-bf16.gguf --type BF16\n"
                "  forerun quantize tinyllama-bf16.gguf tinyllama-q4_k_m.gguf --type Q4_K_M\n",
    .files = files,
    .run = run,
};

/* cmd_import.c - `forerun import-drafter`: converts published weights of a drafter into a drafter file.
 *
 * A checkpoint of EAGLE-3 or DFlash lists the layers of the target that it reads, but not whether it means their inputs
 * or their outputs. So both readings draft for some prompts, and the one whose tokens are accepted more often is
 * written. The same is done for the first slot of DSpark's blocks where config.json does not say whether it
 * predicts. */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/progress.h"
#include "forerun.h"
#include "train/import.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PATHS = 1024 };

typedef enum Reading { READ_BOTH, READ_INPUTS, READ_OUTPUTS } Reading;

typedef struct ImportArgs {
    const ImportMethod *method;
    Reading layers;
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
    {.key = "layers",
     OPT_CHOICE(ImportArgs, layers, "auto", "inputs", "outputs"),
     .default_value = "auto",
     .help =
         "eagle3 and dflash: whether the list of the target's layers in config.json names their inputs or their "
         "outputs; auto: both draft for some prompts, and the usual one is kept unless the other is clearly better"},
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

static int import(const ImportArgs *a, const char *output, ImportReading reading, const Model *target, Published *from,
                  fr_error *err) {
    Progress bar;
    progress_begin(&bar, stderr, "importing", 1000);
    int status = import_drafter(
        a->method, target, from,
        &(ImportOptions){.type = a->type, .reading = reading, .progress = show, .progress_user = &bar}, output, err);
    progress_end(&bar);
    return status;
}

/* ---- how a checkpoint is read ------------------------------------------------------------------------------ */

enum { TRIAL_TOKENS = 64 };
/* The ratio of tokens per step. Where few tokens are accepted, chance moves it by some hundredths on so few prompts. */
#define CLEARLY_BETTER 1.15

static const char *const trial_prompts[] = {
    "Once upon a time there was a small town at the edge of a forest, and in it lived",
    "The following C function returns the greater one of two numbers:\n\nint max(int a, int b) {\n",
    "Question: How many legs do three dogs and two birds have together?\nAnswer:",
};
enum { N_TRIALS = sizeof trial_prompts / sizeof *trial_prompts };

/* Adds the tokens and the steps of one prompt. */
static int try_prompt(fr_engine *engine, const fr_model *model, const char *prompt, const char *draft,
                      int64_t *n_tokens, int64_t *n_steps, fr_error *err) {
    int32_t *tokens = NULL;
    int64_t n = 0;
    fr_request *request = NULL;
    fr_stats stats = {.struct_size = sizeof stats};
    int status = fr_tokenize(model, prompt, strlen(prompt), FR_TOKENIZE_PROMPT, &tokens, &n, err), left = 1;
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = tokens,
                            .n_prompt = n,
                            .max_tokens = TRIAL_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = &draft,
                            .n_drafts = 1,
                            .tree_budget = 4,
                            .ignore_eos = 1};
    o.sampling.temperature = 0;
    if (!status) status = fr_request_open(&request, engine, &o, err);
    while (!status && left > 0) status = (left = fr_engine_step(engine, err)) < 0 ? left : FR_OK;
    if (!status) status = fr_request_get_stats(request, &stats);
    *n_tokens += stats.n_generated;
    *n_steps += stats.n_steps;
    fr_request_close(request);
    fr_free(tokens);
    return status;
}

/* Returns the tokens of a step with the drafter at `path` in *out. */
static int try_reading(const fr_model *model, const ImportArgs *a, const char *path, bool counts_outputs, double *out,
                       fr_error *err) {
    char draft[4200];
    fr_engine *engine = NULL;
    int64_t n_tokens = 0, n_steps = 0;
    snprintf(draft, sizeof draft, "%s:file=%s,depth=4,top=1,layers=%s", a->method->name, path,
             counts_outputs ? "outputs" : "inputs");
    int status = fr_engine_open(&engine, model,
                                &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 512}, err);
    if (!status) status = fr_engine_open_draft(engine, draft, err);
    for (int i = 0; i < N_TRIALS && !status; i++)
        status = try_prompt(engine, model, trial_prompts[i], draft, &n_tokens, &n_steps, err);
    fr_engine_close(engine);
    *out = n_steps ? (double)n_tokens / (double)n_steps : 0;
    return status;
}

/* Tokens of a step if the list of layers names inputs, and if it names outputs. */
typedef struct Trial {
    double inputs, outputs;
} Trial;

/* Imports the checkpoint to `path`, and tries both readings of its list of layers. */
static int try_both(const fr_model *model, const ImportArgs *a, const char *path, ImportReading reading,
                    const Model *target, Published *from, Trial *out, fr_error *err) {
    fr_error impossible; /* the target has no such layer */
    int status = import(a, path, reading, target, from, err);
    if (!status) status = try_reading(model, a, path, false, &out->inputs, err);
    if (!status && try_reading(model, a, path, true, &out->outputs, &impossible)) out->outputs = 0;
    return status;
}

/* names_outputs: what lists of this name count as a rule, which holds unless the other reading is clearly better. */
static bool chooses_outputs(Trial t, bool names_outputs) {
    double by_rule = names_outputs ? t.outputs : t.inputs, other = names_outputs ? t.inputs : t.outputs;
    return names_outputs != (other > CLEARLY_BETTER * by_rule);
}

static double best_of(Trial t, bool names_outputs) { return chooses_outputs(t, names_outputs) ? t.outputs : t.inputs; }

static bool are_alike(double a, double b) { return a <= CLEARLY_BETTER * b && b <= CLEARLY_BETTER * a; }

static void print_choice(Trial t, bool has_outputs) {
    printf("layers as inputs: %.2f tokens per step, as outputs: %.2f (%d prompts, %d tokens each); the file has %s\n",
           t.inputs, t.outputs, (int)N_TRIALS, (int)TRIAL_TOKENS, has_outputs ? "outputs" : "inputs");
    if (t.inputs < 1.1 && t.outputs < 1.1)
        fprintf(stderr,
                "warning: hardly a token is accepted in either reading; the drafter may be for another target\n");
    else if (are_alike(t.inputs, t.outputs))
        fprintf(stderr,
                "warning: the two readings hardly differ, so the usual one of such files was chosen; if you know the "
                "right one, pass --layers\n");
}

/* Tries all readings that the checkpoint allows, imported to `path`, and prints which one drafts best. */
static int choose_reading(const ImportArgs *a, const char *path, const Model *target, Published *from,
                          ImportReading *out, fr_error *err) {
    fr_model *model = NULL;
    Trial usual = {0, 0}, other = {0, 0};
    bool names_outputs = import_names_outputs(from), is_unsure = import_lacks_anchor(from);
    int status = fr_model_open(&model, a->model, &(fr_model_options){.struct_size = sizeof(fr_model_options)}, err);
    if (!status && is_unsure)
        status = try_both(model, a, path, (ImportReading){.is_other_anchor = true}, target, from, &other, err);
    if (!status) status = try_both(model, a, path, (ImportReading){0}, target, from, &usual, err);
    fr_model_close(model);
    if (status) return status;
    double by_rule = best_of(usual, names_outputs), otherwise = best_of(other, names_outputs);
    out->is_other_anchor = is_unsure && otherwise > CLEARLY_BETTER * by_rule;
    Trial chosen = out->is_other_anchor ? other : usual;
    out->counts_outputs = chooses_outputs(chosen, names_outputs);
    if (is_unsure)
        printf("its config.json does not say whether the first slot of a block predicts (sample_from_anchor): %.2f "
               "tokens per step as it is usual, %.2f in the other way; the file has the %s\n",
               by_rule, otherwise, out->is_other_anchor ? "other one" : "usual one");
    print_choice(chosen, out->counts_outputs);
    return FR_OK;
}

/* Published drafters were trained on the hidden states of 16-bit weights. */
static void warn_of_quantisation(const ImportArgs *a, const Model *target) {
    const char *type = drafter_target_quantisation(target);
    if (!type) return;
    fprintf(stderr,
            "warning: %s is quantised (%s), and published drafters are trained on 16-bit weights; the coarser the "
            "quantisation, the fewer tokens are accepted\n",
            a->model, type);
}

/* Imports a drafter whose list of layers can be read in two ways. */
static int import_with_layers(const ImportArgs *a, const Model *target, Published *from, fr_error *err) {
    ImportReading reading = {.counts_outputs = a->layers == READ_OUTPUTS};
    char path[4096 + 32]; /* of what is tried, so that OUTPUT is replaced only by a drafter that runs */
    warn_of_quantisation(a, target);
    if (a->layers != READ_BOTH) return import(a, a->output, reading, target, from, err);
    snprintf(path, sizeof path, "%.4000s.trial-%ld", a->output, (long)getpid());
    int status = choose_reading(a, path, target, from, &reading, err);
    bool is_at_path = !reading.counts_outputs && !reading.is_other_anchor; /* it was tried last */
    if (!status && is_at_path && rename(path, a->output) != 0)
        status = error_set(err, FR_ERR_IO, "%s: cannot be written: %s", a->output, strerror(errno));
    if (status || !is_at_path) unlink(path);
    return status || is_at_path ? status : import(a, a->output, reading, target, from, err);
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
    bool has_layers = strcmp(a->method->name, "eagle3") == 0 || strcmp(a->method->name, "dflash") == 0;
    if (!status)
        status = has_layers ? import_with_layers(a, target, &from, &err)
                            : import(a, a->output, (ImportReading){0}, target, &from, &err);
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
    .notes =
        "A pickle (*.bin, *.pt) is refused, because reading it would run a program; the error explains how to "
        "convert it. The target must be the model that the drafter was trained for, quantised as it will be run. "
        "Weights that are missing, unknown, of the wrong shape or for another target are refused, and so are known "
        "keys of config.json with a value of another type.",
    .examples =
        "  forerun import-drafter eagle -m vicuna-7b.gguf EAGLE-Vicuna-7B-v1.3/ -o eagle.gguf\n"
        "  forerun run -m vicuna-7b.gguf -p \"Once\" --draft eagle:file=eagle.gguf\n"
        "  forerun import-drafter eagle3 -m qwen3-8b.gguf Qwen3-8B_eagle3/ -o eagle3.gguf\n"
        "  forerun import-drafter dflash -m qwen3-8b.gguf Qwen3-8B-DFlash-b16/ -o dflash.gguf\n"
        "  forerun import-drafter medusa -m vicuna-7b.gguf medusa_lm_head.safetensors --type Q8_0 -o medusa.gguf\n",
    .check = check,
    .files = files,
    .run = run,
};

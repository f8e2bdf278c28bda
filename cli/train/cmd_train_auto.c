/* cmd_train_auto.c - `forerun train auto`: from the user's prompts to a measured drafter in one command.
 *
 * It runs the commands that a user would type one after the other, in this process:
 *
 *     1  reads the prompts, and holds some of them out for the measurement
 *     2  distill-data   the target answers the other prompts
 *     3  train METHOD   the drafter learns from these answers
 *     4  bench          the held-out prompts are answered with plain decoding, with the drafter and with `auto`
 *
 * Its only state is the files beside OUTPUT, which belong to these commands, so the same command continues after any
 * interruption: distill-data after its last answer, train from its checkpoint, and a drafter that is newer than its
 * measurement is only measured. Each answer carries the settings that determine it ("answered_by"), so that answers of
 * another target or with other options are refused. */
#include "base/os.h"
#include "cli/cli.h"
#include "cli/train/train_auto.h"
#include "train/methods.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_WORDS = 40, MAX_TEST_TOKENS = 128, N_STEPS = 4 };

static AutoArgs auto_args;

/* The methods of `forerun train` that make a drafter. */
static const char *suggest_method(int i) {
    for (const TrainMethod *const *m = train_methods(); *m; m++)
        if ((*m)->needs_model && i-- == 0) return (*m)->name;
    return NULL;
}

static const Option option_table[] = {
    {.key = "PROMPTS",
     OPT_FILE(AutoArgs, prompts),
     .is_argument = true,
     .required = "prompts",
     .section = "Files",
     .help = "your prompts: a .jsonl file, a .txt file with one prompt in a line, or a folder of such files"},
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(AutoArgs, model),
     .required = "target",
     .help = "GGUF file of the target that the drafter is trained for"},
    {.key = "output",
     .letter = 'o',
     OPT_OUTPUT(AutoArgs, output),
     .required = "output file",
     .help = "file for the drafter; answers, checkpoint, log and measurements are written beside it"},
    {.key = "force",
     OPT_FLAG(AutoArgs, replaces),
     .help = "replace a finished drafter at OUTPUT, and answers of other settings beside it"},
    {.key = "drafter",
     OPT_TEXT(AutoArgs, method),
     .metavar = "METHOD",
     .default_value = "eagle",
     .suggest = suggest_method,
     .section = "Training",
     .help = "what to train: a method of 'forerun train' that makes a drafter"},
    {.key = "tokens",
     .letter = 'n',
     OPT_INT(AutoArgs, n_tokens, 1, 1 << 20),
     .default_value = "200",
     .help = "tokens of an answer, at most"},
    {.key = "temp",
     OPT_REAL(AutoArgs, temperature, 0, HUGE_VAL),
     .metavar = "T",
     .default_value = "0",
     .help = "temperature of the answers and of the measurement; use the one that you will use later"},
    {.key = "raw", OPT_FLAG(AutoArgs, raw), .help = "continue the prompts as text even if the model has a chat format"},
    {.key = "epochs",
     OPT_REAL(AutoArgs, epochs, 1e-6, 1e6),
     .default_value = "4",
     .help = "number of times that the drafter learns from every answer"},
    CLI_ROW_THREADS(AutoArgs, n_threads, .section = "Machine"),
    {.key = NULL},
};

/* The ends of the names of these files. */
static const char *const beside[AUTO_N_BESIDE] = {".prompts.jsonl", ".held-out.jsonl", ".answers.jsonl",
                                                  ".bench.json",    ".checkpoint",     ".log.jsonl"};

static int check(fr_error *err) {
    const char *name;
    if (mpi_rank_option(0) == FR_RANKS_MPI)
        return error_set(err, FR_ERR_ARGUMENT,
                         "mpirun has started several processes, and this command runs in one: start it without mpirun, "
                         "or run 'distill-data' and 'train METHOD' with it");
    for (int i = 0; (name = suggest_method(i)); i++)
        if (strcmp(name, auto_args.method) == 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "'--drafter=%.60s' must be a method that makes a drafter, such as eagle",
                     auto_args.method);
}

static bool files(CommandFiles *out) {
    bool fits = true;
    for (int i = 0; i < AUTO_N_BESIDE && fits; i++) {
        char path[AUTO_PATH_BYTES], name[64];
        snprintf(path, sizeof path, "%.*s%s", AUTO_PATH_BYTES - 32, auto_args.output, beside[i]);
        snprintf(name, sizeof name, "OUTPUT%s", beside[i]);
        fits = command_files_add(out, name, path, true);
    }
    return fits;
}

/* ---- steps 2 to 4: other commands ------------------------------------------------------------------------ */

/* The words of a command line, which live until the program ends because options point to them. */
typedef struct Words {
    char *argv[MAX_WORDS + 1];
    int argc;
    bool failed; /* memory ran out */
} Words;

__attribute__((format(printf, 2, 3))) static void add(Words *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fr_assert(w->argc < MAX_WORDS);
    if (vasprintf(&w->argv[w->argc], format, args) < 0) w->failed = true;
    else w->argc++;
    va_end(args);
}

static void add_common(Words *w, const Auto *a, bool generates) {
    add(w, "--model=%s", a->args->model);
    if (a->args->n_threads) add(w, "--threads=%d", a->args->n_threads);
    if (generates) add(w, "--temp=%.9g", a->args->temperature);
}

static int run_words(const Command *c, Words *w) {
    if (!w->failed) return command_main(c, w->argc, w->argv);
    fprintf(stderr, "forerun: out of memory\n");
    return CLI_FAILED;
}

static void begin_step(int i, const char *what) {
    printf("[%d/%d] %s\n", i, N_STEPS, what);
    fflush(stdout);
}

static int distill(const Auto *a) {
    static Words w;
    add(&w, "distill-data");
    add_common(&w, a, true);
    add(&w, "--tokens=%d", a->args->n_tokens);
    add(&w, "--draft=auto");
    if (a->chat) add(&w, "--chat");
    add(&w, "--output=%s", a->paths[AUTO_ANSWERS]);
    add(&w, "--"), add(&w, "%s", a->paths[AUTO_PROMPTS]);
    return run_words(&command_distill, &w);
}

static int train(const Auto *a) {
    static Words w;
    bool resumes = access(a->paths[AUTO_CHECKPOINT], F_OK) == 0;
    add(&w, "train"), add(&w, "%s", a->args->method);
    add_common(&w, a, false);
    add(&w, "--data=%s", a->paths[AUTO_ANSWERS]);
    if (a->chat) add(&w, "--chat");
    add(&w, "--length=%d", a->length);
    add(&w, "--epochs=%.9g", a->args->epochs);
    add(&w, "--lr=0.003"), add(&w, "--decay=linear"), add(&w, "--final-lr=0");
    add(&w, "--valid=0.05");
    add(&w, "--type=q8_0");
    add(&w, "--output=%s", a->args->output);
    if (resumes) add(&w, "--resume");
    else if (a->args->replaces) add(&w, "--force");
    return run_words(&command_train, &w);
}

static int measure(const Auto *a) {
    static Words w;
    add(&w, "bench");
    add_common(&w, a, true);
    add(&w, "--tokens=%d", a->args->n_tokens < MAX_TEST_TOKENS ? a->args->n_tokens : MAX_TEST_TOKENS);
    if (!a->chat) add(&w, "--raw");
    add(&w, "--tree-budget=auto"), add(&w, "--chain=none"), add(&w, "--runs=3");
    add(&w, "--draft=%s", a->spec), add(&w, "--draft=%s+auto", a->spec), add(&w, "--draft=auto");
    add(&w, "--json=%s", a->paths[AUTO_MEASURED]);
    add(&w, "--"), add(&w, "%s", a->paths[AUTO_HELD_OUT]);
    return run_words(&command_bench, &w);
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* Returns whether a drafter is at OUTPUT; is_measured: whether it is older than its measurement, which other programs
 * did not disturb. */
static bool is_trained(const Auto *a, bool *is_measured) {
    struct stat drafter, measured;
    Gguf *g;
    if (stat(a->args->output, &drafter) != 0 || gguf_open(&g, a->args->output, NULL)) return false;
    gguf_close(g);
    *is_measured = stat(a->paths[AUTO_MEASURED], &measured) == 0 && !auto_is_disturbed(a);
    if (!*is_measured) return true;
    struct timespec then = os_modified(&drafter), later = os_modified(&measured);
    *is_measured = later.tv_sec > then.tv_sec || (later.tv_sec == then.tv_sec && later.tv_nsec >= then.tv_nsec);
    return true;
}

static int run_steps(Auto *a, fr_error *err) {
    bool is_measured = false, trained = is_trained(a, &is_measured);
    bool continues = access(a->paths[AUTO_CHECKPOINT], F_OK) == 0 || access(a->paths[AUTO_ANSWERS], F_OK) == 0;
    if (trained && !a->args->replaces && (is_measured || !continues))
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: is a finished drafter: pass --force to replace it, or choose another path for -o",
                         a->args->output);
    begin_step(1, "the prompts and the target");
    int status = auto_prepare(a, err);
    if (status) return status;
    printf("%zu prompts to learn from, %zu held out for the measurement. The same command continues after an "
           "interruption.\n",
           a->n_prompts - a->n_held_out, a->n_held_out);
    *err = (fr_error){.code = FR_OK};
    if (!trained || a->args->replaces || access(a->paths[AUTO_CHECKPOINT], F_OK) == 0) {
        begin_step(2, "the target answers the prompts");
        if (distill(a) != CLI_OK) return FR_ERR_CANCELLED;
        begin_step(3, "the drafter learns from the answers");
        if (train(a) != CLI_OK) return FR_ERR_CANCELLED;
    }
    begin_step(4, "plain decoding and drafters on the held-out prompts");
    if (measure(a) != CLI_OK) {
        unlink(a->paths[AUTO_MEASURED]); /* it may be that of an interrupted run */
        return FR_ERR_CANCELLED;
    }
    return auto_print_result(a, err);
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    Auto a = {.args = &auto_args};
    for (int i = 0; i < AUTO_N_BESIDE; i++)
        snprintf(a.paths[i], sizeof a.paths[i], "%.*s%s", AUTO_PATH_BYTES - 32, auto_args.output, beside[i]);
    snprintf(a.spec, sizeof a.spec, "%s:file=%s", auto_args.method, auto_args.output);
    train_is_automatic = true;
    int status = run_steps(&a, &err);
    for (size_t i = 0; i < a.n_prompts; i++) json_decref(a.prompts[i].question), json_decref(a.prompts[i].test);
    free(a.prompts);
    json_decref(a.settings);
    if (!status) return CLI_OK;
    return err.code == FR_OK ? CLI_FAILED : cli_fail(&err); /* a command that failed has printed its own error */
}

const Command command_train_auto = {
    .name = "train auto",
    .summary = "a drafter from your own prompts, in one command: answers, training, measurement",
    .about = "Train a drafter for a target from your own prompts, in one command. The target answers the prompts, the "
             "drafter learns from the answers, and held-out prompts show whether it pays.",
    .notes = "The steps are those of 'forerun distill-data', 'forerun train METHOD' and 'forerun bench', which have "
             "more options. A line of a .jsonl file has a \"prompt\", or the \"messages\" or \"turns\" of a "
             "conversation. At least 20 prompts are needed, and some hundred are better; a tenth of them, at most 20, "
             "is held out. The command can be interrupted at any time, and continues when it is run again.",
    .examples = "  forerun train auto -m target.gguf prompts.jsonl -o drafter.gguf\n",
    .sets = (const OptionSet[]){{option_table, &auto_args}, {NULL, NULL}},
    .check = check,
    .files = files,
    .run = run,
};

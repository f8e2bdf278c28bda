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
#include "base/files.h"
#include "base/hash.h"
#include "base/os.h"
#include "cli/cli.h"
#include "train/drafter_trainer.h"
#include "train/methods.h"
#include "train/records.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MIN_PROMPTS = 20, MAX_HELD_OUT = 20, PATH_BYTES = 4096, MAX_WORDS = 40, MAX_TEST_TOKENS = 128, N_STEPS = 4 };

typedef struct AutoArgs {
    const char *prompts, *model, *output, *method;
    int32_t n_tokens, n_threads;
    double temperature, epochs;
    bool raw, replaces;
} AutoArgs;

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

/* The files beside OUTPUT. */
enum { PROMPTS, HELD_OUT, ANSWERS, MEASURED, CHECKPOINT, LOG, N_BESIDE };
static const char *const beside[N_BESIDE] = {".prompts.jsonl", ".held-out.jsonl", ".answers.jsonl",
                                             ".bench.json",    ".checkpoint",     ".log.jsonl"};

/* A prompt as a JSON line for distill-data, and the same for bench. */
typedef struct Prompt {
    uint64_t hash;
    json_t *question, *test;
    bool is_held_out;
} Prompt;

typedef struct Auto {
    const AutoArgs *args;
    char paths[N_BESIDE][PATH_BYTES];
    char spec[PATH_BYTES + 64]; /* the drafter as a value of --draft */
    Prompt *prompts;            /* [n_prompts], all different */
    size_t n_prompts, n_held_out;
    bool chat;
    int32_t length; /* of the sequences to train with */
    json_t *settings;
} Auto;

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
    for (int i = 0; i < N_BESIDE && fits; i++) {
        char path[PATH_BYTES], name[64];
        snprintf(path, sizeof path, "%.*s%s", PATH_BYTES - 32, auto_args.output, beside[i]);
        snprintf(name, sizeof name, "OUTPUT%s", beside[i]);
        fits = command_files_add(out, name, path, true);
    }
    return fits;
}

/* ---- step 1: the prompts --------------------------------------------------------------------------------- */

/* Adds a prompt, unless an equal one is there; takes ownership of both objects. Few enough prompts to compare all. */
static int add_prompt(Auto *a, json_t *question, json_t *test, fr_error *err) {
    char *text = test ? json_dumps(test, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    uint64_t hash = text ? hash64(text, strlen(text), 0) : 0;
    bool known = false;
    for (size_t i = 0; i < a->n_prompts && !known; i++) known = a->prompts[i].hash == hash;
    Prompt *more = text && question && !known ? realloc(a->prompts, (a->n_prompts + 1) * sizeof *more) : NULL;
    free(text);
    if (more) {
        a->prompts = more;
        a->prompts[a->n_prompts++] = (Prompt){.hash = hash, .question = question, .test = test};
        return FR_OK;
    }
    json_decref(question), json_decref(test);
    return known ? FR_OK : error_memory(err, "a prompt", 1);
}

/* Adds the question of a record. bench takes only the user's messages of a conversation. */
static int add_record(Auto *a, Record *r, fr_error *err) {
    if (r->kind == RECORD_PAIR)
        return add_prompt(a, json_pack("{s:s}", "prompt", r->prompt), json_pack("{s:s}", "prompt", r->prompt), err);
    if (r->kind != RECORD_CHAT)
        return error_set(err, FR_ERR_FORMAT, "has no prompt: write {\"prompt\": ...}, or {\"messages\": ...}");
    json_t *turns = json_array();
    for (int i = 0; i < r->n_messages; i++)
        if (r->messages[i].role && strcmp(r->messages[i].role, "user") == 0)
            json_array_append_new(turns, json_string(r->messages[i].content));
    json_t *test = json_pack("{s:o}", "turns", turns);
    if (json_array_size(turns) > 0) return add_prompt(a, json_incref(r->object), test, err);
    json_decref(test);
    return error_set(err, FR_ERR_FORMAT, "has no message of a user");
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static int read_file(Auto *a, const char *path, fr_error *err) {
    LineReader *reader;
    bool is_text = ends_with(path, ".txt");
    const char *line;
    size_t n;
    int got = line_reader_open(&reader, path, false, LINE_MAX_BYTES, err);
    if (got) return got;
    for (;;) {
        fr_error why;
        Record record = {0};
        got = is_text ? line_reader_next(reader, &line, &n, err) : record_next_question(reader, &record, err);
        if (got != 1) break;
        if (!is_text) got = add_record(a, &record, &why);
        else if (strspn(line, " \t\r") == n) continue;
        else got = add_prompt(a, json_pack("{s:s}", "prompt", line), json_pack("{s:s}", "prompt", line), &why);
        if (!is_text) record_free(&record);
        if (got) {
            got = line_reader_refuse(reader, &why, err);
            break;
        }
    }
    line_reader_close(reader);
    return got;
}

static int is_prompts(const struct dirent *entry) {
    return ends_with(entry->d_name, ".jsonl") || ends_with(entry->d_name, ".jsonl.zst") ||
           ends_with(entry->d_name, ".txt");
}

/* Reads a file, or the files of a folder in the order of their names. */
static int read_prompts(Auto *a, fr_error *err) {
    const char *path = a->args->prompts;
    struct stat st;
    struct dirent **entries;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return read_file(a, path, err);
    int status = FR_OK, n = scandir(path, &entries, is_prompts, alphasort);
    if (n < 0) return error_set(err, FR_ERR_IO, "%s: the folder cannot be read", path);
    for (int i = 0; i < n; i++) {
        char file[PATH_BYTES];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (!status) status = read_file(a, file, err);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Holds out the prompts with the smallest hashes, so that the choice does not depend on their order. */
static int hold_out(Auto *a, fr_error *err) {
    if (a->n_prompts < MIN_PROMPTS)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: has %zu different prompt%s, too few to learn from: collect at least %d, better some "
                         "hundred",
                         a->args->prompts, a->n_prompts, cli_plural((int64_t)a->n_prompts), MIN_PROMPTS);
    a->n_held_out = a->n_prompts / 10 < MAX_HELD_OUT ? a->n_prompts / 10 : MAX_HELD_OUT;
    for (size_t k = 0; k < a->n_held_out; k++) {
        Prompt *least = NULL;
        for (size_t i = 0; i < a->n_prompts; i++)
            if (!a->prompts[i].is_held_out && (!least || a->prompts[i].hash < least->hash)) least = &a->prompts[i];
        least->is_held_out = true;
    }
    return FR_OK;
}

/* Writes the held-out prompts for bench, or the others for distill-data. */
static int write_prompts(const Auto *a, bool held_out, fr_error *err) {
    ReplaceFile out;
    int status = replace_file_begin(&out, a->paths[held_out ? HELD_OUT : PROMPTS], err);
    if (status) return status;
    for (size_t i = 0; i < a->n_prompts && !status; i++) {
        const Prompt *p = &a->prompts[i];
        if (p->is_held_out != held_out) continue;
        if (!held_out) json_object_set(p->question, "answered_by", a->settings);
        char *line = json_dumps(held_out ? p->test : p->question, JSON_COMPACT);
        if (line) fprintf(out.file, "%s\n", line);
        else status = error_memory(err, "a prompt", 1);
        free(line);
    }
    return replace_file_end(&out, status, err);
}

/* Refuses a target that cannot be trained for, which train would do after hours of answering, and makes the settings
 * that determine an answer. */
static int read_target(Auto *a, fr_error *err) {
    Gguf *g;
    GgufString text;
    FrozenTarget target;
    int status = gguf_open(&g, a->args->model, err);
    if (status) return status;
    a->chat = !a->args->raw && gguf_get_string(g, "tokenizer.chat_template", &text);
    status = frozen_open(&target, g, 1, a->args->n_threads ? a->args->n_threads : threads_n_physical_cores(), err);
    if (!status) {
        char fingerprint[20];
        int32_t n_ctx = target.model->hparams.n_ctx_train;
        snprintf(fingerprint, sizeof fingerprint, "%016llx",
                 (unsigned long long)drafter_target_fingerprint(target.model));
        a->length = n_ctx < 256 ? n_ctx : 256;
        a->settings = json_pack("{s:s, s:i, s:f, s:b}", "target", fingerprint, "tokens", a->args->n_tokens, "temp",
                                a->args->temperature, "chat", (int)a->chat);
        if (!a->settings) status = error_memory(err, "the settings", 1);
        frozen_close(&target);
    }
    gguf_close(g);
    return status;
}

/* Refuses answers that were generated with other settings, or with --force deletes them and what was learned from
 * them. */
static int check_answers(const Auto *a, fr_error *err) {
    LineReader *reader;
    const char *line;
    size_t n;
    if (access(a->paths[ANSWERS], F_OK) != 0) return FR_OK;
    int got = line_reader_open(&reader, a->paths[ANSWERS], false, LINE_MAX_BYTES, err);
    if (got) return got;
    got = line_reader_next(reader, &line, &n, err);
    json_t *first = got == 1 ? json_loadb(line, n, 0, NULL) : NULL;
    bool differs = first && !json_equal(json_object_get(first, "answered_by"), a->settings);
    json_decref(first);
    line_reader_close(reader);
    if (got < 0 || !differs) return got < 0 ? got : FR_OK;
    if (!a->args->replaces)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: these answers are of another target, or were generated with another -n, --temp or --raw: "
                         "pass --force to delete them, or choose another path for -o",
                         a->paths[ANSWERS]);
    unlink(a->paths[ANSWERS]), unlink(a->paths[CHECKPOINT]);
    return FR_OK;
}

static int prepare(Auto *a, fr_error *err) {
    int status = read_prompts(a, err);
    if (!status) status = hold_out(a, err);
    if (!status) status = read_target(a, err);
    if (!status) status = check_answers(a, err);
    if (!status) status = write_prompts(a, true, err);
    if (!status) status = write_prompts(a, false, err);
    return status;
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
    add(&w, "--output=%s", a->paths[ANSWERS]);
    add(&w, "--"), add(&w, "%s", a->paths[PROMPTS]);
    return run_words(&command_distill, &w);
}

static int train(const Auto *a) {
    static Words w;
    bool resumes = access(a->paths[CHECKPOINT], F_OK) == 0;
    add(&w, "train"), add(&w, "%s", a->args->method);
    add_common(&w, a, false);
    add(&w, "--data=%s", a->paths[ANSWERS]);
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
    add(&w, "--json=%s", a->paths[MEASURED]);
    add(&w, "--"), add(&w, "%s", a->paths[HELD_OUT]);
    return run_words(&command_bench, &w);
}

/* ---- the result -------------------------------------------------------------------------------------------- */

/* A row of the measurement. */
typedef struct MethodRow {
    const char *method, *verdict; /* they belong to the JSON object */
    double speed_up, acceptance;
} MethodRow;

/* Finds the fastest row over all prompts: with the drafter, or `auto`. */
static MethodRow fastest(const json_t *measured, bool with_drafter) {
    MethodRow best = {.method = NULL};
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(measured, "summary"), i, row) {
        const char *name = json_string_value(json_object_get(row, "method"));
        const char *category = json_string_value(json_object_get(row, "category"));
        if (!name || !category || strcmp(category, "all") != 0 || strcmp(name, "plain") == 0) continue;
        if ((strcmp(name, "auto") != 0) != with_drafter) continue;
        MethodRow r = {.method = name,
                       .verdict = json_string_value(json_object_get(row, "verdict")),
                       .speed_up = json_number_value(json_object_get(json_object_get(row, "speed_up"), "mean")),
                       .acceptance = json_number_value(json_object_get(row, "acceptance_length"))};
        if (!best.method || r.speed_up > best.speed_up) best = r;
    }
    return best;
}

/* Returns how often the drafter's best guess for the first token ahead was right in the last validation; 1 if there was
 * none. */
static double last_accuracy(const Auto *a) {
    LineReader *reader;
    const char *line;
    size_t n;
    double share = 1;
    if (line_reader_open(&reader, a->paths[LOG], false, LINE_MAX_BYTES, NULL)) return share;
    while (line_reader_next(reader, &line, &n, NULL) == 1) {
        json_t *object = json_loadb(line, n, 0, NULL);
        json_t *first = json_array_get(json_object_get(object, "valid_accuracy"), 0);
        if (first) share = json_number_value(first);
        json_decref(object);
    }
    line_reader_close(reader);
    return share;
}

static bool is(const MethodRow *r, const char *verdict) { return r->verdict && strcmp(r->verdict, verdict) == 0; }

/* Prints the commands that use the drafter; with_auto: together with `auto`. */
static void print_use(const Auto *a, bool with_auto) {
    const char *model = a->args->model, *more = with_auto ? " --draft auto" : "";
    printf("  forerun chat  -m %s --draft %s%s --tree-budget auto\n  forerun serve -m %s --draft %s%s\n", model,
           a->spec, more, model, a->spec, more);
}

/* Prints whether the drafter pays, and what to do. */
static int print_result(const Auto *a, fr_error *err) {
    json_t *measured = json_load_file(a->paths[MEASURED], 0, NULL);
    MethodRow own = fastest(measured, true), other = fastest(measured, false);
    if (!own.method) {
        json_decref(measured);
        return error_set(err, FR_ERR_FORMAT, "%s: has no measurement of %s", a->paths[MEASURED], a->spec);
    }
    bool auto_is_better = is(&other, "faster") && other.speed_up >= own.speed_up;
    if (is(&own, "disturbed")) {
        printf("\nOther programs disturbed the measurement. Stop them, and run the same command again.\n");
        unlink(a->paths[MEASURED]);
    } else if (is(&own, "faster") && !auto_is_better) {
        printf("\nThe drafter pays: on held-out prompts, generation is %.2f times as fast as plain decoding, with\n"
               "%.2f tokens per step and the same texts. Use it like this:\n\n",
               own.speed_up, own.acceptance);
        print_use(a, strcmp(own.method, a->spec) != 0);
    } else {
        printf("\nThe drafter does not pay: on held-out prompts, generation with it is %.2f times as fast as plain\n"
               "decoding, with %.2f tokens per step.",
               own.speed_up, own.acceptance);
        if (auto_is_better)
            printf(" --draft auto, which needs no training, is %.2f times as fast:\n\n"
                   "  forerun chat -m %s --draft auto\n",
                   other.speed_up, a->args->model);
        else if (last_accuracy(a) < 0.5)
            printf(
                " Its best guess for the next token was right in only\n%.0f %% of the places in texts that it had not "
                "seen: collect more prompts, or pass a larger --epochs\nwith --force.\n",
                100 * last_accuracy(a));
        else
            printf(" Checking guesses is expensive on this machine:\nsee 'Drafting gains nothing' in "
                   "docs/TROUBLESHOOTING.md.\n");
    }
    json_decref(measured);
    return FR_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* Returns whether a drafter is at OUTPUT, and whether it is older than its measurement. */
static bool is_trained(const Auto *a, bool *is_measured) {
    struct stat drafter, measured;
    Gguf *g;
    if (stat(a->args->output, &drafter) != 0 || gguf_open(&g, a->args->output, NULL)) return false;
    gguf_close(g);
    *is_measured = stat(a->paths[MEASURED], &measured) == 0;
    if (!*is_measured) return true;
    struct timespec then = os_modified(&drafter), later = os_modified(&measured);
    *is_measured = later.tv_sec > then.tv_sec || (later.tv_sec == then.tv_sec && later.tv_nsec >= then.tv_nsec);
    return true;
}

static int run_steps(Auto *a, fr_error *err) {
    bool is_measured = false, trained = is_trained(a, &is_measured);
    bool continues = access(a->paths[CHECKPOINT], F_OK) == 0 || access(a->paths[ANSWERS], F_OK) == 0;
    if (trained && !a->args->replaces && (is_measured || !continues))
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: is a finished drafter: pass --force to replace it, or choose another path for -o",
                         a->args->output);
    begin_step(1, "the prompts and the target");
    int status = prepare(a, err);
    if (status) return status;
    printf("%zu prompts to learn from, %zu held out for the measurement. The same command continues after an "
           "interruption.\n",
           a->n_prompts - a->n_held_out, a->n_held_out);
    *err = (fr_error){.code = FR_OK};
    if (!trained || a->args->replaces || access(a->paths[CHECKPOINT], F_OK) == 0) {
        begin_step(2, "the target answers the prompts");
        if (distill(a) != CLI_OK) return FR_ERR_CANCELLED;
        begin_step(3, "the drafter learns from the answers");
        if (train(a) != CLI_OK) return FR_ERR_CANCELLED;
    }
    begin_step(4, "plain decoding and drafters on the held-out prompts");
    if (measure(a) != CLI_OK) {
        unlink(a->paths[MEASURED]); /* it may be that of an interrupted run */
        return FR_ERR_CANCELLED;
    }
    return print_result(a, err);
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    Auto a = {.args = &auto_args};
    for (int i = 0; i < N_BESIDE; i++)
        snprintf(a.paths[i], sizeof a.paths[i], "%.*s%s", PATH_BYTES - 32, auto_args.output, beside[i]);
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

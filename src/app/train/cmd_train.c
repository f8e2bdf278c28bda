/* cmd_train.c - `forerun train METHOD`: reads the data, opens the method's trainer, runs the loop, writes the file. */
#include "app/cli.h"
#include "app/plot.h"
#include "app/train/train_methods.h"
#include "app/train/train_plot.h"
#include "train/loop/drafter_trainer.h"
#include "train/loop/train_log.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIGNATURE_BYTES = 512, PATH_BYTES = 4096 };

typedef struct Training {
    const TrainMethod *method;
    TrainArgs args;
    char command[PATH_BYTES], run_signature[SIGNATURE_BYTES], checkpoint[PATH_BYTES], log[PATH_BYTES];
    Gguf *source;
    Dataset data;
    Trainer *trainer;
    LoopResult result;
} Training;

/* The first Ctrl-C asks the loop to stop behind its step, the second one ends the program. */
static volatile sig_atomic_t asked_to_stop;
static void ask_to_stop(int signal_number) {
    (void)signal_number;
    asked_to_stop = 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ---- before anything is read -------------------------------------------------------------------- */

static int check_writable(const char *path, fr_error *err) {
    bool was_there = access(path, F_OK) == 0;
    FILE *f = fopen(path, "ab");
    if (!f || fclose(f)) return error_set(err, FR_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (!was_there) unlink(path);
    return FR_OK;
}

static int check_checkpoint(const Training *t, fr_error *err) {
    bool is_there = access(t->checkpoint, F_OK) == 0;
    if (is_there && !t->args.loop.resumes)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: is what a run that was cut off left behind; --resume goes on with it, or delete it to begin anew",
                         t->checkpoint);
    if (!is_there && t->args.loop.resumes)
        return error_set(err, FR_ERR_ARGUMENT, "%s: there is no checkpoint to go on from; leave --resume out to begin",
                         t->checkpoint);
    return FR_OK;
}

/* Everything that can be known before hours of training. */
static int prepare(Training *t, fr_error *err) {
    TrainArgs *a = &t->args;
    const char *log = a->log;
    int n = snprintf(t->checkpoint, PATH_BYTES, "%s.checkpoint", a->output);
    int n_log = snprintf(t->log, PATH_BYTES, "%s%s", log ? log : a->output, log ? "" : ".log.jsonl");
    if (n >= PATH_BYTES || n_log >= PATH_BYTES) return error_set(err, FR_ERR_ARGUMENT, "-o or --log: the path is too long");
    a->loop.checkpoint = t->checkpoint;
    a->loop.log = t->log;
    a->loop.method = t->run_signature;
    a->loop.stop = &asked_to_stop;
    a->loop.n_threads = a->n_threads;
    int status = check_writable(a->output, err);
    if (!status) status = check_writable(t->log, err);
    if (!status && a->plot) status = plot_check(a->plot, err);
    if (!status) status = check_checkpoint(t, err);
    return status ? status : gguf_open(&t->source, t->method->needs_model ? a->model : a->vocab, err);
}

/* ---- the run ------------------------------------------------------------------------------------ */

/* What the options leave to the amount of data. */
static int plan(Training *t, fr_error *err) {
    LoopOptions *o = &t->args.loop;
    double n_steps = ceil(t->args.epochs * (double)t->data.train.n / ((double)o->n_sequences * o->n_accumulate));
    if (!o->schedule.n_steps && !(n_steps >= 1 && n_steps < 0x1p31))
        return error_set(err, FR_ERR_ARGUMENT, "--epochs %g make %g steps; give --steps N", t->args.epochs, n_steps);
    if (!o->schedule.n_steps) o->schedule.n_steps = (int64_t)n_steps;
    o->schedule.n_warm_up = t->args.warm_up < 0 ? o->schedule.n_steps / 20 : t->args.warm_up;
    if (o->schedule.n_warm_up >= o->schedule.n_steps && t->args.warm_up > 0)
        return error_set(err, FR_ERR_ARGUMENT, "--warm-up %lld leaves none of the %lld steps; give a smaller one, or more --steps",
                         (long long)t->args.warm_up, (long long)o->schedule.n_steps);
    if (o->valid_every < 0) o->valid_every = (o->schedule.n_steps + 19) / 20;
    return FR_OK;
}

static void print_plan(const Training *t) {
    const Dataset *d = &t->data;
    const LoopOptions *o = &t->args.loop;
    int64_t n_params = 0;
    for (int32_t i = 0; i < t->trainer->class->n_params(t->trainer); i++) n_params += t->trainer->class->param(t->trainer, i)->n;
    printf("%lld documents, %lld of them held out; %lld tokens to learn in %lld sequences of %d\n", (long long)d->n_documents,
           (long long)d->n_valid_documents, (long long)d->train.n_counted, (long long)d->train.n, d->train.length);
    if (d->wrote_plain)
        puts("the vocabulary's file names no chat format that forerun knows: messages are written as USER: ...\\nASSISTANT: ...");
    if (d->n_lossy)
        printf("warning: the answers of %lld documents were made under a lossy rule (distill-data --lossy): they are not what the target "
               "says, and a drafter of them guesses something else\n", (long long)d->n_lossy);
    printf("%.2f million parameters; %lld steps of %d sequences; products in %s\n", (double)n_params / 1e6,
           (long long)o->schedule.n_steps, o->n_sequences * o->n_accumulate, gemm_description());
    fflush(stdout);
}

static void print_sums(const char *what, const TrainSums *s) {
    if (s->n == 0) return;
    printf(", %s %.4f (right", what, train_sums_loss(s));
    for (int i = 0; i < s->n_heads; i++) printf(" %.1f %%", s->of[i] ? 100 * (double)s->right[i] / (double)s->of[i] : 0.0);
    putchar(')');
}

/* Words with spaces between; what does not fit is left out. */
static void join(char *out, size_t n, char *const *words, int n_words) {
    size_t at = 0;
    *out = '\0';
    for (int i = 0; i < n_words && at < n; i++) at += (size_t)snprintf(out + at, n - at, "%s%s", i ? " " : "", words[i]);
}

/* What was typed to begin: a run that was resumed ends with the bytes of one that was not. */
static void join_command(char *out, size_t n, char *const *argv, int argc) {
    char *words[256];
    int n_words = 0;
    for (int i = 0; i < argc && n_words < (int)(sizeof words / sizeof *words); i++)
        if (strcmp(argv[i], "--resume") != 0) words[n_words++] = argv[i];
    join(out, n, words, n_words);
}

static int finish(Training *t, fr_error *err) {
    const LoopResult *r = &t->result;
    char names[PATH_BYTES];
    float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS];
    bool has_accuracy = drafter_trainer_accuracy(&r->valid, accuracy);
    join(names, sizeof names, t->args.data.files, t->args.data.n_files);
    const DrafterTraining record = {
        .command = t->command, .data = names, .precision = gemm_precision_name(t->args.precision),
        .n_steps = (uint64_t)r->n_steps, .seed = t->args.loop.seed,
        .n_tokens = (uint64_t)(r->n_steps * t->args.loop.n_sequences * t->args.loop.n_accumulate * t->data.train.length),
        .loss = train_sums_loss(&r->valid),
        .accuracy = has_accuracy ? accuracy : NULL, .n_heads = r->valid.n_heads, .n_ranks = TRAIN_RANKS};
    int status = t->trainer->class->write(t->trainer, t->args.output, &record, err);
    if (status) return status;
    printf("%s: %lld steps in %.1f s, %.0f tokens/s", t->args.output, (long long)(r->n_steps - r->n_steps_before), r->seconds,
           r->tokens_per_s);
    if (r->n_steps_before) printf(", after %lld of earlier runs", (long long)r->n_steps_before);
    print_sums("loss of the last step", &r->train);
    print_sums("of held out texts", &r->valid);
    putchar('\n');
    char previous[PATH_BYTES + 16];
    snprintf(previous, sizeof previous, "%s.previous", t->checkpoint);
    unlink(t->checkpoint); /* the file that it was kept for is there */
    unlink(previous);
    return t->args.plot ? train_plot(t->log, t->args.plot, err) : FR_OK;
}

static int run(Training *t, fr_error *err) {
    int status = prepare(t, err);
    if (!status) status = dataset_open(&t->data, &t->args.data, t->source, err);
    t->args.dataset = &t->data;
    if (!status) status = plan(t, err);
    gemm_open(t->args.precision);
    if (!status) status = t->method->open(&t->trainer, &t->args, t->source, t->run_signature, sizeof t->run_signature, err);
    if (status) return status;
    size_t n_words = strlen(t->run_signature);
    snprintf(t->run_signature + n_words, sizeof t->run_signature - n_words, " precision=%s", gemm_precision_name(t->args.precision));
    print_plan(t);
    catch_signals();
    fr_error why;
    status = loop_run(t->trainer, &t->data, &t->args.loop, &t->result, &why);
    if (status == FR_ERR_CANCELLED)
        return error_set(err, status, "%s; the same command with --resume goes on from %s", why.message, t->checkpoint);
    if (status) {
        *err = why;
        return status;
    }
    return finish(t, err);
}

/* ---- the command -------------------------------------------------------------------------------- */

static error_t parse(int key, char *arg, struct argp_state *state) {
    Training *t = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &t->args;
        state->child_inputs[1] = t->method->settings;
        return 0;
    case ARGP_KEY_END:
        if (t->method->needs_model && !t->args.model) argp_error(state, "which target is it for? -m TARGET.gguf");
        if (!t->method->needs_model && !t->args.vocab)
            argp_error(state, "which vocabulary? --vocab FILE.gguf, any model that has it");
        if (t->method->needs_model ? t->args.vocab : t->args.model)
            argp_error(state, "%s does not go with the method %s", t->method->needs_model ? "--vocab" : "-m", t->method->name);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void print_methods(FILE *out) {
    fputs("Usage: forerun train METHOD [OPTION...]\n"
          "Train a model, or a drafter for one, on your own texts.\n\n"
          "Methods:\n",
          out);
    for (const TrainMethod *const *m = train_methods(); *m; m++) fprintf(out, "  %-10s %s\n", (*m)->name, (*m)->summary);
    fputs("\nData is JSON lines: {\"text\": ...}, {\"prompt\": ..., \"response\": ...}, or {\"messages\": [{\"role\": ..., \"content\": ...}]};\n"
          "`forerun distill-data` lets a target write the answers first. docs/TRAINING.md tells the rest.\n"
          "`forerun train METHOD --help` lists the options of a method.\n",
          out);
}

int cmd_train(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    Training t = {.method = train_method_find(name)};
    if (!t.method) {
        bool asks = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "-?") == 0;
        if (!asks && *name) fprintf(stderr, "forerun train: there is no method '%s'\n", name);
        print_methods(asks ? stdout : stderr);
        return asks ? CLI_OK : CLI_USAGE;
    }
    join_command(t.command, sizeof t.command, argv, argc);
    char title[64];
    snprintf(title, sizeof title, "forerun train %s", name);
    argv[1] = title;
    train_args_defaults(&t.args);
    const struct argp_child children[] = {{&train_args_argp, 0, NULL, 0}, {t.method->argp, 0, NULL, 0}, {0}};
    const struct argp argp = {.parser = parse, .children = children, .doc = t.method->help};
    argp_parse(&argp, argc - 1, argv + 1, 0, NULL, &t);
    fr_error err;
    int status = run(&t, &err);
    if (t.trainer) t.trainer->class->close(t.trainer);
    dataset_close(&t.data);
    gguf_close(t.source);
    return status ? cli_fail(&err) : CLI_OK;
}

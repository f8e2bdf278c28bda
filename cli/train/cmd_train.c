/* cmd_train.c - `forerun train METHOD`: reads the data, opens the method's trainer, runs the loop, writes the file.
 *
 * Errors that can be detected at the start, such as outputs that cannot be written or a checkpoint of another run, are
 * reported before the data is read. */
#include "base/os.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/plot.h"
#include "cli/signals.h"
#include "cli/train/training.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static Training training; /* the options of the methods point to its args */

bool train_is_automatic;

/* The first Ctrl-C stops the loop after the current step; the second one ends the program. */
static volatile sig_atomic_t stop_requested;

static void catch_signals(void) {
    signals_request_stop(SIGINT, &stop_requested);
    signals_request_stop(SIGTERM, &stop_requested);
}

/* ---- before anything is read -------------------------------------------------------------------- */

static int check_data(const TrainArgs *a, fr_error *err) {
    bool has_data = a->data.n_files > 0;
    if (!has_data && !a->traffic) return error_set(err, FR_ERR_ARGUMENT, "missing training data: pass --data=FILE");
    if (!a->traffic) return FR_OK;
    if (has_data)
        return error_set(err, FR_ERR_ARGUMENT, "--data and --from-traffic both give training data: pass one of them");
    if (a->loop.resumes)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--resume: a training from traffic has no checkpoints, because its data grows: leave out "
                         "--resume to start again");
    return FR_OK;
}

static int check_checkpoint(const Training *t, fr_error *err) {
    if (t->args.traffic) return FR_OK;
    bool is_there = access(t->checkpoint, F_OK) == 0;
    if (is_there && !t->args.loop.resumes)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: this is the checkpoint of an interrupted run: pass --resume to continue it, or delete "
                         "the file to start again",
                         t->checkpoint);
    if (!is_there && t->args.loop.resumes)
        return error_set(err, FR_ERR_ARGUMENT, "%s: there is no checkpoint to continue from: leave out --resume",
                         t->checkpoint);
    return FR_OK;
}

/* Refuses to replace a finished file, which may have taken days to train. A run that continues from its checkpoint was
 * checked when it began. */
static int check_finished(const TrainArgs *a, fr_error *err) {
    Gguf *old;
    if (a->replaces || a->traffic || a->loop.resumes || access(a->output, F_OK) != 0) return FR_OK;
    if (gguf_open(&old, a->output, NULL)) return FR_OK;
    gguf_close(old);
    return error_set(err, FR_ERR_ARGUMENT,
                     "%s: is a finished model or drafter: pass --force to replace it, or choose another path for -o",
                     a->output);
}

static int check_outputs(const Training *t, fr_error *err) {
    int status = t->args.plot ? plot_check(err) : FR_OK;
    if (!status) status = check_checkpoint(t, err);
    return status ? status : check_finished(&t->args, err);
}

/* Outputs and terminal are those of rank 0. */
static void become_later_rank(TrainArgs *a) {
    a->loop.checkpoint = a->loop.log = NULL;
    a->loop.progress = a->data.progress = NULL;
}

static int open_source(Training *t, fr_error *err) {
    return gguf_open(&t->source, t->method->needs_model ? t->args.model : t->args.vocab, err);
}

/* Checks everything that can be checked before hours of training. */
static int prepare(Training *t, fr_error *err) {
    TrainArgs *a = &t->args;
    const char *log = a->log;
    int n = snprintf(t->checkpoint, PATH_BYTES, "%s.checkpoint", a->output);
    int n_log = snprintf(t->log, PATH_BYTES, "%s%s", log ? log : a->output, log ? "" : ".log.jsonl");
    if (n >= PATH_BYTES || n_log >= PATH_BYTES)
        return error_set(err, FR_ERR_ARGUMENT, "-o or --log: the path is too long");
    a->loop.checkpoint = a->traffic ? NULL : t->checkpoint;
    a->loop.validates_first = a->traffic != NULL;
    a->loop.log = t->log;
    a->loop.method = t->run_signature;
    a->loop.stop = &stop_requested;
    bool is_later = train_ranks_rank(t->ranks) > 0;
    if (is_later) become_later_rank(a);
    int status = check_data(a, err);
    if (!status && !is_later) status = check_outputs(t, err);
    return status ? status : open_source(t, err);
}

static int open_data(Training *t, fr_error *err) {
    TrainArgs *a = &t->args;
    int status = FR_OK;
    if (a->data.valid_share < 0) a->data.valid_share = a->traffic ? 0.1 : 0.01;
    if (a->traffic) {
        status = traffic_open(&t->traffic, &t->traffic_state, a, t->method->name, t->source, err);
        a->data.traffic = &t->traffic;
    }
    if (!status) status = dataset_open(&t->data, &a->data, t->source, err);
    a->dataset = &t->data;
    return status;
}

/* ---- the run ------------------------------------------------------------------------------------ */

/* Sets the numbers of steps that the options do not give, by the amount of data. */
static int plan_steps(Training *t, fr_error *err) {
    LoopOptions *o = &t->args.loop;
    double n_steps = ceil(t->args.epochs * (double)t->data.train.n / ((double)o->n_sequences * o->n_accumulate));
    if (!o->schedule.n_steps && !(n_steps >= 1 && n_steps < 0x1p31))
        return error_set(err, FR_ERR_ARGUMENT, "--epochs=%g makes %g steps: pass --steps=N instead", t->args.epochs,
                         n_steps);
    if (!o->schedule.n_steps) o->schedule.n_steps = (int64_t)n_steps;
    o->schedule.n_warm_up = t->args.warm_up < 0 ? o->schedule.n_steps / 20 : t->args.warm_up;
    if (o->schedule.n_warm_up >= o->schedule.n_steps && t->args.warm_up > 0)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--warm-up=%lld must be less than the %lld steps: reduce it, or pass more --steps",
                         (long long)t->args.warm_up, (long long)o->schedule.n_steps);
    if (o->valid_every < 0) o->valid_every = (o->schedule.n_steps + 19) / 20;
    return FR_OK;
}

/* ---- ranks --------------------------------------------------------------------------------------- */

/* Checks the number of processes; FR_RANKS_MPI: those that mpirun has started. */
static int check_ranks(const TrainArgs *a, int n_ranks, fr_error *err) {
    if (a->n_ranks && mpi_rank_option(0) == FR_RANKS_MPI)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--ranks: mpirun has started the processes of this training already: leave out --ranks");
    if (a->is_idle && n_ranks != 1)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--idle: a process that waits for the processor cannot be told from one that has died: train "
                         "in one process, or leave out --idle");
    return FR_OK;
}

static int read_inputs(Training *t, fr_error *err) {
    int status = prepare(t, err);
    if (!status) status = open_data(t, err);
    return status ? status : plan_steps(t, err);
}

/* Starts processes, which have the data, too. They open the target anew because its file is closed there. */
static int start_ranks(Training *t, int n_ranks, fr_error *err) {
    int status = train_ranks_open(&t->ranks, n_ranks, err);
    if (status || train_ranks_rank(t->ranks) == 0) return status;
    become_later_rank(&t->args);
    gguf_close(t->source);
    t->source = NULL;
    return open_source(t, err);
}

static int open_trainer(Training *t, fr_error *err) {
    TrainArgs *a = &t->args;
    int status = gemm_open(a->precision, a->n_threads, err);
    if (!status) status = t->method->open(&t->trainer, a, t->source, t->run_signature, sizeof t->run_signature, err);
    size_t n_words = strlen(t->run_signature);
    snprintf(t->run_signature + n_words, sizeof t->run_signature - n_words, " precision=%s",
             gemm_precision_name(a->precision));
    return status;
}

/* Returns the precision of the run that is resumed, if there is one: the best one is measured, and what else the
 * machine does may have changed it. */
static GemmPrecision choose_precision(const TrainArgs *a) {
    char name[16];
    bool is_resumed = a->loop.resumes && a->loop.checkpoint &&
                      checkpoint_option(a->loop.checkpoint, "precision", name, sizeof name);
    for (int p = 0; is_resumed && p < GEMM_NOT_CHOSEN; p++)
        if (strcmp(name, gemm_precision_name((GemmPrecision)p)) == 0) return (GemmPrecision)p;
    return gemm_best_precision();
}

/* Reads the inputs and opens the trainer, on all ranks. Processes of mpirun join before that, so that an error has the
 * number of its rank. */
static int open_all(Training *t, fr_error *err) {
    TrainArgs *a = &t->args;
    fr_error why = {.code = FR_OK};
    int n_ranks = mpi_rank_option(a->n_ranks);
    int status = check_ranks(a, n_ranks, err);
    if (!status && n_ranks == FR_RANKS_MPI) status = train_ranks_open(&t->ranks, n_ranks, err);
    if (status) return status;
    status = read_inputs(t, &why);
    if (a->precision == GEMM_NOT_CHOSEN) a->precision = choose_precision(a);
    train_ranks_share(t->ranks, &a->precision, sizeof a->precision);
    if (!status && !t->ranks) status = start_ranks(t, n_ranks, &why);
    a->loop.ranks = t->ranks;
    if (!a->n_threads) a->n_threads = threads_n_physical_cores();
    a->loop.n_threads = a->n_threads;
    if (!status) status = open_trainer(t, &why);
    status = train_ranks_agree(t->ranks, status, &why);
    return status ? (int)error_set(err, status, "%s", why.message) : (int)FR_OK;
}

/* ---- the command -------------------------------------------------------------------------------- */

static int train(Training *t, fr_error *err) {
    int status = open_all(t, err);
    if (status) return status;
    if (train_ranks_rank(t->ranks) > 0) return loop_follow(t->trainer, &t->data, &t->args.loop, err);
    train_print_plan(t);
    catch_signals();
    fr_error why;
    status = loop_run(t->trainer, &t->data, &t->args.loop, &t->result, &why);
    if (status == FR_ERR_CANCELLED && !t->args.traffic)
        return error_set(err, status, "%s; the same command%s continues from %s", why.message,
                         train_is_automatic ? "" : " with --resume", t->checkpoint);
    if (status) {
        *err = why;
        return status;
    }
    return train_finish(t, err);
}

static int run_method(int argc, char **argv) {
    Training *t = &training;
    t->method = train_method_find(argv[0]);
    train_join_command(t->command, sizeof t->command, argv, argc);
    t->args.data.packs = !t->args.separate;
    if (t->args.is_idle) os_run_when_idle();
    fr_error err;
    int status = train(t, &err);
    bool is_later = train_ranks_rank(t->ranks) > 0;
    train_ranks_close(t->ranks);
    if (status && is_later) mpi_rank_wait_for_first();
    if (t->trainer) t->trainer->class->close(t->trainer);
    dataset_close(&t->data);
    gguf_close(t->source);
    return status ? cli_fail(&err) : CLI_OK;
}

static void set_defaults(void) { train_args_defaults(&training.args); }

/* Adds the files that are written beside OUTPUT, and the file of --valid, if it is not a number. */
static bool files(CommandFiles *out) {
    const TrainArgs *a = &training.args;
    static const char *const beside[] = {".checkpoint", ".checkpoint.previous", ".log.jsonl"};
    bool fits = !a->data.valid_file || command_files_add(out, "--valid", a->data.valid_file, false);
    for (int i = 0; i < (a->log ? 2 : 3) && fits; i++) {
        char path[PATH_BYTES + 32], name[64];
        snprintf(path, sizeof path, "%.*s%s", PATH_BYTES, a->output, beside[i]);
        snprintf(name, sizeof name, "OUTPUT%s", beside[i]);
        fits = command_files_add(out, name, path, true);
    }
    return fits;
}

/* A method as a command "train METHOD", with the common options followed by its own. */
typedef struct MethodCommand {
    Command command;
    char name[32];
    OptionSet sets[12];
} MethodCommand;

static void make_command(MethodCommand *c, const TrainMethod *m) {
    int n = 0, max = (int)(sizeof c->sets / sizeof *c->sets) - 1;
    snprintf(c->name, sizeof c->name, "train %s", m->name);
    c->sets[n++] = (OptionSet){m->needs_model ? train_model_options : train_vocab_options, &training.args};
    c->sets[n++] = (OptionSet){train_args_options, &training.args};
    for (const OptionSet *own = m->sets; own->rows; own++) {
        fr_assert(n < max);
        c->sets[n++] = *own;
    }
    c->sets[n] = (OptionSet){NULL, NULL};
    c->command = (Command){.name = c->name,
                           .summary = m->summary,
                           .about = m->about,
                           .notes = m->notes,
                           .examples = m->examples,
                           .sets = c->sets,
                           .defaults = set_defaults,
                           .check = m->check,
                           .files = files,
                           .runs_on_all_ranks = true,
                           .run = run_method};
}

static const Command *find_method(int i) {
    static MethodCommand commands[16];
    if (i-- == 0) return &command_train_auto;
    const TrainMethod *m = train_methods()[i];
    if (!m) return NULL;
    fr_assert(i < (int)(sizeof commands / sizeof *commands));
    if (!commands[i].command.name) make_command(&commands[i], m);
    return &commands[i].command;
}

const Command command_train = {
    .name = "train",
    .summary = "train a model, or a drafter for one, on your own texts",
    .about = "Train a model, or a drafter for one, on your own texts.",
    .method = find_method,
    .notes =
        "Training data is JSON lines: {\"text\": ...}, {\"prompt\": ..., \"response\": ...}, or {\"messages\": "
        "[{\"role\": ..., \"content\": ...}]}. 'forerun distill-data' replaces the answers by the target's own. See "
        "docs/TRAINING.md.",
    .examples = "  forerun train auto -m target.gguf prompts.jsonl -o drafter.gguf\n"
                "  forerun train lyanna -m target.gguf --data answers.jsonl -o lyanna.gguf\n",
};

/* cmd_train.c - `forerun train METHOD`: reads the data, opens the method's trainer, runs the loop, writes the file.
 *
 * Errors that can be detected at the start, such as outputs that cannot be written or a checkpoint of another run, are
 * reported before the data is read. */
#include "base/hash.h"
#include "base/os.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/plot.h"
#include "cli/signals.h"
#include "train/methods.h"
#include "train/loop.h"
#include "train/records.h"
#include "train/drafter_trainer.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIGNATURE_BYTES = 1024, PATH_BYTES = 4096 };

typedef struct Training {
    const TrainMethod *method;
    TrainArgs args;
    char command[PATH_BYTES], run_signature[SIGNATURE_BYTES], checkpoint[PATH_BYTES], log[PATH_BYTES];
    Gguf *source;
    Traffic traffic;              /* with --from-traffic */
    DrafterTraffic traffic_state; /* is written into the drafter's file */
    Dataset data;
    Trainer *trainer;
    Ranks *ranks; /* NULL: one process */
    LoopResult result;
} Training;

static Training training; /* the options of the methods point to its args */

bool train_is_automatic;

/* The first Ctrl-C stops the loop after the current step; the second one ends the program. */
static volatile sig_atomic_t stop_requested;

static void catch_signals(void) {
    signals_request_stop(SIGINT, &stop_requested);
    signals_request_stop(SIGTERM, &stop_requested);
}

/* ---- --from-traffic: the new lines of a file of records --------------------------------------------------------
 *
 * A file of records only grows, so the lines that an earlier training has read are its first n lines. The drafter's
 * file stores n and a hash of these lines. If the file still begins with them, the lines after them are new. If not,
 * because it was deleted, rotated or edited, all lines are new. So there is no state besides the two files, and either
 * of them can be deleted safely.
 *
 * An incomplete last line is left for the next training, because another process may be writing it. */

/* Returns the state that the drafter's file stores; empty if the file cannot be read or is not a drafter. */
static DrafterTraffic remembered(const char *drafter, const char *method, uint64_t target) {
    Gguf *g;
    DrafterTraffic t = {0};
    if (access(drafter, F_OK) != 0 || gguf_open(&g, drafter, NULL)) return t;
    drafter_file_get_traffic(g, method, target, &t);
    gguf_close(g);
    return t;
}

/* Counts and hashes the complete lines. *n_known: how many of them `known` describes; 0 if the file does not begin with
 * them. */
static int scan(const char *path, const DrafterTraffic *known, DrafterTraffic *out, int64_t *n_known, fr_error *err) {
    LineReader *r;
    const char *line;
    size_t n;
    *out = (DrafterTraffic){0};
    *n_known = 0;
    int got = line_reader_open(&r, path, false, LINE_MAX_BYTES, err);
    if (got) return got;
    while ((got = line_reader_next(r, &line, &n, err)) == 1 && line_reader_is_complete(r)) {
        out->n_lines++;
        out->hash = hash64(line, n, out->hash);
        if (out->n_lines == known->n_lines && out->hash == known->hash) *n_known = (int64_t)out->n_lines;
    }
    line_reader_close(r);
    return got < 0 ? got : FR_OK;
}

/* Finds out which lines of a->traffic a training of that method for `target` reads. With a->init, these are the lines
 * added since that file was trained. Otherwise, they are all lines, and the new ones are those added since a->output
 * was written. *state is to be stored in the drafter's file. */
static int traffic_open(Traffic *out, DrafterTraffic *state, const TrainArgs *a, const char *method, const Gguf *target,
                        fr_error *err) {
    Model *model;
    *out = (Traffic){.path = a->traffic};
    int status = model_open(&model, target, err);
    if (status) return status;
    out->target = drafter_target_fingerprint(model);
    model_close(model);
    status = gguf_check(target, err); /* because the fingerprint has read the weights */
    DrafterTraffic known = remembered(a->init ? a->init : a->output, method, out->target);
    if (!status) status = scan(a->traffic, &known, state, &out->new_line, err);
    if (a->init) out->first_line = out->new_line;
    out->end_line = (int64_t)state->n_lines;
    return status;
}

static int64_t n_right(const TrainSums *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n_heads; i++) n += s->right[i];
    return n;
}

/* Refuses a drafter that predicts held-out records worse than before the training. */
static int traffic_check_gain(const TrainSums *before, const TrainSums *after, const char *output, fr_error *err) {
    if (n_right(after) >= n_right(before)) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s is not written: on the held-out records the drafter was right in %lld predictions before the "
                     "training and in %lld after it; wait for more records, or pass a lower --lr",
                     output, (long long)n_right(before), (long long)n_right(after));
}

/* ---- the figure of a run ------------------------------------------------------------------------------------- */

enum { MAX_POINTS = 100 };

typedef struct Curve {
    double *x, *y;
    int n, capacity;
} Curve;

static bool add(Curve *c, double x, double y) {
    if (c->n == c->capacity) {
        int wanted = c->capacity ? 2 * c->capacity : 256;
        double *xs = realloc(c->x, (size_t)wanted * sizeof *xs);
        if (xs) c->x = xs;
        double *ys = realloc(c->y, (size_t)wanted * sizeof *ys);
        if (ys) c->y = ys;
        if (!xs || !ys) return false;
        c->capacity = wanted;
    }
    c->x[c->n] = x;
    c->y[c->n++] = y;
    return true;
}

static int read_log(const char *path, Curve *train, Curve *valid, fr_error *err) {
    LineReader *r;
    const char *line;
    size_t n;
    int got = line_reader_open(&r, path, false, LINE_MAX_BYTES, err);
    if (got) return got;
    while ((got = line_reader_next(r, &line, &n, err)) == 1) {
        json_t *object = json_loadb(line, n, 0, NULL);
        double step = json_number_value(json_object_get(object, "step"));
        json_t *loss = json_object_get(object, "loss"), *valid_loss = json_object_get(object, "valid_loss");
        bool fits = (!json_is_number(loss) || add(train, step, json_number_value(loss))) &&
                    (!json_is_number(valid_loss) || add(valid, step, json_number_value(valid_loss)));
        json_decref(object);
        if (!fits) {
            got = error_memory(err, "a figure", 1);
            break;
        }
    }
    line_reader_close(r);
    return got;
}

/* Replaces the curve by its means over at most MAX_POINTS stretches, in place. */
static void smooth(Curve *c) {
    int n = c->n < MAX_POINTS ? c->n : MAX_POINTS;
    for (int i = 0; i < n; i++) {
        int from = (int)((int64_t)c->n * i / n), to = (int)((int64_t)c->n * (i + 1) / n);
        double x = 0, y = 0;
        for (int k = from; k < to; k++) x += c->x[k] / (to - from), y += c->y[k] / (to - from);
        c->x[i] = x; /* i <= from: the overwritten values have been read */
        c->y[i] = y;
    }
    c->n = n;
}

/* Draws the losses in a log over the training steps: the training loss smoothed, the validation loss as it is. */
static int train_plot(const char *log, const char *path, fr_error *err) {
    Curve train = {0}, valid = {0};
    int status = read_log(log, &train, &valid, err);
    smooth(&train);
    const PlotSeries series[] = {{.name = "training", .n = train.n, .x = train.x, .y = train.y},
                                 {.name = "held out", .n = valid.n, .x = valid.x, .y = valid.y}};
    const Plot plot = {.kind = PLOT_LINES,
                       .title = "Loss (nats per token)",
                       .x_label = "training step",
                       .series = series,
                       .n_series = 2,
                       .x_from_zero = true};
    if (!status) status = plot_write_svg(&plot, path, err);
    free(train.x), free(train.y), free(valid.x), free(valid.y);
    return status;
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

static void print_plan(const Training *t) {
    const Dataset *d = &t->data;
    const LoopOptions *o = &t->args.loop;
    int64_t n_params = 0;
    for (int32_t i = 0; i < t->trainer->class->n_params(t->trainer); i++)
        n_params += t->trainer->class->param(t->trainer, i)->n;
    printf("%lld document%s, %lld of them held out; %lld token%s to learn, in %lld sequence%s of %d\n",
           (long long)d->n_documents, cli_plural(d->n_documents), (long long)d->n_valid_documents,
           (long long)d->train.n_counted, cli_plural(d->train.n_counted), (long long)d->train.n, cli_plural(d->train.n),
           d->train.length);
    if (d->wrote_plain)
        puts("the vocabulary's file has no chat format that forerun knows, so messages are written as USER: "
             "...\\nASSISTANT: ...");
    if (d->n_lossy)
        printf("warning: the answers of %lld document%s were generated under a lossy rule (distill-data --lossy): they "
               "do not follow the target's distribution, and neither will a drafter that is trained on them\n",
               (long long)d->n_lossy, cli_plural(d->n_lossy));
    if (d->n_other_target || d->n_broken)
        printf("left out: %lld record%s of other models, %lld broken line%s\n", (long long)d->n_other_target,
               cli_plural(d->n_other_target), (long long)d->n_broken, cli_plural(d->n_broken));
    int n_sequences = o->n_sequences * o->n_accumulate;
    printf("%.2f million parameters; %lld step%s of %d sequence%s; products in %s", (double)n_params / 1e6,
           (long long)o->schedule.n_steps, cli_plural(o->schedule.n_steps), n_sequences, cli_plural(n_sequences),
           gemm_description());
    if (t->ranks) printf("; %d processes", train_ranks_size(t->ranks));
    putchar('\n');
    fflush(stdout);
}

static void print_sums(const char *what, const TrainSums *s) {
    if (s->n == 0) return;
    printf(", %s %.4f (right", what, train_sums_loss(s));
    for (int i = 0; i < s->n_heads; i++)
        printf(" %.1f %%", s->of[i] ? 100 * (double)s->right[i] / (double)s->of[i] : 0.0);
    putchar(')');
}

/* Joins words with spaces, as many as fit. */
static void join(char *out, size_t n, char *const *words, int n_words) {
    size_t at = 0;
    *out = '\0';
    for (int i = 0; i < n_words && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", i ? " " : "", words[i]);
}

/* Returns how many words an option takes that changes no byte of the result: 0 if the word is another one. */
static int n_words_without_effect(const char *word) {
    static const char *const flags[] = {"--resume", "--force"}, *const numbers[] = {"--threads", "--ranks"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(numbers[i]);
        if (strcmp(word, flags[i]) == 0) return 1;
        if (strncmp(word, numbers[i], n) == 0 && (word[n] == '=' || !word[n])) return word[n] ? 1 : 2;
    }
    if (strncmp(word, "-t", 2) == 0) return word[2] ? 1 : 2;
    return 0;
}

/* Joins the command line without such options, so that a resumed run, one that replaces a file, and one with another
 * number of threads or processes write the same bytes. */
static void join_command(char *out, size_t n, char *const *argv, int argc) {
    char *words[256] = {(char *)(uintptr_t) "forerun train"};
    int n_words = 1;
    for (int i = 0; i < argc && n_words < (int)(sizeof words / sizeof *words);) {
        int n_left_out = n_words_without_effect(argv[i]);
        if (n_left_out) i += n_left_out;
        else words[n_words++] = argv[i++];
    }
    join(out, n, words, n_words);
}

static int finish(Training *t, fr_error *err) {
    const LoopResult *r = &t->result;
    char names[PATH_BYTES];
    float accuracy[TRAIN_MAX_STEPS * TRAIN_RANKS];
    bool has_accuracy = drafter_trainer_accuracy(&r->valid, accuracy);
    if (t->args.traffic) snprintf(names, sizeof names, "%s", t->args.traffic);
    else join(names, sizeof names, t->args.data.files, t->args.data.n_files);
    const DrafterTraining record = {.command = t->command,
                                    .data = names,
                                    .precision = gemm_precision_name(t->args.precision),
                                    .n_steps = (uint64_t)r->n_steps,
                                    .seed = t->args.loop.seed,
                                    .traffic = t->traffic_state,
                                    .n_tokens = (uint64_t)r->n_steps * (uint64_t)t->args.loop.n_sequences *
                                                (uint64_t)t->args.loop.n_accumulate * (uint64_t)t->data.train.length,
                                    .loss = train_sums_loss(&r->valid),
                                    .accuracy = has_accuracy ? accuracy : NULL,
                                    .n_heads = r->valid.n_heads,
                                    .n_ranks = TRAIN_RANKS};
    int status = t->args.traffic ? traffic_check_gain(&r->valid_before, &r->valid, t->args.output, err) : FR_OK;
    if (!status) status = t->trainer->class->write(t->trainer, t->args.output, &record, err);
    if (status) return status;
    int64_t n_steps = r->n_steps - r->n_steps_before;
    printf("%s: %lld step%s in %.1f s, %.0f tokens/s", t->args.output, (long long)n_steps, cli_plural(n_steps),
           r->seconds, r->tokens_per_s);
    if (r->n_steps_before) printf(", after %lld of earlier runs", (long long)r->n_steps_before);
    print_sums("loss of the last step", &r->train);
    print_sums("of held-out texts", &r->valid);
    putchar('\n');
    if (t->method->needs_model && !train_is_automatic)
        printf("does it pay?  forerun bench -m %s QUESTIONS.jsonl --draft %s:file=%s\n"
               "use it:       forerun chat -m %s --draft %s:file=%s\n",
               t->args.model, t->method->name, t->args.output, t->args.model, t->method->name, t->args.output);
    char previous[PATH_BYTES + 16];
    snprintf(previous, sizeof previous, "%s.previous", t->checkpoint);
    unlink(t->checkpoint); /* not needed once the file is written */
    unlink(previous);
    return t->args.plot ? train_plot(t->log, t->args.plot, err) : FR_OK;
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
    print_plan(t);
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
    return finish(t, err);
}

static int run_method(int argc, char **argv) {
    Training *t = &training;
    t->method = train_method_find(argv[0]);
    join_command(t->command, sizeof t->command, argv, argc);
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

/* method_options.c - the options that all methods of `forerun train` share: files, data, optimiser, and the run
 * itself. */
#include "base/threads.h"
#include "train/records.h"
#include "train/methods.h"
#include "draft/learned/logit_corrections.h"
#include "train/drafter_trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_valid(void *to, const char *text, fr_error *err) {
    TrainArgs *a = to;
    char *end;
    double v = strtod(text, &end);
    (void)err;
    if (end != text && !*end && v >= 0 && v < 1) a->data.valid_share = v;
    else a->data.valid_file = text;
    return FR_OK;
}

static int parse_max_text(void *to, const char *text, fr_error *err) {
    return corpus_parse_size(text, &((TrainArgs *)to)->data.max_text, err);
}

static int parse_checkpoint(void *to, const char *text, fr_error *err) {
    TrainArgs *a = to;
    char *end;
    double v = strtod(text, &end);
    bool is_minutes = end > text && strcmp(end, "m") == 0 && v >= 0.001 && v <= 1e6;
    bool is_steps = end > text && !*end && v >= 1 && v < 0x1p53 && v == floor(v);
    if (!is_minutes && !is_steps)
        return error_set(err, FR_ERR_ARGUMENT,
                         "must be a number of steps, or a number of minutes followed by m, such as 5m");
    a->loop.checkpoint_steps = is_steps ? (int64_t)v : 0;
    a->loop.checkpoint_s = is_minutes ? 60 * v : 0;
    return FR_OK;
}

const Option train_model_options[] = {
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(TrainArgs, model),
     .required = "target",
     .section = "Files",
     .help = "GGUF file of the target that the drafter is trained for"},
    {.key = "init",
     OPT_FILE(TrainArgs, init),
     .help = "start from the parameters in FILE, a drafter of the same method, shape and target, with a new optimiser"},
    {.key = "from-traffic",
     OPT_FILE(TrainArgs, traffic),
     .metavar = "FILE.jsonl",
     .help =
         "learn from the generations of this target in FILE, which 'forerun run --record' wrote, instead of --data; "
         "with --init, from those that are new since then; the old OUTPUT stays unless there are new ones and the "
         "drafter becomes no worse"},
    {.key = NULL},
};

const Option train_vocab_options[] = {
    {.key = "vocab",
     OPT_MODEL(TrainArgs, vocab),
     .required = "vocabulary",
     .section = "Files",
     .help = "GGUF file whose vocabulary and chat format the new model takes over"},
    {.key = "init",
     OPT_FILE(TrainArgs, init),
     .help = "start from the weights in FILE, a model of the same shape and vocabulary, with a new optimiser"},
    {.key = NULL},
};

const Option train_args_options[] = {
    {.key = "data",
     OPT_FILES(TrainArgs, files, data.n_files),
     .is_basic = true,
     .section = "Files",
     .help = "JSON lines (.jsonl, .jsonl.zst) to learn from"},
    {.key = "output",
     .letter = 'o',
     OPT_OUTPUT(TrainArgs, output),
     .required = "output file",
     .help = "the GGUF file that is written at the end"},
    {.key = "force",
     OPT_FLAG(TrainArgs, replaces),
     .help = "replace OUTPUT even if it is a finished model or drafter; --from-traffic needs no --force"},
    {.key = "valid",
     OPT_CUSTOM(parse_valid),
     .metavar = "SHARE|FILE",
     .default_help = "0.01, with --from-traffic 0.1",
     .help = "hold out this share of the documents, or validate on FILE"},

    {.key = "chat",
     OPT_FLAG(TrainArgs, data.pairs_are_chats),
     .section = "Data",
     .help = "\"prompt\" and \"response\" are messages of a chat, not raw text"},
    {.key = "max-text",
     OPT_CUSTOM(parse_max_text),
     .metavar = "SIZE",
     .default_help = CORPUS_MAX_TEXT_DEFAULT,
     .help = CORPUS_MAX_TEXT_HELP},
    {.key = "length",
     OPT_INT(TrainArgs, data.length, 2, 1 << 20),
     .default_value = "256",
     .help = "tokens in a sequence"},
    {.key = "separate",
     OPT_FLAG(TrainArgs, separate),
     .help = "begin a new sequence with each document, instead of packing documents one after another"},
    {.key = "batch",
     OPT_INT(TrainArgs, loop.n_sequences, 1, 1 << 14),
     .default_value = "8",
     .help = "sequences in a micro-batch"},
    {.key = "accumulate",
     OPT_INT(TrainArgs, loop.n_accumulate, 1, 1 << 14),
     .default_value = "1",
     .help = "micro-batches in a training step"},
    {.key = "epochs",
     OPT_REAL(TrainArgs, epochs, 1e-6, 1e6),
     .default_value = "1",
     .help = "number of passes over the data"},
    {.key = "steps",
     OPT_INT(TrainArgs, loop.schedule.n_steps, 1, INT64_MAX >> 32),
     .default_help = "as --epochs says",
     .help = "train for N steps, regardless of --epochs"},

    {.key = "lr",
     OPT_REAL(TrainArgs, loop.schedule.peak, 1e-12, 100),
     .default_value = "0.001",
     .section = "Optimiser",
     .help = "highest learning rate"},
    {.key = "optimizer",
     OPT_CHOICE(TrainArgs, loop.uses_muon, "adamw", "muon"),
     .default_value = "adamw",
     .help = "AdamW; or Muon for the matrices of the network and AdamW for the rest"},
    {.key = "warm-up",
     OPT_INT(TrainArgs, warm_up, 0, INT64_MAX),
     .default_help = "a twentieth of all",
     .help = "steps until the highest rate is reached"},
    {.key = "decay",
     OPT_CHOICE(TrainArgs, loop.schedule.decay, "cosine", "linear"),
     .values = (const int32_t[]){SCHEDULE_COSINE, SCHEDULE_LINEAR},
     .default_value = "cosine",
     .help = "form of the decay after it"},
    {.key = "final-lr",
     OPT_REAL(TrainArgs, loop.schedule.final, 0, 1),
     .metavar = "SHARE",
     .default_value = "0.1",
     .help = "last learning rate, as a share of the highest"},
    {.key = "weight-decay",
     OPT_REAL(TrainArgs, loop.adamw.weight_decay, 0, 10),
     .default_value = "0.1",
     .help = "weight decay of matrices"},
    {.key = "clip",
     OPT_REAL(TrainArgs, loop.clip, 0, 1e9),
     .default_value = "1",
     .help = "largest norm of the gradient; 0: no limit"},
    {.key = "seed",
     OPT_INT(TrainArgs, loop.seed, 0, INT64_MAX),
     .metavar = "S",
     .default_value = "0",
     .help = "seed of the initial weights and of the order of the data"},

    {.key = "resume",
     OPT_FLAG(TrainArgs, loop.resumes),
     .is_basic = true,
     .section = "The run",
     .help = "continue from OUTPUT.checkpoint; the result is the same as without the interruption"},
    {.key = "checkpoint-every",
     OPT_CUSTOM(parse_checkpoint),
     .metavar = "N|Xm",
     .default_help = "5m",
     .help = "write the checkpoint every N steps, or every X minutes"},
    {.key = "valid-every",
     OPT_INT(TrainArgs, loop.valid_every, 1, INT64_MAX),
     .default_help = "20 times in total",
     .help = "validate every N steps"},
    {.key = "log",
     OPT_OUTPUT(TrainArgs, log),
     .default_help = "OUTPUT.log.jsonl",
     .help = "write loss, accuracy and learning rate of each step to FILE, as JSON lines"},
    {.key = "plot",
     OPT_OUTPUT(TrainArgs, plot),
     .metavar = "FILE.svg",
     .help = "draw the losses with gnuplot at the end"},
    {.key = "threads",
     .letter = 't',
     OPT_INT(TrainArgs, n_threads, 1, THREADS_MAX),
     .default_help = "one per core",
     .help = "number of threads; it does not change the result"},
    {.key = "ranks",
     OPT_INT(TrainArgs, n_ranks, 1, 64),
     .word = "numa",
     .word_value = FR_RANKS_NUMA,
     .default_help = "1, or the processes that mpirun has started",
     .help = "number of processes that divide the sequences of each step, each with --threads threads, by default all "
             "of its share of the cores; numa: one for each NUMA node; it does not change the result"},
    {.key = "idle",
     OPT_FLAG(TrainArgs, is_idle),
     .help = "run only while nothing else wants the processor (SCHED_IDLE; where that is refused, nice 19)"},
    {.key = "precision",
     OPT_CHOICE(TrainArgs, precision, "bf16", "f32", "bf16-tiles"),
     .values = (const int32_t[]){GEMM_BF16, GEMM_F32, GEMM_BF16_TILES},
     .default_help =
         "that of the run that --resume continues; else bf16 if the CPU multiplies BF16 faster than floats, "
         "else f32",
     .help = "type that the inputs of matrix products are rounded to; sums are f32, of bf16-tiles in the order of AMX "
             "tiles; the file records it"},
    {.key = NULL},
};

void train_args_defaults(TrainArgs *a) {
    *a = (TrainArgs){.warm_up = -1, .precision = GEMM_NOT_CHOSEN};
    a->data = (DatasetOptions){.files = a->files, .valid_share = -1, .progress = stderr};
    a->loop = (LoopOptions){.valid_every = -1, .checkpoint_s = 300, .progress = stderr};
    a->loop.adamw = (AdamWOptions){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
}

/* The options of all drafters of `forerun train`, and the trainer they lead to. */

enum { MOST_STEPS_AHEAD = 8 };

static int parse_step_weights(void *to, const char *text, fr_error *err) {
    DrafterSettings *s = to;
    const char *at = text;
    for (s->n_step_weights = 0; s->n_step_weights < MOST_STEPS_AHEAD; at++) {
        char *end;
        double w = strtod(at, &end);
        if (end == at || !(w >= 0 && w <= 1e6)) break;
        s->step_weights[s->n_step_weights++] = w;
        at = end;
        if (!*at) return FR_OK;
        if (*at != ',') break;
    }
    return error_set(err, FR_ERR_ARGUMENT, "must be 1 to %d numbers from 0 to 1e6 joined by commas", MOST_STEPS_AHEAD);
}

const Option train_steps_options[] = {
    {.key = "steps-ahead",
     OPT_INT(DrafterSettings, loss.n_steps, 1, MOST_STEPS_AHEAD),
     .section = "The drafter",
     .default_help = "lyanna, space, eagle3 and mtp 3, medusa and hydra 4, redrafter 5, eagle by its --recipe",
     .help = "number of tokens that it learns to predict one after another"},
    {.key = "step-weights",
     OPT_CUSTOM(parse_step_weights),
     .metavar = "W1,W2,...",
     .default_help = "all 1",
     .help = "weight of each step ahead in the loss"},
    {.key = NULL},
};

const Option train_drafter_options[] = {
    {.key = "labels",
     OPT_CHOICE(DrafterSettings, loss.hard_labels, "soft", "hard"),
     .section = "The drafter",
     .default_value = "soft",
     .help = "learn the target's distribution of each token (soft), or the tokens of the data (hard)"},
    {.key = "token-loss-weight",
     OPT_REAL(DrafterSettings, loss.token_weight, 0, 1e6),
     .default_value = "1",
     .help = "weight of the loss of the tokens"},
    {.key = "tv-loss-weight",
     OPT_REAL(DrafterSettings, loss.tv_weight, 0, 1e6),
     .default_value = "0",
     .help = "weight of a further loss: the total variation distance between the distributions of target and drafter, "
             "which is the probability that a token drawn by the drafter is rejected"},
    {.key = "type",
     OPT_CHOICE(DrafterSettings, type, "f16", "f32", "q8_0"),
     .values = (const int32_t[]){TYPE_F16, TYPE_F32, TYPE_Q8_0},
     .default_value = "f16",
     .help = "type of the matrices in the file"},
    {.key = NULL},
};

const Option train_head_tokens_options[] = {
    {.key = "head-tokens",
     OPT_INT(DrafterSettings, n_head_tokens, 1, 1 << 24),
     .section = "The drafter",
     .default_help = "those of --init; else all",
     .help =
         "compute logits only for the N most frequent tokens of the data when drafting (FR-Spec), which makes a large "
         "vocabulary cheap; the others are never drafted"},
    {.key = NULL},
};

/* Chooses the tokens of --head-tokens. */
static int choose_head_tokens(const DrafterSettings *s, const TrainArgs *a, int32_t n_vocab, DrafterTrainerOptions *o,
                              fr_error *err) {
    o->n_head_tokens = s->n_head_tokens;
    if (s->n_head_tokens > n_vocab)
        return error_set(err, FR_ERR_ARGUMENT, "--head-tokens=%d is more than the %d tokens of the target",
                         s->n_head_tokens, n_vocab);
    if (s->n_head_tokens == 0 || s->n_head_tokens == n_vocab) return FR_OK;
    return hot_tokens_choose(&a->dataset->train, n_vocab, s->n_head_tokens, &o->head_tokens, err);
}

static int check_step_weights(DrafterSettings *s, fr_error *err) {
    double sum = 0;
    if (s->n_step_weights == 0) return FR_OK;
    if (s->n_step_weights != s->loss.n_steps)
        return error_set(err, FR_ERR_ARGUMENT, "--step-weights lists %d weights for %d steps ahead: pass one for each",
                         s->n_step_weights, s->loss.n_steps);
    for (int32_t i = 0; i < s->n_step_weights; i++) sum += s->step_weights[i];
    if (sum <= 0) return error_set(err, FR_ERR_ARGUMENT, "--step-weights: one of them must be more than 0");
    s->loss.step_weights = s->step_weights;
    return FR_OK;
}

int train_drafter_check(DrafterSettings *s, fr_error *err) {
    if (s->loss.token_weight > 0 || s->loss.tv_weight > 0 || s->loss.hidden_weight > 0)
        return check_step_weights(s, err);
    return error_set(err, FR_ERR_ARGUMENT,
                     "all weights of the loss are 0, so there is nothing to learn: pass --token-loss-weight=1");
}

/* Appends to a run signature. Words that do not fit are left out, but it has room for all options. */
__attribute__((format(printf, 3, 4))) static void append(char *signature, size_t n_signature, const char *format, ...) {
    size_t n = strlen(signature);
    va_list args;
    va_start(args, format);
    vsnprintf(signature + n, n_signature - n, format, args);
    va_end(args);
}

static void write_signature(const DrafterSettings *s, uint64_t target, char *signature, size_t n_signature) {
    append(signature, n_signature,
           " target=%016llx steps-ahead=%d labels=%s token-loss-weight=%.17g hidden-loss-weight=%.17g",
           (unsigned long long)target, s->loss.n_steps, s->loss.hard_labels ? "hard" : "soft", s->loss.token_weight,
           s->loss.hidden_weight);
    if (s->loss.tv_weight > 0) append(signature, n_signature, " tv-loss-weight=%.17g", s->loss.tv_weight);
    if (s->loss.n_hidden_steps) append(signature, n_signature, " hidden-steps=%d", s->loss.n_hidden_steps);
    if (s->n_head_tokens) append(signature, n_signature, " head-tokens=%d", s->n_head_tokens);
    if (s->noise > 0) append(signature, n_signature, " noise=%.17g", s->noise);
    for (int32_t i = 0; i < s->n_step_weights; i++)
        append(signature, n_signature, "%s%.17g", i ? "," : " step-weights=", s->step_weights[i]);
}

/* Reads the parameters of --init, and their fingerprint in the signature. */
static int read_init(Trainer *t, const NetClass *class, const void *net, const Model *target, const char *path,
                     char *signature, size_t n_signature, fr_error *err) {
    uint64_t fingerprint;
    int status = init_file_read(t, class, net, target, path, &fingerprint, err);
    if (!status) append(signature, n_signature, " init=%016llx", (unsigned long long)fingerprint);
    return status;
}

int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                       const DrafterSettings *s, const TrainArgs *a, char *signature, size_t n_signature,
                       fr_error *err) {
    const Model *model = target->model; /* the trainer's, from now on */
    write_signature(s, drafter_target_fingerprint(model), signature, n_signature);
    DrafterTrainerOptions o = {.class = class,
                               .net = net,
                               .max_length = a->data.length,
                               .type = s->type,
                               .seed = a->loop.seed,
                               .noise = s->noise,
                               .n_threads = a->n_threads};
    int status = choose_head_tokens(s, a, model->hparams.n_vocab, &o, err);
    if (status) {
        frozen_close(target);
        return status;
    }
    status = drafter_trainer_open(out, target, &o, err);
    if (status || !a->init) return status;
    status = read_init(*out, class, net, model, a->init, signature, n_signature, err);
    if (status) {
        (*out)->class->close(*out);
        *out = NULL;
    }
    return status;
}

/* The list of the target's layers that eagle3 and dflash read. */

static int parse_layers(void *to, const char *text, fr_error *err) {
    StreamSettings *s = to;
    const char *at = text;
    for (s->n = 0; s->n < TRAIN_MAX_STREAMS; at++) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 0 || n > 1 << 16) break;
        s->layers[s->n++] = (int32_t)n;
        at = end;
        if (!*at) return FR_OK;
        if (*at != ',') break;
    }
    return error_set(err, FR_ERR_ARGUMENT, "must be 1 to %d numbers of layers joined by commas", TRAIN_MAX_STREAMS);
}

const Option train_stream_options[] = {
    {.key = "layers",
     OPT_CUSTOM(parse_layers),
     .section = "The drafter",
     .metavar = "N1,N2,...",
     .default_help = "those of --init; else 2, n / 2 and n - 3 of n layers, and n / 4, n / 2 and n of fewer than 12",
     .help = "read the target's hidden states after these numbers of layers"},
    {.key = NULL},
};

/* Adds a layer that is read, unless it is read already. */
static void add_stream(StreamList *list, int32_t after) {
    for (int32_t i = 0; i < list->n; i++)
        if (list->layers[i] == after) return;
    list->layers[list->n++] = after;
}

int train_streams_choose(const StreamSettings *s, const Model *target, StreamList *out, fr_error *err) {
    int32_t n = target->hparams.n_layer;
    const int32_t usual[] = {n < 12 ? n / 4 : 2, n / 2, n < 12 ? n : n - 3};
    for (int32_t i = 0; i < 3 && s->n == 0; i++) add_stream(out, usual[i]);
    for (int32_t i = 0; i < s->n; i++) {
        if (s->layers[i] > n)
            return error_set(err, FR_ERR_ARGUMENT, "--layers: the target has %d layers, not %d", n, s->layers[i]);
        add_stream(out, s->layers[i]);
    }
    return FR_OK;
}

bool train_streams_fit(const StreamSettings *s, const StreamList *list) {
    bool is_same = s->n == 0 || s->n == list->n;
    for (int32_t i = 0; i < s->n && is_same; i++) is_same = s->layers[i] == list->layers[i];
    return is_same;
}

int train_streams_keep(FrozenTarget *target, const StreamList *list, fr_error *err) {
    KeptLayers kept = {.n = list->n};
    memcpy(kept.after, list->layers, sizeof list->layers);
    return frozen_keep_layers(target, &kept, err);
}

/* The options that medusa and hydra share. */

const Option train_heads_options[] = {
    {.key = "blocks",
     OPT_INT(HeadsSettings, n_blocks, 1, 8),
     .section = "The drafter",
     .default_value = "1",
     .help = "residual blocks of each head"},
    {.key = "lm-head",
     OPT_CHOICE(HeadsSettings, has_own_output, "target", "own"),
     .default_value = "own",
     .help = "matrix for the logits of each head: its own, or the target's"},
    {.key = NULL},
};

/* Token info for the methods that can add it to their logits: --rank, and the shape that follows the
 * target. */

const Option train_info_options[] = {
    {.key = "rank",
     OPT_INT(InfoSettings, rank, 0, TRAIN_MAX_RANK),
     .section = "The drafter",
     .default_value = "0",
     .help =
         "rank of Lyanna's token info, which predicts the next token from nothing but the last one and is added to the "
         "logits of each step; 0: none"},
    {.key = NULL},
};

InfoShape train_info_shape(const char *method, const FrozenTarget *target, int32_t rank) {
    const Hparams *h = &target->model->hparams;
    return (InfoShape){.method = method, .C = h->n_embd, .V = h->n_vocab, .rank = rank, .rms_eps = h->rms_eps};
}

int train_info_check(const InfoShape *s, fr_error *err) {
    double bytes = (double)s->V * s->V * sizeof(uint16_t);
    if (s->rank == 0 || bytes <= (double)TOKEN_INFO_MAX_BYTES) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "--rank %d: the drafter's table of token info would take %.1f GB for the target's %d tokens; "
                     "leave out --rank, or train lyanna, which can restrict it to hot tokens",
                     s->rank, bytes / 1e9, s->V);
}

void train_info_signature(const InfoShape *s, char *signature, size_t n_signature) {
    size_t n = strlen(signature);
    if (s->rank) snprintf(signature + n, n_signature - n, " rank=%d", s->rank);
}

/* The options that eagle and lyanna share, and the shape of their layer. */

static const char *const regressions[] = {[REGRESSION_MSE] = "mse", [REGRESSION_SMOOTH_L1] = "smooth-l1"};

const Option train_unroll_options[] = {
    {.key = "ff",
     OPT_INT(UnrollSettings, n_ff, 1, 1 << 18),
     .section = "The drafter",
     .default_help = "the target's",
     .help = "width of the layer's feed-forward"},
    {.key = "hidden-loss-weight",
     OPT_REAL(UnrollSettings, drafter.loss.hidden_weight, 0, 1e6),
     .default_value = "1",
     .help = "weight of the loss of the hidden states against the target's"},
    {.key = "hidden-steps",
     OPT_INT(UnrollSettings, drafter.loss.n_hidden_steps, 1, 8),
     .default_help = "all",
     .help = "only the first N steps ahead learn the target's hidden states; the later ones learn the tokens"},
    {.key = "regression",
     OPT_CHOICE(UnrollSettings, drafter.loss.regression, "smooth-l1", "mse"),
     .values = (const int32_t[]){REGRESSION_SMOOTH_L1, REGRESSION_MSE},
     .default_value = "smooth-l1",
     .help = "loss between hidden states"},
    {.key = "confidence",
     OPT_FLAG(UnrollSettings, has_confidence),
     .help = "also train a head that predicts from each state whether the best token will be accepted; drafts are then "
             "shorter where it is unsure"},
    {.key = NULL},
};

UnrollShape train_unroll_shape(const char *method, const FrozenTarget *target, const UnrollSettings *s) {
    const Model *m = target->model;
    const Hparams *h = &m->hparams;
    return (UnrollShape){.method = method,
                         .C = h->n_embd,
                         .n_ff = s->n_ff ? s->n_ff : h->n_ff,
                         .n_head = h->n_head,
                         .n_head_kv = h->n_head_kv,
                         .head_dim = h->head_dim,
                         .rms_eps = h->rms_eps,
                         .rope = &m->ropes[0],
                         .n_steps = s->drafter.loss.n_steps,
                         .fuses_token = true,
                         .state_gradient = 1,
                         .fc_std = start_token_std(target->embd, h->n_vocab, h->n_embd),
                         .qk_start_anew = m->layers[h->n_layer - 1].q_norm != NULL};
}

void train_unroll_set_confidence(UnrollNet *net, const UnrollSettings *s) {
    net->confidence = (ConfidenceShape){.method = net->layer.method, .C = net->layer.C, .exists = s->has_confidence};
    net->loss.has_margins = s->has_confidence;
}

int train_unroll_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                      const UnrollSettings *s, const UnrollShape *shape, const TrainArgs *a, char *signature,
                      size_t n_signature, fr_error *err) {
    size_t n = strlen(signature);
    snprintf(signature + n, n_signature - n, " ff=%d regression=%s%s", shape->n_ff,
             regressions[s->drafter.loss.regression], s->has_confidence ? " confidence=on" : "");
    return train_drafter_open(out, target, class, net, &s->drafter, a, signature, n_signature, err);
}

/* The list of what `forerun train` can train. */

static const TrainMethod *const methods[] = {&train_target, &train_lyanna, &train_eagle, &train_redrafter,
                                             &train_medusa, &train_hydra,  &train_space, &train_eagle3,
                                             &train_dflash, &train_mtp,    NULL};

const TrainMethod *const *train_methods(void) { return methods; }

const TrainMethod *train_method_find(const char *name) {
    for (const TrainMethod *const *m = methods; *m; m++)
        if (strcmp((*m)->name, name) == 0) return *m;
    return NULL;
}

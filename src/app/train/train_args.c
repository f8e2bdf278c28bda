#include "app/train/train_args.h"

#include "base/threads.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_VOCAB = 256, KEY_DATA, KEY_VALID, KEY_CHAT, KEY_SEPARATE, KEY_LENGTH, KEY_BATCH, KEY_ACCUMULATE, KEY_EPOCHS, KEY_STEPS,
       KEY_LR, KEY_WARM_UP, KEY_DECAY, KEY_FINAL, KEY_WEIGHT_DECAY, KEY_CLIP, KEY_SEED, KEY_RESUME, KEY_CHECKPOINT, KEY_VALID_EVERY,
       KEY_LOG, KEY_PLOT, KEY_PRECISION };

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Files:", 1},
    {"model", 'm', "FILE", 0, "GGUF file of the target that a drafter is trained for", 1},
    {"vocab", KEY_VOCAB, "FILE", 0, "GGUF file whose vocabulary and chat format a new model takes over", 1},
    {"data", KEY_DATA, "FILE", 0, "JSON lines (.jsonl, .jsonl.zst) to learn from; may be given several times", 1},
    {"output", 'o', "FILE", 0, "the GGUF file that is written in the end", 1},
    {"valid", KEY_VALID, "PART|FILE", 0, "hold out this part of the documents (default 0.01), or validate on FILE", 1},
    {NULL, 0, NULL, 0, "Data:", 2},
    {"chat", KEY_CHAT, NULL, 0, "\"prompt\" and \"response\" are messages of a chat, not raw text", 2},
    {"length", KEY_LENGTH, "N", 0, "tokens in a sequence (default 256)", 2},
    {"separate", KEY_SEPARATE, NULL, 0, "each document begins a sequence of its own; else they lie one behind the other", 2},
    {"batch", KEY_BATCH, "N", 0, "sequences in a micro-batch (default 8)", 2},
    {"accumulate", KEY_ACCUMULATE, "N", 0, "micro-batches in a step (default 1)", 2},
    {"epochs", KEY_EPOCHS, "X", 0, "how often all data is read (default 1)", 2},
    {"steps", KEY_STEPS, "N", 0, "train for N steps, whatever --epochs says", 2},
    {NULL, 0, NULL, 0, "Optimiser (AdamW):", 3},
    {"lr", KEY_LR, "X", 0, "highest learning rate (default 0.001)", 3},
    {"warm-up", KEY_WARM_UP, "N", 0, "steps until it is reached (default: a twentieth of all)", 3},
    {"decay", KEY_DECAY, "FORM", 0, "cosine (default) or linear", 3},
    {"final-lr", KEY_FINAL, "PART", 0, "the last learning rate, as a part of the highest (default 0.1)", 3},
    {"weight-decay", KEY_WEIGHT_DECAY, "X", 0, "of matrices (default 0.1)", 3},
    {"clip", KEY_CLIP, "X", 0, "largest norm of the gradient (default 1; 0: any)", 3},
    {"seed", KEY_SEED, "S", 0, "of the first weights and of the order of the data (default 0)", 3},
    {NULL, 0, NULL, 0, "The run:", 4},
    {"resume", KEY_RESUME, NULL, 0, "go on from OUTPUT.checkpoint, exactly as if nothing had happened", 4},
    {"checkpoint-every", KEY_CHECKPOINT, "N|Xm", 0, "write it every N steps, or every X minutes (default 5m)", 4},
    {"valid-every", KEY_VALID_EVERY, "N", 0, "validate every N steps (default: 20 times in all)", 4},
    {"log", KEY_LOG, "FILE", 0, "loss, accuracy, learning rate of each step as JSON lines (default OUTPUT.log.jsonl)", 4},
    {"plot", KEY_PLOT, "FILE.svg", 0, "draw the losses with gnuplot in the end", 4},
    {"threads", 't', "N", 0, "threads (default: all cores)", 4},
    {"precision", KEY_PRECISION, "TYPE", 0, "inputs of matrix products: bf16 (default where the CPU multiplies BF16; sums are "
     "f32) or f32; the file names it", 4},
    {0},
};

void train_args_defaults(TrainArgs *a) {
    *a = (TrainArgs){.epochs = 1, .warm_up = -1, .n_threads = threads_n_cores(), .precision = gemm_best_precision()};
    a->data = (DatasetOptions){.files = a->files, .valid_share = 0.01, .length = 256, .packs = true, .progress = stderr};
    a->loop = (LoopOptions){.n_sequences = 8, .n_accumulate = 1, .clip = 1, .valid_every = -1, .checkpoint_s = 300, .progress = stderr};
    a->loop.schedule = (Schedule){.decay = SCHEDULE_COSINE, .peak = 1e-3, .final = 0.1};
    a->loop.adamw = (AdamWOptions){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
}

int64_t train_parse_int(struct argp_state *state, const char *option, const char *arg, int64_t min, int64_t max) {
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (end == arg || *end || errno || v < min || v > max)
        argp_error(state, "%s: '%s' is no whole number from %lld to %lld", option, arg, (long long)min, (long long)max);
    return v;
}

double train_parse_real(struct argp_state *state, const char *option, const char *arg, double min, double max) {
    char *end;
    double v = strtod(arg, &end);
    if (end == arg || *end || !(v >= min && v <= max))
        argp_error(state, "%s: '%s' is no number from %g to %g", option, arg, min, max);
    return v;
}

static void parse_valid(TrainArgs *a, char *arg) {
    char *end;
    double v = strtod(arg, &end);
    if (end != arg && !*end && v >= 0 && v < 1) a->data.valid_share = v;
    else a->data.valid_file = arg;
}

static void parse_checkpoint(TrainArgs *a, struct argp_state *state, char *arg) {
    size_t n = strlen(arg);
    bool minutes = n > 1 && arg[n - 1] == 'm';
    if (minutes) arg[n - 1] = '\0';
    a->loop.checkpoint_steps = minutes ? 0 : train_parse_int(state, "--checkpoint-every", arg, 1, INT64_MAX);
    a->loop.checkpoint_s = minutes ? 60 * train_parse_real(state, "--checkpoint-every", arg, 0.001, 1e6) : 0;
}

static void parse_decay(TrainArgs *a, struct argp_state *state, const char *arg) {
    bool linear = strcmp(arg, "linear") == 0;
    if (!linear && strcmp(arg, "cosine") != 0) argp_error(state, "--decay: '%s' is neither cosine nor linear", arg);
    a->loop.schedule.decay = linear ? SCHEDULE_LINEAR : SCHEDULE_COSINE;
}

static GemmPrecision parse_precision(struct argp_state *state, const char *arg) {
    for (GemmPrecision p = GEMM_F32; p <= GEMM_BF16; p++)
        if (strcmp(arg, gemm_precision_name(p)) == 0) return p;
    argp_error(state, "--precision: '%s' is neither bf16 nor f32", arg);
    return GEMM_F32;
}

static error_t parse_optimiser(int key, char *arg, struct argp_state *state, TrainArgs *a) {
    switch (key) {
    case KEY_LR: a->loop.schedule.peak = train_parse_real(state, "--lr", arg, 1e-12, 100); return 0;
    case KEY_WARM_UP: a->warm_up = train_parse_int(state, "--warm-up", arg, 0, INT64_MAX); return 0;
    case KEY_DECAY: parse_decay(a, state, arg); return 0;
    case KEY_FINAL: a->loop.schedule.final = train_parse_real(state, "--final-lr", arg, 0, 1); return 0;
    case KEY_WEIGHT_DECAY: a->loop.adamw.weight_decay = train_parse_real(state, "--weight-decay", arg, 0, 10); return 0;
    case KEY_CLIP: a->loop.clip = train_parse_real(state, "--clip", arg, 0, 1e9); return 0;
    case KEY_SEED: a->loop.seed = (uint64_t)train_parse_int(state, "--seed", arg, 0, INT64_MAX); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_data(int key, char *arg, struct argp_state *state, TrainArgs *a) {
    switch (key) {
    case KEY_DATA:
        if (a->data.n_files == TRAIN_MAX_FILES) argp_error(state, "--data: at most %d files", TRAIN_MAX_FILES);
        a->files[a->data.n_files++] = arg;
        return 0;
    case KEY_VALID: parse_valid(a, arg); return 0;
    case KEY_CHAT: a->data.pairs_are_chats = true; return 0;
    case KEY_SEPARATE: a->data.packs = false; return 0;
    case KEY_LENGTH: a->data.length = (int32_t)train_parse_int(state, "--length", arg, 2, 1 << 20); return 0;
    case KEY_BATCH: a->loop.n_sequences = (int32_t)train_parse_int(state, "--batch", arg, 1, 1 << 14); return 0;
    case KEY_ACCUMULATE: a->loop.n_accumulate = (int32_t)train_parse_int(state, "--accumulate", arg, 1, 1 << 14); return 0;
    case KEY_EPOCHS: a->epochs = train_parse_real(state, "--epochs", arg, 1e-6, 1e6); return 0;
    case KEY_STEPS: a->loop.schedule.n_steps = train_parse_int(state, "--steps", arg, 1, INT64_MAX >> 32); return 0;
    default: return parse_optimiser(key, arg, state, a);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    TrainArgs *a = state->input;
    switch (key) {
    case 'm': a->model = arg; return 0;
    case KEY_VOCAB: a->vocab = arg; return 0;
    case 'o': a->output = arg; return 0;
    case 't': a->n_threads = (int)train_parse_int(state, "--threads", arg, 1, THREADS_MAX); return 0;
    case KEY_PRECISION: a->precision = parse_precision(state, arg); return 0;
    case KEY_RESUME: a->loop.resumes = true; return 0;
    case KEY_CHECKPOINT: parse_checkpoint(a, state, arg); return 0;
    case KEY_VALID_EVERY: a->loop.valid_every = train_parse_int(state, "--valid-every", arg, 1, INT64_MAX); return 0;
    case KEY_LOG: a->log = arg; return 0;
    case KEY_PLOT: a->plot = arg; return 0;
    case ARGP_KEY_END:
        if (a->data.n_files == 0) argp_error(state, "what to learn from? --data FILE.jsonl");
        if (!a->output) argp_error(state, "where to? -o FILE.gguf");
        return 0;
    default: return parse_data(key, arg, state, a);
    }
}

const struct argp train_args_argp = {.options = option_table, .parser = parse};

TensorType train_parse_type(struct argp_state *state, const char *arg) {
    if (strcmp(arg, "f32") == 0) return TYPE_F32;
    if (strcmp(arg, "q8_0") == 0) return TYPE_Q8_0;
    if (strcmp(arg, "f16") != 0) argp_error(state, "--type: '%s' is none of f16, f32, q8_0", arg);
    return TYPE_F16;
}

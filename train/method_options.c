/* method_options.c - the list of the methods of `forerun train`, and the options that all of them share: files, data,
 * optimiser, and the run itself. */
#include "train/methods.h"

#include "base/threads.h"
#include "train/records.h"

#include <math.h>
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

/* ---- the list of what `forerun train` can train ------------------------------------------------------------------ */

static const TrainMethod *const methods[] = {&train_target, &train_lyanna, &train_eagle, &train_redrafter,
                                             &train_medusa, &train_hydra,  &train_space, &train_eagle3,
                                             &train_dflash, &train_mtp,    NULL};

const TrainMethod *const *train_methods(void) { return methods; }

const TrainMethod *train_method_find(const char *name) {
    for (const TrainMethod *const *m = methods; *m; m++)
        if (strcmp((*m)->name, name) == 0) return *m;
    return NULL;
}

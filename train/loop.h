/* loop.h - the training loop: order of the data, gradient accumulation, schedule, clipping, steps, validation,
 * checkpoints.
 *
 * One training step takes n_accumulate micro-batches of n_sequences sequences; their gradients are added in a tree over
 * all sequences of the step (gradients.h), and the loss is the mean over all predictions in the loss mask of the step.
 * Step s reads the sequences from number s * n_accumulate * n_sequences on (sequences_batch), with a learning rate that
 * depends only on s. So a run that resumes from a checkpoint does exactly what an undisturbed run does. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "base/error.h"
#include "train/dataset.h"
#include "train/optimizer.h"
#include "train/drafter_trainer.h"
#include "train/train_ranks.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct LoopOptions {
    const char *method; /* beginning of the run signature, for what the options below lack: "target layers=2 ..." */
    int32_t n_sequences, n_accumulate;
    uint64_t seed;     /* the seed of the order of the data */
    int n_threads;     /* share the optimiser's step; 0: one thread. The bits do not depend on it */
    Ranks *ranks;      /* share the sequences of a step (train_ranks.h); NULL: one process */
    Schedule schedule; /* its n_steps is the length of the run */
    AdamWOptions adamw;
    bool uses_muon;           /* for the parameters with n_rows > 0, with AdamW's weight decay */
    double clip;              /* largest gradient norm; 0: none */
    bool validates_first;     /* validate before the first step, too */
    int64_t valid_every;      /* steps between validations; 0: only at the end. Without held-out data there is none */
    const char *checkpoint;   /* path; NULL: no checkpoints */
    int64_t checkpoint_steps; /* steps between checkpoints; 0: no limit by steps */
    double checkpoint_s;      /* seconds between checkpoints; 0: no limit by time */
    bool resumes;             /* start from the checkpoint */
    const char *log;          /* path; NULL: no log */
    /* Not 0: the run writes a checkpoint and ends with FR_ERR_CANCELLED; may be NULL. */
    const volatile sig_atomic_t *stop;
    FILE *progress; /* where a progress bar is drawn; NULL: nowhere */
} LoopOptions;

typedef struct LoopResult {
    int64_t n_steps, n_steps_before; /* done in all; done before this process resumed the run */
    TrainSums train, valid;          /* of the last step, and of the last validation (n = 0: there was none) */
    TrainSums valid_before;          /* before the first step, if validates_first */
    double seconds, tokens_per_s;    /* time of this process; tokens per second, in the loss or not */
} LoopResult;

/* *result says what was done, on failure too. With ranks, rank 0 calls loop_run and all others call loop_follow, which
 * returns when rank 0 has ended. The options of those are the same, but of the outputs, the checkpoint and the times
 * only those of rank 0 matter. */
int loop_run(Trainer *t, const Dataset *data, const LoopOptions *options, LoopResult *result, fr_error *err);
int loop_follow(Trainer *t, const Dataset *data, const LoopOptions *options, fr_error *err);

/* The log of a training run: a file of JSON lines, which a resumed run continues.
 *
 *     {"step": 12, "loss": 3.21, "accuracy": [0.31], "lr": 0.0003, "gradient_norm": 0.9, "tokens": 4096,
 *      "tokens_per_s": 5100, "cpu_seconds": 9.6}
 *     {"step": 12, "valid_loss": 3.30, "valid_accuracy": [0.30], "cpu_seconds": 9.6}
 *
 * cpu_seconds is the processor time of all steps so far, those before a resumption included; validations and
 * checkpoints are not in it, and of several ranks only rank 0 is. */

typedef struct TrainLog {
    const char *path; /* borrowed */
    FILE *file;       /* NULL: no log is kept */
    double cpu_seconds;
} TrainLog;

typedef struct TrainLogStep {
    double rate, gradient_norm, tokens_per_s;
    double cpu_seconds; /* processor time of this step */
} TrainLogStep;

/* Returns the mean loss of a prediction; 0 where no prediction was in the loss. */
static inline double train_sums_loss(const TrainSums *s) { return s->n ? s->loss / (double)s->n : 0; }

/* Removes the lines of steps after n_steps, which are about to be written again. path NULL: no log. */
int train_log_open(TrainLog *log, const char *path, int64_t n_steps, fr_error *err);
void train_log_close(TrainLog *log);

int train_log_step(TrainLog *log, int64_t step, const TrainSums *sums, const TrainLogStep *figures, fr_error *err);
int train_log_valid(TrainLog *log, int64_t step, const TrainSums *sums, fr_error *err);

/* The complete state of a training run in one file, from which it resumes exactly where it was.
 *
 * A GGUF file: float32 arrays as tensors, the rest as key-values, with a fingerprint (XXH3) of everything. It is
 * written to a temporary file, flushed to the disk and renamed, so that a kill at any moment leaves a complete
 * checkpoint; the one before it stays as PATH.previous. */

typedef struct CheckpointArray {
    const char *name; /* unique */
    int64_t n;        /* at least 1 */
    float *data;      /* [n] */
    bool not_negative;
} CheckpointArray;

typedef struct Checkpoint {
    int64_t step;              /* training steps done */
    int64_t n_steps;           /* the steps of the whole run */
    uint64_t data;             /* fingerprint of the training data */
    const char *run_signature; /* all options that determine the result: "seed=1 batch=8 ..." */
    const CheckpointArray *arrays;
    int n_arrays;
} Checkpoint;

/* An existing file at `path` becomes PATH.previous; on failure it stays in place. */
int checkpoint_write(const char *path, const Checkpoint *c, fr_error *err);

/* Fills c->step and the arrays. Refuses, before it touches them, a file that is truncated or damaged, numbers that no
 * run computes (NaN, infinity, negative squares), and (FR_ERR_MISMATCH) a file whose data, run signature or arrays
 * differ from those of c, or whose step is beyond c->n_steps. */
int checkpoint_read(const char *path, Checkpoint *c, fr_error *err);

/* Copies the value of an option in the run signature of a checkpoint, "NAME=VALUE" between blanks, to value. false: the
 * file is no checkpoint or has no such option. */
bool checkpoint_option(const char *path, const char *name, char *value, size_t size);

#endif

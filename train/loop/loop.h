/* loop.h - the training loop: order of the data, gradient accumulation, schedule, clipping, steps, validation,
 * checkpoints.
 *
 * One training step takes n_accumulate micro-batches of n_sequences sequences; their gradients are added, and the
 * loss is the mean over all predictions in the loss mask of the step. Step s reads the sequences from number s *
 * n_accumulate * n_sequences on (sequences_batch), with a learning rate that is a function of s alone. So a run that
 * resumes from a checkpoint does exactly what an undisturbed run does. */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include "train/loop/adamw.h"
#include "train/data/dataset.h"
#include "train/loop/schedule.h"

#include <signal.h>

typedef struct LoopOptions {
    const char *method; /* beginning of the run signature, for what the options below lack: "target layers=2 ..." */
    int32_t n_sequences, n_accumulate;
    uint64_t seed;     /* of the order of the data */
    int n_threads;     /* share the optimiser's step; 0: one thread. The bits do not depend on it */
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
    const volatile sig_atomic_t
        *stop;      /* not 0: the run writes a checkpoint and ends with FR_ERR_CANCELLED; may be NULL */
    FILE *progress; /* where a progress bar is drawn; NULL: nowhere */
} LoopOptions;

typedef struct LoopResult {
    int64_t n_steps, n_steps_before; /* done in all; done before this process resumed the run */
    TrainSums train, valid;          /* of the last step; of the last validation, with n = 0 where there was none */
    TrainSums valid_before;          /* before the first step, if validates_first */
    double seconds, tokens_per_s;    /* of this process; tokens per second, in the loss or not */
} LoopResult;

/* *result says what was done, on failure too. */
int loop_run(Trainer *t, const Dataset *data, const LoopOptions *options, LoopResult *result, fr_error *err);

#endif

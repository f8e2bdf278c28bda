/* loop.h - trains a trainer: data, order, accumulation, schedule, clipping, steps, validation, checkpoints.
 *
 * One step takes n_accumulate micro-batches of n_sequences sequences; their gradients are added, and the loss is the mean
 * over all predictions of the step that count. Step s of the run reads the sequences from place
 * s * n_accumulate * n_sequences on (sequences_batch), at a rate that is a function of s alone: so a run that goes on
 * from a checkpoint does exactly what the undisturbed one does. */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include "train/loop/adamw.h"
#include "train/data/dataset.h"
#include "train/loop/schedule.h"

#include <signal.h>

typedef struct LoopOptions {
    const char *method;         /* words that tell what is trained and how, beside what stands here: "target layers=2 ..." */
    int32_t n_sequences, n_accumulate;
    uint64_t seed;              /* of the order of the data */
    int n_threads;              /* that share the optimiser's step; 0: one. No bit depends on them */
    Schedule schedule;          /* its n_steps is the length of the run */
    AdamWOptions adamw;
    double clip;                /* largest gradient norm; 0: none */
    int64_t valid_every;        /* steps; 0: at the end only. Without held out data: never */
    const char *checkpoint;     /* path; NULL: none is written */
    int64_t checkpoint_steps;   /* one after so many steps; 0: not by steps */
    double checkpoint_s;        /* one when the last is so many seconds old; 0: not by time */
    bool resumes;               /* goes on from the checkpoint */
    const char *log;            /* path; NULL: none */
    const volatile sig_atomic_t *stop; /* not 0: a checkpoint is written and the run ends with FR_ERR_CANCELLED; may be NULL */
    FILE *progress;             /* NULL: no bar */
} LoopOptions;

typedef struct LoopResult {
    int64_t n_steps, n_steps_before; /* done in all; of them by the run that was resumed */
    TrainSums train, valid;          /* of the last step; of the last validation, n = 0 where there was none */
    double seconds, tokens_per_s;    /* of this process; tokens read, counted or not */
} LoopResult;

/* *result is filled in any case with what was done. */
int loop_run(Trainer *t, const Dataset *data, const LoopOptions *options, LoopResult *result, fr_error *err);

#endif

/* train_log.h - the log of a training run: a file of JSON lines, which a resumed run continues.
 *
 *     {"step": 12, "loss": 3.21, "accuracy": [0.31], "lr": 0.0003, "gradient_norm": 0.9, "tokens": 4096, "tokens_per_s": 5100,
 *      "cpu_seconds": 9.6}
 *     {"step": 12, "valid_loss": 3.30, "valid_accuracy": [0.30], "cpu_seconds": 9.6}
 *
 * cpu_seconds is the processor time of all steps so far, those before a resumption included; validations and checkpoints
 * are not in it. */
#ifndef LOOP_TRAIN_LOG_H
#define LOOP_TRAIN_LOG_H

#include "train/nets/trainer.h"

#include <stdio.h>

typedef struct TrainLog {
    const char *path; /* borrowed */
    FILE *file;       /* NULL: no log is kept */
    double cpu_seconds;
} TrainLog;

typedef struct TrainLogStep {
    double rate, gradient_norm, tokens_per_s;
    double cpu_seconds; /* of this step */
} TrainLogStep;

/* The mean loss of a prediction; 0 where no prediction was in the loss. */
static inline double train_sums_loss(const TrainSums *s) { return s->n ? s->loss / (double)s->n : 0; }

/* Removes the lines of steps after n_steps, which are about to be written again. path NULL: no log. */
int train_log_open(TrainLog *log, const char *path, int64_t n_steps, fr_error *err);
void train_log_close(TrainLog *log);

int train_log_step(TrainLog *log, int64_t step, const TrainSums *sums, const TrainLogStep *figures, fr_error *err);
int train_log_valid(TrainLog *log, int64_t step, const TrainSums *sums, fr_error *err);

#endif

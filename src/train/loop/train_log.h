/* train_log.h - what happened in a training run: a file of JSON lines, which a resumed run goes on with.
 *
 *     {"step": 12, "loss": 3.21, "accuracy": [0.31], "lr": 0.0003, "gradient_norm": 0.9, "tokens": 4096, "tokens_per_s": 5100}
 *     {"step": 12, "valid_loss": 3.30, "valid_accuracy": [0.30]}
 */
#ifndef LOOP_TRAIN_LOG_H
#define LOOP_TRAIN_LOG_H

#include "train/nets/trainer.h"

#include <stdio.h>

typedef struct TrainLog {
    const char *path; /* borrowed */
    FILE *file;       /* NULL: no log is kept */
} TrainLog;

typedef struct TrainLogStep {
    double rate, gradient_norm, tokens_per_s;
} TrainLogStep;

/* The mean loss of a prediction that counts; 0 where none did. */
static inline double train_sums_loss(const TrainSums *s) { return s->n ? s->loss / (double)s->n : 0; }

/* Lines of steps after n_steps are taken out: they are about to be written again. path NULL: no log. */
int train_log_open(TrainLog *log, const char *path, int64_t n_steps, fr_error *err);
void train_log_close(TrainLog *log);

int train_log_step(TrainLog *log, int64_t step, const TrainSums *sums, const TrainLogStep *figures, fr_error *err);
int train_log_valid(TrainLog *log, int64_t step, const TrainSums *sums, fr_error *err);

#endif

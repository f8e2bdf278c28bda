/* gradients.h - data parallelism over sequences: each thread takes whole sequences and has a gradient of its own, and
 * the gradients are added at the end.
 *
 * Threads do not wait for each other inside a layer. The result depends on the batch and the number of threads, not on
 * which thread did what: run r of consecutive sequences adds to gradient r, and the gradients are added in order. */
#ifndef NETS_GRADIENTS_H
#define NETS_GRADIENTS_H

#include "base/mem.h"
#include "base/threads.h"
#include "train/nets/trainer.h"

typedef struct Gradients {
    ThreadPool *pool;
    int n_threads;
    int64_t n_weights;
    float **of_run;  /* [n_threads][n_weights] */
    TrainSums *sums; /* [n_threads] */
    Arena arena;
} Gradients;

/* After a failure gradients_close is safe; a zeroed struct is fine, too. */
int gradients_open(Gradients *g, int64_t n_weights, int n_threads, fr_error *err);
void gradients_close(Gradients *g);

/* Processes sequence i of the batch in run i_run, below n_threads, which selects the activations to work in. Adds to
 * grads (NULL: no gradient) and to the sums. */
typedef void (*LearnSequence)(void *ctx, int i_run, int32_t i, float *grads, TrainSums *sums);

/* Processes all n sequences. total: [n_weights], added to; NULL: no gradient. */
void gradients_run(Gradients *g, int32_t n, LearnSequence fn, void *ctx, float *total, TrainSums *sums);

#endif

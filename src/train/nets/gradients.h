/* gradients.h - threads that each take whole sequences, with a gradient of their own; then all are added up.
 *
 * Nobody waits inside a layer, and what comes out depends on the batch and the number of threads, not on which thread did
 * what: run r of the sequences goes into gradient r, and gradients are added in order. */
#ifndef NETS_GRADIENTS_H
#define NETS_GRADIENTS_H

#include "base/arena.h"
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

/* After a failure gradients_close is safe on a zeroed struct. */
int gradients_open(Gradients *g, int64_t n_weights, int n_threads, fr_error *err);
void gradients_close(Gradients *g);

/* Learns sequence i of the batch in run i_run (below n_threads: what to work in): adds to grads, NULL for the sums alone. */
typedef void (*LearnSequence)(void *ctx, int i_run, int32_t i, float *grads, TrainSums *sums);

/* All n sequences. total: [n_weights], added to; NULL: the sums alone. */
void gradients_run(Gradients *g, int32_t n, LearnSequence fn, void *ctx, float *total, TrainSums *sums);

#endif

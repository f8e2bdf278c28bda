/* adamw.h - AdamW (arXiv 1711.05101, algorithm 2) over the parameters of a trainer, and clipping by global norm. */
#ifndef LOOP_ADAMW_H
#define LOOP_ADAMW_H

#include "base/mem.h"
#include "train/nets/trainer.h"

typedef struct AdamWOptions {
    double beta1, beta2; /* decay of the two running means: 0.9 and 0.95 are usual */
    double eps;          /* 1e-8 */
    double weight_decay; /* of the parameters that decay; 0.1 is usual */
} AdamWOptions;

typedef struct AdamW {
    AdamWOptions options;
    int64_t n_steps;      /* steps done */
    int64_t n;            /* numbers in all parameters together */
    float *mean, *square; /* [n] running means of the gradient and of its square, parameter after parameter */
    Arena arena;
    int n_threads;        /* share the work of a step; the bits do not depend on them */
    bool leaves_matrices; /* a step leaves parameters with n_rows > 0 to Muon (muon.h) */
} AdamW;

/* Allocates the means of t's parameters, all zero; one thread, until n_threads is set. A checkpoint holds n_steps, mean
 * and square. After a failure adamw_close is safe. */
int adamw_open(AdamW *a, const AdamWOptions *options, Trainer *t, fr_error *err);
void adamw_close(AdamW *a);

/* One step at learning rate `rate`. Each gradient is first multiplied by `scale` (see clip_scale). */
void adamw_step(AdamW *a, Trainer *t, double rate, double scale);

/* The Euclidean norm of all gradients together; its bits do not depend on the number of threads. */
double trainer_gradient_norm(Trainer *t, int n_threads);
void trainer_zero_gradients(Trainer *t);
/* The factor that brings gradients of this norm down to at most `max`; 1 where max is 0 (no clipping). */
double clip_scale(double norm, double max);

#endif

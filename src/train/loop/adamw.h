/* adamw.h - AdamW (arXiv 1711.05101, algorithm 2) over the parameters of a trainer, and clipping by global norm. */
#ifndef LOOP_ADAMW_H
#define LOOP_ADAMW_H

#include "base/arena.h"
#include "train/nets/trainer.h"

typedef struct AdamWOptions {
    double beta1, beta2;  /* how much of the running means is kept in a step: 0.9 and 0.95 are usual */
    double eps;           /* 1e-8 */
    double weight_decay;  /* of parameters that decay; 0.1 is usual */
} AdamWOptions;

typedef struct AdamW {
    AdamWOptions options;
    int64_t n_steps;      /* done */
    int64_t n;            /* parameters in all */
    float *mean, *square; /* [n] running means of the gradient and its square, the params one after the other */
    Arena arena;
    int n_threads;        /* that share a step; its bits do not depend on them */
} AdamW;

/* Room for the parameters of t, all means zero; one thread, until n_threads is set. A checkpoint holds n_steps, mean and square. */
int adamw_open(AdamW *a, const AdamWOptions *options, Trainer *t, fr_error *err);
void adamw_close(AdamW *a);

/* One step at learning rate `rate`. Each gradient is multiplied by `scale` first: that of clipping. */
void adamw_step(AdamW *a, Trainer *t, double rate, double scale);

/* The Euclidean norm of all gradients together; its bits do not depend on the number of threads. */
double trainer_gradient_norm(Trainer *t, int n_threads);
void trainer_zero_gradients(Trainer *t);
/* What gradients of this norm are multiplied by so that it is at most `max`; 1 where max is 0 (no clipping). */
double clip_scale(double norm, double max);

#endif

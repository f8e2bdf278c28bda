/* optimizer.h - the learning rate of each step, AdamW and Muon. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "base/mem.h"
#include "train/drafter_trainer.h"

#include <stdint.h>

typedef enum ScheduleDecay {
    SCHEDULE_LINEAR, /* a straight line: 1 - p */
    SCHEDULE_COSINE, /* half a cosine: (1 + cos(pi p)) / 2 (arXiv 1608.03983 without restarts) */
} ScheduleDecay;

typedef struct Schedule {
    ScheduleDecay decay;
    double peak;       /* learning rate after the warm-up */
    double final;      /* the final rate as a fraction of the peak, 0 .. 1 */
    int64_t n_warm_up; /* steps; step s of them has the rate peak * (s + 1) / n_warm_up */
    int64_t n_hold;    /* steps at the peak before the decay begins */
    int64_t n_steps;   /* steps of the whole run; after them the rate stays at its final value */
} Schedule;

/* Returns the learning rate of training step `step`, counted from 0: a linear warm-up, then a decay from `peak` to
 * `peak * final`. */
double schedule_rate(const Schedule *s, int64_t step);

/* AdamW (arXiv 1711.05101, algorithm 2) over the parameters of a trainer, and clipping by global norm. */

typedef struct AdamWOptions {
    double beta1, beta2; /* decay of the two running means: 0.9 and 0.95 are usual */
    double eps;          /* 1e-8 */
    double weight_decay; /* for the parameters that decay; 0.1 is usual */
} AdamWOptions;

typedef struct AdamW {
    AdamWOptions options;
    int64_t n_steps;      /* steps done */
    int64_t n;            /* numbers in all parameters together */
    float *mean, *square; /* [n] running means of the gradient and of its square, parameter after parameter */
    Arena arena;
    int n_threads;        /* share the work of a step; the bits do not depend on them */
    bool leaves_matrices; /* a step leaves parameters with n_rows > 0 to muon_step */
} AdamW;

/* Allocates the means of t's parameters, all zero; one thread, until n_threads is set. A checkpoint holds n_steps, mean
 * and square. After a failure adamw_close is safe. */
int adamw_open(AdamW *a, const AdamWOptions *options, Trainer *t, fr_error *err);
void adamw_close(AdamW *a);

/* One step at learning rate `rate`. Each gradient is first multiplied by `scale` (see clip_scale). */
void adamw_step(AdamW *a, Trainer *t, double rate, double scale);

/* Returns the Euclidean norm of all gradients together; its bits do not depend on the number of threads. */
double trainer_gradient_norm(Trainer *t, int n_threads);
void trainer_zero_gradients(Trainer *t);
/* Returns the factor that brings gradients of this norm down to at most `max`; 1 where max is 0 (no clipping). */
double clip_scale(double norm, double max);

/* Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon; scaled as in arXiv 2502.16982) moves the
 * matrices of a network by steps whose singular values are all nearly 1. */

typedef struct Muon {
    int n_threads;
    int64_t n_room; /* floats that a thread needs */
    float *room;    /* [n_threads][n_room] */
    Arena arena;
} Muon;

/* For the parameters of t with n_rows > 0. After a failure muon_close is safe. */
int muon_open(Muon *m, Trainer *t, int n_threads, fr_error *err);
void muon_close(Muon *m);

/* One step of those parameters; adamw_step does the others. Their part of a->mean is the momentum. Each gradient is
 * first multiplied by `scale`. The bits do not depend on the number of threads. Call gemm_open first. */
void muon_step(Muon *m, AdamW *a, Trainer *t, double rate, double scale);

#endif

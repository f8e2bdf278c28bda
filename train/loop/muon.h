/* muon.h - Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon; scaled as in arXiv 2502.16982): steps
 * of the matrices of a network whose singular values are all nearly 1. */
#ifndef LOOP_MUON_H
#define LOOP_MUON_H

#include "train/loop/adamw.h"

typedef struct Muon {
    int n_threads;
    int64_t n_room; /* floats that a thread needs */
    float *room;    /* [n_threads][n_room] */
    Arena arena;
} Muon;

/* For the parameters of t with n_rows > 0. After a failure muon_close is safe. */
int muon_open(Muon *m, Trainer *t, int n_threads, fr_error *err);
void muon_close(Muon *m);

/* One step of those parameters, of which adamw_step does the others; a->mean of theirs is the momentum. Each gradient is
 * first multiplied by `scale`. The bits do not depend on the number of threads. Call gemm_open first. */
void muon_step(Muon *m, AdamW *a, Trainer *t, double rate, double scale);

#endif

/* multiplier.h - products with packed matrices outside the executor: for drafters with weights of their own, and for
 * the target's LM head applied to rows that are not the target's. The same kernels, so the same bits. */
#ifndef CPU_MULTIPLIER_H
#define CPU_MULTIPLIER_H

#include "kernels/kernels.h"

typedef struct Multiplier Multiplier; /* used by one thread at a time */

/* For inputs of at most max_in floats and max_rows rows at once. All memory is taken here. */
int multiplier_open(Multiplier **out, const Kernels *kernels, int n_threads, int64_t max_in, int32_t max_rows,
                    fr_error *err);
void multiplier_close(Multiplier *m); /* NULL is fine */

/* y[r][o] = sum_k w[o][k] x[r][k]. x: [n_rows][n_in], y: [n_rows][n_out]; no rows are fine. */
void multiplier_run(Multiplier *m, const PackedMatrix *w, const float *x, int32_t n_rows, float *y);

#endif

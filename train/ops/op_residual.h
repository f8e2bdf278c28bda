/* op_residual.h - the block of Medusa's, Hydra's and ReDrafter's heads: y = x + SiLU(A x + a), and its derivatives. */
#ifndef OPS_OP_RESIDUAL_H
#define OPS_OP_RESIDUAL_H

#include "train/ops/real.h"

/* y, x, sum: [n_rows][n]; sum = A x + a is written, for the backward pass; w: [n][n]; b: [n] */
void residual_forward(real *y, real *sum, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n);
/* dx: [n_rows][n] or NULL; dw: [n][n]; db: [n]; scratch: [n_rows][n] */
void residual_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *sum, const real *w,
                       real *scratch, int64_t n_rows, int64_t n);

#endif

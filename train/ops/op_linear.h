/* op_linear.h - y = x W^T + b, and its derivatives. */
#ifndef OPS_OP_LINEAR_H
#define OPS_OP_LINEAR_H

#include "train/ops/real.h"

/* y: [n_rows][n_out] is written; x: [n_rows][n_in]; w: [n_out][n_in]; b: [n_out] or NULL */
void linear_forward(real *y, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n_in, int64_t n_out);
/* dx: [n_rows][n_in]; dw: [n_out][n_in]; db: [n_out]; each may be NULL. dy: [n_rows][n_out] */
void linear_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *w, int64_t n_rows,
                     int64_t n_in, int64_t n_out);

#endif

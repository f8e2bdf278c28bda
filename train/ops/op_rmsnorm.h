/* op_rmsnorm.h - RMSNorm (arXiv 1910.07467), and its derivatives. */
#ifndef OPS_OP_RMSNORM_H
#define OPS_OP_RMSNORM_H

#include "train/ops/real.h"

/* y, x: [n_rows][n]; w: [n]; inverse_rms: [n_rows], written, for the backward pass */
void rmsnorm_forward(real *y, real *inverse_rms, const real *x, const real *w, int64_t n_rows, int64_t n, real eps);
/* dx: [n_rows][n]; dw: [n] or NULL (frozen); dy, x: [n_rows][n] */
void rmsnorm_backward(real *dx, real *dw, const real *dy, const real *x, const real *w, const real *inverse_rms,
                      int64_t n_rows, int64_t n);

#endif

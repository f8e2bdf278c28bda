/* op_residual.c - with s = A x + a:  y = x + SiLU(s),  ds = dy SiLU'(s),  dx = dy + A^T ds,  dA = ds x^T,  da = ds. */
#include "train/ops/op_residual.h"

#include "train/ops/op_linear.h"
#include "train/ops/op_silu.h"

#include <string.h>

void residual_forward(real *y, real *sum, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n) {
    linear_forward(sum, x, w, b, n_rows, n, n);
    silu_forward(y, sum, n_rows * n);
    for (int64_t i = 0; i < n_rows * n; i++) y[i] += x[i];
}

void residual_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *sum, const real *w,
                       real *scratch, int64_t n_rows, int64_t n) {
    memset(scratch, 0, (size_t)(n_rows * n) * sizeof *scratch);
    silu_backward(scratch, dy, sum, n_rows * n);
    for (int64_t i = 0; dx && i < n_rows * n; i++) dx[i] += dy[i];
    linear_backward(dx, dw, db, scratch, x, w, n_rows, n, n);
}

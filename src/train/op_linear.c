/* op_linear.c - a linear layer.
 *
 *     y_to  = sum_i x_ti w_oi + b_o           y  = x W^T + b
 *     dx_ti = sum_o dy_to w_oi                dx = dy W
 *     dw_oi = sum_t dy_to x_ti                dw = dy^T x
 *     db_o  = sum_t dy_to
 *
 * 2 n_rows n_in n_out operations forward and twice that backward, all of them in OpenBLAS.
 */
#include "train/op_linear.h"

#include <string.h>

/* cblas counts in int. */
static int dim(int64_t n) { return (int)n; }

void linear_forward(real *y, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n_in,
                    int64_t n_out) {
    for (int64_t t = 0; b && t < n_rows; t++) memcpy(y + t * n_out, b, (size_t)n_out * sizeof *b);
    real_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, dim(n_rows), dim(n_out), dim(n_in), 1, x, dim(n_in), w,
              dim(n_in), b ? 1 : 0, y, dim(n_out));
}

void linear_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *w, int64_t n_rows,
                     int64_t n_in, int64_t n_out) {
    if (dx)
        real_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dim(n_rows), dim(n_in), dim(n_out), 1, dy, dim(n_out),
                  w, dim(n_in), 1, dx, dim(n_in));
    if (dw)
        real_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, dim(n_out), dim(n_in), dim(n_rows), 1, dy, dim(n_out), x,
                  dim(n_in), 1, dw, dim(n_in));
    for (int64_t t = 0; db && t < n_rows; t++)
        for (int64_t o = 0; o < n_out; o++) db[o] += dy[t * n_out + o];
}

/* op_linear.c - a linear layer.
 *
 *     y_to  = sum_i x_ti w_oi + b_o           y  = x W^T + b
 *     dx_ti = sum_o dy_to w_oi                dx = dy W
 *     dw_oi = sum_t dy_to x_ti                dw = dy^T x
 *     db_o  = sum_t dy_to
 *
 * Cost: 2 n_rows n_in n_out operations forward and twice that backward, all of them in real_gemm.
 */
#include "train/ops/op_linear.h"

#include <string.h>

void linear_forward(real *y, const real *x, const real *w, const real *b, int64_t n_rows, int64_t n_in, int64_t n_out) {
    for (int64_t t = 0; b && t < n_rows; t++) memcpy(y + t * n_out, b, (size_t)n_out * sizeof *b);
    real_gemm(false, true, n_rows, n_out, n_in, 1, x, n_in, w, n_in, b != NULL, y, n_out);
}

void linear_backward(real *dx, real *dw, real *db, const real *dy, const real *x, const real *w, int64_t n_rows,
                     int64_t n_in, int64_t n_out) {
    if (dx) real_gemm(false, false, n_rows, n_in, n_out, 1, dy, n_out, w, n_in, true, dx, n_in);
    if (dw) real_gemm(true, false, n_out, n_in, n_rows, 1, dy, n_out, x, n_in, true, dw, n_in);
    for (int64_t t = 0; db && t < n_rows; t++)
        for (int64_t o = 0; o < n_out; o++) db[o] += dy[t * n_out + o];
}

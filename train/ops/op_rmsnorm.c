/* op_rmsnorm.c - for each row, with s = 1 / sqrt(mean(x^2) + eps):
 *
 *     y_i  = s x_i w_i
 *     ds/dx_j = -s^3 x_j / n, so
 *     dx_i = s w_i dy_i - x_i (s^3 / n) sum_j dy_j w_j x_j
 *     dw_i = sum over rows of dy_i s x_i
 */
#include "train/ops/op_rmsnorm.h"

REAL_CLONES void rmsnorm_forward(real *y, real *inverse_rms, const real *x, const real *w, int64_t n_rows, int64_t n,
                                 real eps) {
    for (int64_t t = 0; t < n_rows; t++, x += n, y += n) {
        real s = inverse_rms[t] = 1 / sqrt(real_dot(x, x, n) / (real)n + eps);
        for (int64_t i = 0; i < n; i++) y[i] = s * x[i] * w[i];
    }
}

/* sum_j dy_j w_j x_j of one row */
REAL_INLINE real dot_3(const real *dy, const real *w, const real *x, int64_t n) {
    real lane[REAL_LANES] = {0};
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] += dy[i + k] * w[i + k] * x[i + k];
    for (; i < n; i++) lane[i % REAL_LANES] += dy[i] * w[i] * x[i];
    return real_fold(lane);
}

REAL_CLONES void rmsnorm_backward(real *dx, real *dw, const real *dy, const real *x, const real *w,
                                  const real *inverse_rms, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, x += n, dx += n, dy += n) {
        real s = inverse_rms[t], pull = s * s * s / (real)n * dot_3(dy, w, x, n);
        for (int64_t i = 0; i < n; i++) dx[i] += s * w[i] * dy[i] - pull * x[i];
        for (int64_t i = 0; dw && i < n; i++) dw[i] += s * x[i] * dy[i];
    }
}

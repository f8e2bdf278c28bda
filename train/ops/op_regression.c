/* op_regression.c - with e = y - target, a row's loss is the mean over i of
 *
 *     MSE        e_i^2                                   dy_i = 2 e_i / n
 *     L1         |e_i|                                   dy_i = sign(e_i) / n
 *     SmoothL1   e_i^2 / 2  or  |e_i| - 1/2              dy_i = max(-1, min(1, e_i)) / n
 *
 * times the derivative with respect to that row's loss.
 */
#include "train/ops/op_regression.h"

static real value(Regression kind, real e) {
    if (kind == REGRESSION_MSE) return e * e;
    real size = fabs(e);
    return kind == REGRESSION_L1 ? size : size < 1 ? e * e / 2 : size - (real)0.5;
}

static real slope(Regression kind, real e) {
    if (kind == REGRESSION_MSE) return 2 * e;
    real sign = (real)((e > 0) - (e < 0));
    return kind == REGRESSION_SMOOTH_L1 && fabs(e) < 1 ? e : sign;
}

void regression_forward(Regression kind, real *loss, const real *y, const real *target, int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, y += n, target += n) {
        loss[t] = 0;
        for (int64_t i = 0; i < n; i++) loss[t] += value(kind, y[i] - target[i]) / (real)n;
    }
}

void regression_backward(Regression kind, real *dy, const real *dloss, const real *y, const real *target,
                         int64_t n_rows, int64_t n) {
    for (int64_t t = 0; t < n_rows; t++, dy += n, y += n, target += n)
        for (int64_t i = 0; i < n; i++) dy[i] += dloss[t] * slope(kind, y[i] - target[i]) / (real)n;
}

/* op_regression.h - losses of vectors against their targets (here: hidden states of the target model), and their
 * derivatives. */
#ifndef OPS_OP_REGRESSION_H
#define OPS_OP_REGRESSION_H

#include "train/ops/real.h"

/* y, target, dy: [n_rows][n]; loss, dloss: [n_rows]; a row's loss is the mean over its n components. */

typedef enum Regression {
    REGRESSION_MSE,       /* e^2 */
    REGRESSION_L1,        /* |e| */
    REGRESSION_SMOOTH_L1, /* e^2 / 2 where |e| < 1, else |e| - 1/2 (arXiv 1504.08083, eq. 3) */
} Regression;

void regression_forward(Regression kind, real *loss, const real *y, const real *target, int64_t n_rows, int64_t n);
void regression_backward(Regression kind, real *dy, const real *dloss, const real *y, const real *target,
                         int64_t n_rows, int64_t n);

#endif

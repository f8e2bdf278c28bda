/* gradient_check.c - fourth-order central differences. */
#include "gradient_check.h"

#include <math.h>

/* L(x + h) - L(x - h) */
static double difference(double *x, double h, double (*loss)(void *ctx), void *ctx) {
    double middle = *x;
    *x = middle + h;
    double above = loss(ctx);
    *x = middle - h;
    double below = loss(ctx);
    *x = middle;
    return above - below;
}

double gradient_error(const GradientVar *var, double (*loss)(void *ctx), void *ctx, int max_tried) {
    const double h = 1e-3;
    double worst = 0, largest = 0;
    int64_t n_tried = var->n < max_tried ? var->n : max_tried;
    for (int64_t k = 0; k < n_tried; k++) {
        int64_t i = k * var->n / n_tried;
        double quotient = (8 * difference(var->x + i, h, loss, ctx) - difference(var->x + i, 2 * h, loss, ctx)) /
                          (12 * h);
        double error = fabs(quotient - var->dx[i]);
        if (!(error <= worst)) worst = error;
        if (fabs(quotient) > largest) largest = fabs(quotient);
    }
    return worst / (largest + 1e-30);
}

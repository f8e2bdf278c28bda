/* gradient_check.h - compares hand-written derivatives with finite differences, in double. */
#ifndef TESTS_GRADIENT_CHECK_H
#define TESTS_GRADIENT_CHECK_H

#include <stdint.h>

/* An array that a loss depends on, and the derivative of the loss with respect to it, from a backward function. */
typedef struct GradientVar {
    const char *name;
    double *x;        /* [n] changed during the check, and restored */
    const double *dx; /* [n] */
    int64_t n;
} GradientVar;

/* Returns the largest |dx_i - D_i| over the components tried (at most max_tried, spread over the array), relative to
 * the largest |D_i|. D_i = (8 d(h) - d(2h)) / 12h with d(h) = L(x_i + h) - L(x_i - h) and h = 1e-3, whose own error is
 * of the order h^4. About 1e-10 when the derivative is right, about 2 when its sign is wrong. */
double gradient_error(const GradientVar *var, double (*loss)(void *ctx), void *ctx, int max_tried);

#endif

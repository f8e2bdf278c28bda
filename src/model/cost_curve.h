/* cost_curve.h - T(n) as a running engine knows it: measured once, then kept true by every forward. */
#ifndef MODEL_COST_CURVE_H
#define MODEL_COST_CURVE_H

#include "model/executor.h"

enum { COST_CURVE_MAX = 8 };

/* Straight lines between points; beyond the last, its line goes on. */
typedef struct CostCurve {
    int n;                          /* points; 0: nothing is known */
    int32_t rows[COST_CURVE_MAX];   /* rising, the first is 1 */
    double seconds[COST_CURVE_MAX]; /* never falling */
} CostCurve;

/* Measures 1, 2, 4, ... 32 rows where the executor takes so many: about 30 ms, for a large model about 12 forwards of one
 * row. Needs a free sequence, leaves none open. After a failure the curve is empty. */
int cost_curve_measure(CostCurve *c, Executor *e, int32_t n_ctx, fr_error *err);
/* n_rows >= 1; the curve is not empty. */
double cost_curve_at(const CostCurve *c, int32_t n_rows);
/* A forward of n_rows rows took so long. One forward moves the curve by a tenth at most, however slow it was, so that what
 * else the machine does for a moment does not count. */
void cost_curve_observe(CostCurve *c, int32_t n_rows, double seconds);

#endif

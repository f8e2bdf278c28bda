/* cost_curve.h - T(n, context) as a running engine knows it: measured once, then corrected by every forward. */
#ifndef BACKEND_COST_CURVE_H
#define BACKEND_COST_CURVE_H

#include "compute/executor.h"

enum { COST_CURVE_MAX = 9 };

/* T(n, context) = a(n) + context * (key_read_s + n * key_s): keys are read once, and every row is multiplied with
 * every key. a(n) is linear between the points and goes on beyond the last with the slope of the last segment. */
typedef struct CostCurve {
    int n;                          /* points; 0: nothing is known */
    int32_t rows[COST_CURVE_MAX];   /* rising, the first is 1 */
    double seconds[COST_CURVE_MAX]; /* a(n), never falling */
    double key_s, key_read_s;       /* of one row and one key; of one key, whatever the number of rows */
    double n_context; /* tokens before each row, in the mean: what the functions below answer for. Set by the owner */
} CostCurve;

/* Measures 1 to 32 rows without context, and 8 rows behind a long one (1024 tokens, where so many fit): about 150 ms,
 * for a large model up to 2 s; if that does not suffice, fewer numbers of rows. Needs a free sequence and leaves none
 * open. Without room for a long context keys are taken to cost nothing. After a failure the curve is empty. */
int cost_curve_measure(CostCurve *c, Executor *e, int32_t n_ctx, fr_error *err);
/* n_rows >= 1; the curve is not empty. */
double cost_curve_at(const CostCurve *c, int32_t n_rows);
/* Corrects the curve by one forward of n_rows rows that took that long. A forward moves the curve by a tenth at most,
 * however slow it was, so that momentary disturbances do not matter. */
void cost_curve_observe(CostCurve *c, int32_t n_rows, double seconds);

#endif

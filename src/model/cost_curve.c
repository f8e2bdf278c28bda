#include "model/cost_curve.h"

#include "model/cost.h"

/* The first count is measured twice: the first forward of all meets cold caches and is thrown away. */
int cost_curve_measure(CostCurve *c, Executor *e, int32_t n_ctx, fr_error *err) {
    int32_t counts[COST_CURVE_MAX] = {1};
    double seconds[COST_CURVE_MAX];
    int n = 1;
    for (int32_t rows = 1; rows <= 32 && rows <= executor_max_rows(e) && rows <= n_ctx; rows *= 2) counts[n++] = rows;
    c->n = 0;
    int status = cost_measure(e, 0, counts, n, 1, 0.02, seconds, err);
    if (status) return status;
    for (int i = 1; i < n; i++) {
        c->rows[i - 1] = counts[i];
        c->seconds[i - 1] = i > 1 && seconds[i] < c->seconds[i - 2] ? c->seconds[i - 2] : seconds[i];
    }
    c->n = n - 1;
    return FR_OK;
}

/* The point from which the line through n_rows starts. */
static int segment(const CostCurve *c, int32_t n_rows) {
    int i = 0;
    while (i + 2 < c->n && c->rows[i + 1] <= n_rows) i++;
    return i;
}

double cost_curve_at(const CostCurve *c, int32_t n_rows) {
    if (c->n == 1 || n_rows == c->rows[0]) return c->seconds[0];
    int i = segment(c, n_rows);
    double slope = (c->seconds[i + 1] - c->seconds[i]) / (double)(c->rows[i + 1] - c->rows[i]);
    return c->seconds[i] + slope * (double)(n_rows - c->rows[i]);
}

/* Half of what was wrong moves the whole curve (the machine is slower, the context longer), half the points beside n_rows. */
void cost_curve_observe(CostCurve *c, int32_t n_rows, double seconds) {
    if (n_rows > 2 * c->rows[c->n - 1]) return;
    double wrong = seconds / cost_curve_at(c, n_rows) - 1;
    wrong = wrong > 0.05 ? 0.05 : wrong < -0.05 ? -0.05 : wrong;
    int i = n_rows == 1 || c->n == 1 ? 0 : segment(c, n_rows);
    double part = i + 1 < c->n ? (double)(n_rows - c->rows[i]) / (double)(c->rows[i + 1] - c->rows[i]) : 0;
    for (int k = 0; k < c->n; k++) {
        double local = k == i ? 1 - part : k == i + 1 ? part : 0;
        c->seconds[k] *= 1 + wrong / 2 * (1 + (local > 0 ? local : 0));
        if (k > 0 && c->seconds[k] < c->seconds[k - 1]) c->seconds[k] = c->seconds[k - 1];
    }
}

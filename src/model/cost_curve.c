#include "model/cost_curve.h"

#include "base/clock.h"
#include "model/cost.h"

#include <math.h>

enum { SINK = 8192 /* forwards */, LONG = 512 /* tokens */ };
#define MOST 0.08

/* What holds for every forward: more rows never take less time, nor more than as many forwards of fewer rows. Noise that
 * says otherwise is cut off. */
static void make_sound(CostCurve *c) {
    for (int k = 1; k < c->n; k++) {
        double least = c->seconds[k - 1], most = least * (double)c->rows[k] / (double)c->rows[k - 1];
        c->seconds[k] = c->seconds[k] < least ? least : c->seconds[k] > most ? most : c->seconds[k];
    }
}

/* What a key costs: the most rows with and without a long context, in turn, for the difference is small and the machine has its
 * moods. Of each the fastest round counts: what else happens only adds. */
static void measure_keys(CostCurve *c, Executor *e, int32_t n_ctx) {
    int32_t most = c->rows[c->n - 1], contexts[2] = {0, n_ctx - most < LONG ? n_ctx - most : LONG};
    double least[2] = {INFINITY, INFINITY}, end_s = clock_s() + 0.03;
    c->key_s = 0;
    if (contexts[1] < 1) return;
    for (int round = 0; round < 2 || (round < 16 && clock_s() < end_s); round++)
        for (int k = 0; k < 2; k++) {
            double seconds;
            if (cost_measure(e, contexts[k], &most, 1, 1, 0, 0, &seconds, NULL)) return;
            if (seconds < least[k]) least[k] = seconds;
        }
    if (least[1] > least[0]) c->key_s = (least[1] - least[0]) / ((double)most * contexts[1]);
}

/* The first count is measured twice: the first forward of all meets cold caches and is thrown away. Of the rounds the fastest
 * counts, for what slows down a few of them is not the forward. */
int cost_curve_measure(CostCurve *c, Executor *e, int32_t n_ctx, fr_error *err) {
    int32_t counts[COST_CURVE_MAX] = {1};
    double seconds[COST_CURVE_MAX];
    int n = 1;
    for (int32_t rows = 1; rows <= 32 && rows <= executor_max_rows(e) && rows <= n_ctx; rows *= 2) counts[n++] = rows;
    c->n = 0;
    int status = cost_measure(e, 0, counts, n, 1, 0.03, 0, seconds, err);
    if (status) return status;
    c->n = n - 1;
    for (int k = 0; k < c->n; k++) c->rows[k] = counts[k + 1], c->seconds[k] = seconds[k + 1];
    make_sound(c);
    measure_keys(c, e, n_ctx);
    return FR_OK;
}

/* The point from which the line through n_rows starts. */
static int segment(const CostCurve *c, int32_t n_rows) {
    int i = 0;
    while (i + 2 < c->n && c->rows[i + 1] <= n_rows) i++;
    return i;
}

static double without_keys(const CostCurve *c, int32_t n_rows) {
    if (c->n == 1 || n_rows == c->rows[0]) return c->seconds[0];
    int i = segment(c, n_rows);
    double slope = (c->seconds[i + 1] - c->seconds[i]) / (double)(c->rows[i + 1] - c->rows[i]);
    return c->seconds[i] + slope * (double)(n_rows - c->rows[i]);
}

double cost_curve_at(const CostCurve *c, int32_t n_rows) {
    return without_keys(c, n_rows) + n_rows * c->n_context * c->key_s;
}

/* What was wrong moves the points beside n_rows, and a quarter of it the whole curve (the machine is slower).
 * Points above sink very slowly towards these: a size that looks too dear to be tried would otherwise never be
 * measured again. */
void cost_curve_observe(CostCurve *c, int32_t n_rows, double seconds) {
    if (n_rows > 2 * c->rows[c->n - 1]) return;
    double wrong = seconds / cost_curve_at(c, n_rows) - 1;
    wrong = wrong > MOST ? MOST : wrong < -MOST ? -MOST : wrong;
    c->key_s *= 1 + wrong * 0.25;
    int i = n_rows == 1 || c->n == 1 ? 0 : segment(c, n_rows);
    double part = i + 1 < c->n ? (double)(n_rows - c->rows[i]) / (double)(c->rows[i + 1] - c->rows[i]) : 0;
    part = part > 1 ? 1 : part;
    for (int k = 0; k < c->n; k++) {
        double local = k == i ? 1 - part : k == i + 1 ? part : 0;
        c->seconds[k] *= 1 + wrong * (0.25 + local);
        if (k > i && local <= 0) c->seconds[k] -= (c->seconds[k] - c->seconds[k - 1]) / SINK;
    }
    make_sound(c);
}

/* quant_fit.c - the search for the scale (and minimum) with which a few numbers are rounded to small integers.
 *
 * The problem. n numbers x share a scale d and perhaps an offset m; each becomes an integer q of few bits, and is read
 * back as d q + m. The obvious choice, in which the extreme numbers get the extreme codes, spends the range on one
 * outlier. Wanted are d, m and q that minimise
 *
 *     E = sum w (x - d q - m)^2                                        w: how much an error matters
 *
 * The idea. For fixed codes E is a quadratic function of d and m, and its minimum has a formula (least squares):
 *
 *     without offset   d = sum wxq / sum wqq,          E = sum wxx - (sum wxq)^2 / sum wqq
 *     with offset      d = (W sum wxq - sum wx sum wq) / D,  m = (sum wqq sum wx - sum wq sum wxq) / D,
 *                      W = sum w,  D = W sum wqq - (sum wq)^2
 *
 * and for fixed d and m the best codes are the nearest integers. Alternating the two never makes E larger, but stops at
 * the nearest local minimum. So the search begins at several scales around the obvious one, takes the best, and
 * alternates from there. This is the search that the K types of llama.cpp were published with (pull request 1684
 * describes it as minimising a weighted squared error); the candidates and the alternation are our own.
 *
 * Example. x = (-8, 3, 3, 3, 3, 3, 3, 3), codes -2..1, w = 1. The obvious d = 4 gives the code -2 to the outlier and 1 to
 * each 3: E = 7. From there least squares finds d = (16 + 21) / (4 + 7) = 3.36 with the same codes: E = 4.5.
 *
 * Sums have eight lanes in a fixed order, so that compilers can use vectors and bits do not depend on the machine.
 * Proof: tests/gguf/test_quant.c compares with an exhaustive search. */
#include "gguf/quant_fit.h"

#include <math.h>

enum { LANES = 8, N_CANDIDATES = 10, N_REFINEMENTS = 4 };

/* The nearest integer, ties to even: numbers of less than 2^22 lose their fraction when 1.5 * 2^23 is added. */
static float round_small(float x) { return x + 12582912.0f - 12582912.0f; }

void fit_codes(Fit fit, const float *x, int n, float least, float most, float *q) {
    float inverse = fit.scale != 0 ? 1 / fit.scale : 0;
    if (!isfinite(inverse)) inverse = 0;
    for (int i = 0; i < n; i++) {
        float v = (x[i] - fit.low) * inverse;
        v = v > least ? v : least;
        q[i] = round_small(v < most ? v : most);
    }
}

void fit_values(Fit fit, const float *x, int n, const float values[16], float *q) {
    float inverse = fit.scale != 0 ? 1 / fit.scale : 0, v[FIT_MAX];
    if (!isfinite(inverse)) inverse = 0;
    for (int i = 0; i < n; i++) {
        v[i] = (x[i] - fit.low) * inverse;
        q[i] = values[0];
    }
    for (int c = 1; c < 16; c++) { /* a number beyond the middle between two values goes to the upper one */
        float middle = (values[c - 1] + values[c]) / 2;
        for (int i = 0; i < n; i++) q[i] = v[i] > middle ? values[c] : q[i];
    }
}

static double sum_lanes(const float lanes[LANES]) {
    double sum = 0;
    for (int l = 0; l < LANES; l++) sum += (double)lanes[l];
    return sum;
}

double fit_error(Fit fit, const float *x, const float *w, int n, const float *q) {
    float e[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float d = x[i + l] - (fit.scale * q[i + l] + fit.low);
            e[l] += w[i + l] * d * d;
        }
    return sum_lanes(e);
}

typedef struct Sums {
    double w, x, xx, q, qq, xq; /* each weighted: sum w, sum wx, sum wxx, ... */
} Sums;

/* Those that do not depend on the codes. */
static void sum_numbers(Sums *s, const float *x, const float *w, int n) {
    float sw[LANES] = {0}, sx[LANES] = {0}, sxx[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float wx = w[i + l] * x[i + l];
            sw[l] += w[i + l];
            sx[l] += wx;
            sxx[l] += wx * x[i + l];
        }
    s->w = sum_lanes(sw), s->x = sum_lanes(sx), s->xx = sum_lanes(sxx);
}

static void sum_codes(Sums *s, const float *x, const float *w, int n, const float *q) {
    float sq[LANES] = {0}, sqq[LANES] = {0}, sxq[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float wq = w[i + l] * q[i + l];
            sq[l] += wq;
            sqq[l] += wq * q[i + l];
            sxq[l] += wq * x[i + l];
        }
    s->q = sum_lanes(sq), s->qq = sum_lanes(sqq), s->xq = sum_lanes(sxq);
}

/* The best fit for given codes; its error without the constant sum wxx. */
static Fit solve_scale(const Sums *s, double *error) {
    double d = s->qq > 0 ? s->xq / s->qq : 0;
    *error = -d * s->xq;
    return (Fit){(float)d, 0};
}

static Fit solve_range(const Sums *s, bool low_is_negative, double *error) {
    double det = s->w * s->qq - s->q * s->q, d = 0, m = 0;
    if (det > 0) {
        d = (s->w * s->xq - s->x * s->q) / det;
        m = (s->qq * s->x - s->q * s->xq) / det;
    }
    if (!(det > 0) || d < 0 || (low_is_negative && m > 0)) return solve_scale(s, error);
    *error = d * d * s->qq + m * m * s->w + 2 * (d * m * s->q - d * s->xq - m * s->x);
    return (Fit){(float)d, (float)m};
}

/* What one search looks for. */
typedef struct Search {
    const float *x, *w;
    int n;
    float least, most;
    const float *values; /* of a codebook, or NULL */
    bool has_low, low_is_negative;
    Sums sums;
    Fit best;
    double error;
} Search;

/* Rounds by `start`, solves for the codes, and keeps the result if it is the best so far. */
static bool try_fit(Search *s, Fit start) {
    float q[FIT_MAX] = {0};
    double error;
    if (s->values) fit_values(start, s->x, s->n, s->values, q);
    else fit_codes(start, s->x, s->n, s->least, s->most, q);
    sum_codes(&s->sums, s->x, s->w, s->n, q);
    Fit fit = s->has_low ? solve_range(&s->sums, s->low_is_negative, &error) : solve_scale(&s->sums, &error);
    if (!isfinite(fit.scale) || !isfinite(fit.low) || !(error < s->error)) return false;
    s->best = fit;
    s->error = error;
    return true;
}

static Fit refined(Search *s) {
    for (int i = 0; i < N_REFINEMENTS && try_fit(s, s->best); i++) continue;
    return s->best;
}

Fit fit_scale(const float *x, const float *w, int n, float least, float most) {
    Search s = {.x = x, .w = w, .n = n, .least = least, .most = most};
    float extreme = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    for (int k = -N_CANDIDATES; extreme != 0 && k <= N_CANDIDATES; k++) /* the extreme gets a code near `least` */
        try_fit(&s, (Fit){extreme / (least + 0.1f * (float)k), 0});
    return refined(&s);
}

/* The extreme number gets a value near either end: the ends differ, and so the sign of the scale matters. */
Fit fit_codebook(const float *x, const float *w, int n, const float values[16]) {
    Search s = {.x = x, .w = w, .n = n, .values = values};
    float extreme = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    for (int k = -N_CANDIDATES; extreme != 0 && k <= N_CANDIDATES; k++)
        for (int end = 0; end < 16; end += 15) try_fit(&s, (Fit){extreme / (values[end] * (1 + 0.02f * (float)k)), 0});
    return refined(&s);
}

Fit fit_range(const float *x, const float *w, int n, float most, bool low_is_negative) {
    Search s = {.x = x, .w = w, .n = n, .most = most, .has_low = true, .low_is_negative = low_is_negative};
    float low = x[0], high = x[0];
    for (int i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (low_is_negative && low > 0) low = 0;
    if (!(high > low)) return (Fit){0, low};
    s.best = (Fit){0, low};
    sum_numbers(&s.sums, x, w, n);
    for (int k = -N_CANDIDATES; k <= N_CANDIDATES; k++)
        try_fit(&s, (Fit){(high - low) / (most + 0.1f * (float)k), low});
    return refined(&s);
}

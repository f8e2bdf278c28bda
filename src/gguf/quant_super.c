/* quant_super.c - the search for the scales of super-blocks of 256 numbers.
 *
 * Three steps, each of which is kept only where it makes the weighted error smaller:
 *
 *   1. each sub-block by itself: scale (and minimum) by quant_fit.c;
 *   2. these become integers over their largest one, and the codes are chosen anew. Rounding a scale up or down is
 *      decided by the error: each sub-block tries the neighbours of its rounded scale and minimum;
 *   3. with all integers fixed, the sum of errors is quadratic in d and dmin: least squares gives the best ones.
 *
 * Steps 2 and 3 are done twice. Proof: tests/gguf/test_quant.c. */
#include "gguf/quant_super.h"

#include "gguf/quant.h"
#include "gguf/quant_fit.h"

#include <math.h>
#include <string.h>

enum { N = SUPER_N, N_ROUNDS = 2 };

static int rounded(float x, int low, int high) {
    if (!(x > (float)low)) return low;
    return x < (float)high ? (int)lrintf(x) : high;
}

static float inverse(float f) { return f != 0 && isfinite(1 / f) ? 1 / f : 0; }

/* ---- with minima ------------------------------------------------------------------------------------- */

/* The error of sub-block b with these integers; its codes in q. */
static double encode_range(const RangeSuper *k, int b, int s, int m, float *q) {
    Fit fit = {k->d * (float)s, -k->dmin * (float)m};
    fit_codes(fit, k->x + b * k->sub, k->sub, 0, k->most, q);
    return fit_error(fit, k->x + b * k->sub, k->w + b * k->sub, k->sub, q);
}

/* The integers near those that the fit of the sub-block asks for, and the codes. Returns the error. */
static double choose_range(RangeSuper *k, int b, Fit wanted) {
    int s0 = rounded(wanted.scale * inverse(k->d), 0, k->s_max),
        m0 = rounded(-wanted.low * inverse(k->dmin), 0, k->s_max);
    double best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++)
        for (int m = m0 - 1; m <= m0 + 1; m++) {
            float q[FIT_MAX];
            if (s < 0 || s > k->s_max || m < 0 || m > k->s_max) continue;
            double e = encode_range(k, b, s, m, q);
            if (!(e < best)) continue;
            best = e;
            k->s[b] = s, k->m[b] = m;
            memcpy(k->q + b * k->sub, q, (size_t)k->sub * sizeof *q);
        }
    return best;
}

static double choose_ranges(RangeSuper *k, const Fit wanted[]) {
    double error = 0;
    for (int b = 0; b < N / k->sub; b++) error += choose_range(k, b, wanted[b]);
    return error;
}

/* Least squares of x over s q and -m: the best d and dmin for the integers as they are. False: there are none. */
static bool solve_range_super(const RangeSuper *k, float *d, float *dmin) {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int i = 0; i < N; i++) {
        int sub = i / k->sub;
        double w = (double)k->w[i], x = (double)k->x[i], a = (double)k->s[sub] * (double)k->q[i],
               b = -(double)k->m[sub];
        aa += w * a * a, ab += w * a * b, bb += w * b * b, ax += w * a * x, bx += w * b * x;
    }
    double det = aa * bb - ab * ab;
    if (bb == 0) *d = (float)(ax / aa), *dmin = 0; /* no minimum is below zero */
    else *d = (float)((ax * bb - bx * ab) / det), *dmin = (float)((aa * bx - ab * ax) / det);
    return isfinite(*d) && isfinite(*dmin) && *d > 0 && *dmin >= 0;
}

void range_super_search(RangeSuper *k) {
    RangeSuper best = *k;
    Fit wanted[SUPER_SUBS_MAX] = {{0, 0}};
    float scale = 0, low = 0;
    uint8_t half[2];
    for (int b = 0; b < N / k->sub; b++) {
        wanted[b] = fit_range(k->x + b * k->sub, k->w + b * k->sub, k->sub, k->most, true);
        scale = wanted[b].scale > scale ? wanted[b].scale : scale;
        low = wanted[b].low < low ? wanted[b].low : low;
    }
    k->d = scale / (float)k->s_max, k->dmin = -low / (float)k->s_max;
    double error = INFINITY;
    for (int i = 0; i <= N_ROUNDS; i++) {
        k->d = quant_store_half(half, k->d), k->dmin = quant_store_half(half, k->dmin);
        double e = choose_ranges(k, wanted);
        if (!(e < error)) break;
        error = e;
        best = *k;
        if (!solve_range_super(&best, &k->d, &k->dmin)) break;
    }
    *k = best;
}

/* ---- without ----------------------------------------------------------------------------------------- */

static double choose_scale(ScaleSuper *k, int b, float wanted) {
    int s0 = rounded(wanted * inverse(k->d), k->s_least, k->s_most);
    const float *x = k->x + b * k->sub;
    double best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        float q[FIT_MAX];
        if (s < k->s_least || s > k->s_most) continue;
        Fit fit = {k->d * (float)s, 0};
        if (k->values) fit_values(fit, x, k->sub, k->values, q);
        else fit_codes(fit, x, k->sub, k->least, k->most, q);
        double e = fit_error(fit, x, k->w + b * k->sub, k->sub, q);
        if (!(e < best)) continue;
        best = e;
        k->s[b] = s;
        memcpy(k->q + b * k->sub, q, (size_t)k->sub * sizeof *q);
    }
    return best;
}

static double choose_scales(ScaleSuper *k, const float wanted[]) {
    double error = 0;
    for (int b = 0; b < N / k->sub; b++) error += choose_scale(k, b, wanted[b]);
    return error;
}

static bool solve_scale_super(const ScaleSuper *k, float *d) {
    double aa = 0, ax = 0;
    for (int i = 0; i < N; i++) {
        int sub = i / k->sub;
        double a = (double)k->s[sub] * (double)k->q[i];
        aa += (double)k->w[i] * a * a, ax += (double)k->w[i] * a * (double)k->x[i];
    }
    *d = (float)(ax / aa);
    return isfinite(*d) && *d != 0;
}

static Fit fit_sub(const ScaleSuper *k, int b) {
    const float *x = k->x + b * k->sub, *w = k->w + b * k->sub;
    return k->values ? fit_codebook(x, w, k->sub, k->values) : fit_scale(x, w, k->sub, k->least, k->most);
}

void scale_super_search(ScaleSuper *k) {
    ScaleSuper best = *k;
    float wanted[SUPER_SUBS_MAX] = {0}, extreme = 0;
    uint8_t half[2];
    for (int b = 0; b < N / k->sub; b++) {
        wanted[b] = fit_sub(k, b).scale;
        if (fabsf(wanted[b]) > fabsf(extreme)) extreme = wanted[b];
    }
    k->d = extreme / (float)k->s_least;
    double error = INFINITY;
    for (int i = 0; i <= N_ROUNDS; i++) {
        k->d = quant_store_half(half, k->d);
        double e = choose_scales(k, wanted);
        if (!(e < error)) break;
        error = e;
        best = *k;
        if (!solve_scale_super(&best, &k->d)) break;
    }
    *k = best;
}

/* quant_search.c - the search for the scales (and minima) with which numbers are rounded to small integers.
 *
 * The problem. n numbers x share a scale d and perhaps an offset m; each becomes an integer q of few bits, and is read
 * back as d q + m. The obvious choice, in which the extreme numbers get the extreme codes, spends the range on one
 * outlier. The search finds d, m and q that minimise
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
 * Example. x = (-8, 3, 3, 3, 3, 3, 3, 3), codes -2..1, w = 1. The obvious d = 4 gives the code -2 to the outlier and 1
 * to each 3: E = 7. From there least squares finds d = (16 + 21) / (4 + 7) = 3.36 with the same codes: E = 4.5.
 *
 * Sums have eight lanes in a fixed order, so that compilers can use vectors and bits do not depend on the machine.
 * Proof: tests/gguf/test_quant.c compares with an exhaustive search. */
#include "gguf/quantize.h"

#include "gguf/blocks_internal.h"

enum { LANES = 8, N_CANDIDATES = 10, N_REFINEMENTS = 4 };

/* 1 / f, or 0 where that is not a finite number. */
static float finite_inverse(float f) { return f != 0 && isfinite(1 / f) ? 1 / f : 0; }

/* Returns the nearest integer, ties to even: numbers of less than 2^22 lose their fraction when 1.5 * 2^23 is added. */
static float round_small(float x) { return x + 12582912.0f - 12582912.0f; }

void fit_codes(Fit fit, const float *x, int n, float least, float most, float *q) {
    float inv = finite_inverse(fit.scale);
    for (int i = 0; i < n; i++) {
        float v = (x[i] - fit.low) * inv;
        v = v > least ? v : least;
        q[i] = round_small(v < most ? v : most);
    }
}

void fit_values(Fit fit, const float *x, int n, const float values[16], float *q) {
    float inv = finite_inverse(fit.scale), v[FIT_MAX];
    for (int i = 0; i < n; i++) {
        v[i] = (x[i] - fit.low) * inv;
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
    double w, x, q, qq, xq; /* each weighted: sum w, sum wx, sum wq, sum wqq, sum wxq */
} Sums;

/* Computes the sums that do not depend on the codes. */
static void sum_numbers(Sums *s, const float *x, const float *w, int n) {
    float sw[LANES] = {0}, sx[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            sw[l] += w[i + l];
            sx[l] += w[i + l] * x[i + l];
        }
    s->w = sum_lanes(sw), s->x = sum_lanes(sx);
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

/* Returns the best fit for given codes, and its error without the constant sum wxx. */
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

/* One search: the numbers, the codes that it may use, and the best fit so far. */
typedef struct Search {
    const float *x, *w;
    int n;
    float least, most;
    const float *values; /* the values of a codebook, or NULL */
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
    float extreme = extreme_of(x, n);
    for (int k = -N_CANDIDATES; extreme != 0 && k <= N_CANDIDATES; k++) /* the extreme gets a code near `least` */
        try_fit(&s, (Fit){extreme / (least + 0.1f * (float)k), 0});
    return refined(&s);
}

/* The extreme number gets a value near either end: the ends differ, and so the sign of the scale matters. */
Fit fit_codebook(const float *x, const float *w, int n, const float values[16]) {
    Search s = {.x = x, .w = w, .n = n, .values = values};
    float extreme = extreme_of(x, n);
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

/* ---- super-blocks -------------------------------------------------------------------------------------- */

/* The scales of the sub-blocks of 256 numbers are small integers over one or two halves. Three steps find them; each is
 * kept only where it makes the weighted error smaller:
 *
 *   1. each sub-block by itself: scale (and minimum) by the search above;
 *   2. these become integers over their largest one, and the codes are chosen anew. Rounding a scale up or down is
 *      decided by the error: each sub-block tries the neighbours of its rounded scale and minimum;
 *   3. with all integers fixed, the sum of errors is quadratic in d and dmin: least squares gives the best ones.
 *
 * Steps 2 and 3 are done twice. */
enum { N = SUPER_N, N_ROUNDS = 2 };

static int rounded(float x, int low, int high) {
    if (!(x > (float)low)) return low;
    return x < (float)high ? (int)lrintf(x) : high;
}

/* ---- super-blocks with minima --------------------------------------------------------------------------- */

/* Chooses the codes q of sub-block b for these integers, and returns the error. */
static double encode_range(const RangeSuper *k, int b, int s, int m, float *q) {
    Fit fit = {k->d * (float)s, -k->dmin * (float)m};
    fit_codes(fit, k->x + b * k->sub, k->sub, 0, k->most, q);
    return fit_error(fit, k->x + b * k->sub, k->w + b * k->sub, k->sub, q);
}

/* Chooses the best integers near those of the sub-block's own fit, and the codes. Returns the error. */
static double choose_range(RangeSuper *k, int b, Fit wanted) {
    int s0 = rounded(wanted.scale * finite_inverse(k->d), 0, k->s_max),
        m0 = rounded(-wanted.low * finite_inverse(k->dmin), 0, k->s_max);
    double best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++)
        for (int m = m0 - 1; m <= m0 + 1; m++) {
            float q[FIT_MAX] = {0};
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

/* Finds the best d and dmin for the integers as they are, by least squares of x over s q and -m; false if there are
 * none. */
static bool solve_range_super(const RangeSuper *k, float *d, float *dmin) {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int i = 0; i < N; i++) {
        int sub = i / k->sub;
        double w = (double)k->w[i], x = (double)k->x[i], a = (double)k->s[sub] * (double)k->q[i],
               b = -(double)k->m[sub];
        aa += w * a * a, ab += w * a * b, bb += w * b * b, ax += w * a * x, bx += w * b * x;
    }
    double det = aa * bb - ab * ab;
    if (bb == 0) *d = (float)(ax / aa), *dmin = 0; /* all minima are zero */
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
        k->d = store_half(half, k->d), k->dmin = store_half(half, k->dmin);
        double e = choose_ranges(k, wanted);
        if (!(e < error)) break;
        error = e;
        best = *k;
        if (!solve_range_super(&best, &k->d, &k->dmin)) break;
    }
    *k = best;
}

/* ---- super-blocks without minima ------------------------------------------------------------------------ */

static double choose_scale(ScaleSuper *k, int b, float wanted) {
    int s0 = rounded(wanted * finite_inverse(k->d), k->s_least, k->s_most);
    const float *x = k->x + b * k->sub;
    double best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        float q[FIT_MAX] = {0};
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
        k->d = store_half(half, k->d);
        double e = choose_scales(k, wanted);
        if (!(e < error)) break;
        error = e;
        best = *k;
        if (!solve_scale_super(&best, &k->d)) break;
    }
    *k = best;
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

/* An error in a large weight matters more than one in a small weight, because large weights carry more of the output;
 * but small ones must not be given up. So the weight of an element is |x| + rms of its block, times its importance, the
 * mean square of the input that it is multiplied with (forerun imatrix). Without an importance matrix all inputs count
 * alike. Each block is also rounded plainly, and the better of the two results is kept. */

enum { BLOCK_MAX = 256, BLOCK_BYTES_MAX = 256 };

static void weigh(const float *x, const float *importance, int n, float *w) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    float rms = (float)sqrt(squares / n);
    for (int i = 0; i < n; i++) w[i] = (fabsf(x[i]) + rms) * (importance ? importance[i] : 1);
}

static double error_of(TensorType type, const uint8_t *block, const float *x, const float *w, int n) {
    float y[BLOCK_MAX];
    double sum = 0;
    blocks_dequantize(type, block, n, y);
    for (int i = 0; i < n; i++) sum += (double)w[i] * ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum;
}

static void encode(TensorType type, const float *x, const float *importance, uint8_t *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    int n = (int)info->block_n;
    float w[BLOCK_MAX];
    uint8_t found[BLOCK_BYTES_MAX];
    weigh(x, importance, n, w);
    blocks_quantize(type, x, n, dst);
    info->search(x, w, found);
    if (error_of(type, found, x, w, n) < error_of(type, dst, x, w, n)) memcpy(dst, found, info->block_bytes);
}

void quant_row(TensorType type, const float *x, const float *importance, int64_t n, void *dst) {
    const TensorTypeInfo *info = tensor_type_info(type);
    uint8_t *bytes = dst;
    if (!info->search) blocks_quantize(type, x, n, dst);
    else
        for (int64_t i = 0; i < n; i += info->block_n, bytes += info->block_bytes)
            encode(type, x + i, importance ? importance + i : NULL, bytes);
}

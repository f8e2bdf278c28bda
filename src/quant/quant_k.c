/* quant_k.c - the K types: super-blocks of 256 numbers, whose sub-blocks have scales of 6 or 8 bits over one half
 * (format/blocks_k.c draws them).
 *
 *     Q4_K, Q5_K   x is about (d s) q - dmin m     8 sub-blocks of 32;  s, m in 0..63,     q in 0..15 or 0..31
 *     Q6_K         x is about (d s) q              16 sub-blocks of 16; s in -128..127,    q in -32..31
 *
 * Three steps, each of which is kept only where it makes the weighted error smaller:
 *
 *   1. each sub-block by itself: scale (and minimum) by quant_fit.c;
 *   2. these become integers over their largest one, and the codes are chosen anew. Rounding a scale up or down is
 *      decided by the error: each sub-block tries the neighbours of its rounded scale and minimum;
 *   3. with all integers fixed, the sum of errors is quadratic in d and dmin: least squares gives the best ones.
 *
 * Steps 2 and 3 are done twice. Proof: tests/unit/test_quant.c. */
#include "quant/quant.h"
#include "quant/quant_fit.h"

#include <math.h>
#include <string.h>

enum { N = 256, SUB32 = 32, N_SUB32 = N / SUB32, SUB16 = 16, N_SUB16 = N / SUB16, N_ROUNDS = 2 };

static int rounded(float x, int low, int high) {
    if (!(x > (float)low)) return low;
    return x < (float)high ? (int)lrintf(x) : high;
}

static float inverse(float f) { return f != 0 && isfinite(1 / f) ? 1 / f : 0; }

/* ---- Q4_K and Q5_K ----------------------------------------------------------------------------------- */

typedef struct Super {
    const float *x, *w;
    float most; /* the largest code */
    float d, dmin;
    int s[N_SUB32], m[N_SUB32];
    float q[N];
} Super;

static Fit fit_of(const Super *k, int s, int m) { return (Fit){k->d * (float)s, -k->dmin * (float)m}; }

/* The error of sub-block b with these integers; its codes in q. */
static double encode_sub(const Super *k, int b, int s, int m, float *q) {
    Fit fit = fit_of(k, s, m);
    fit_codes(fit, k->x + b * SUB32, SUB32, 0, k->most, q);
    return fit_error(fit, k->x + b * SUB32, k->w + b * SUB32, SUB32, q);
}

/* The integers near those that the fit of the sub-block asks for, and the codes. Returns the error. */
static double choose_sub(Super *k, int b, Fit wanted) {
    int s0 = rounded(wanted.scale * inverse(k->d), 0, 63), m0 = rounded(-wanted.low * inverse(k->dmin), 0, 63);
    double best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++)
        for (int m = m0 - 1; m <= m0 + 1; m++) {
            float q[SUB32];
            if (s < 0 || s > 63 || m < 0 || m > 63) continue;
            double e = encode_sub(k, b, s, m, q);
            if (!(e < best)) continue;
            best = e;
            k->s[b] = s, k->m[b] = m;
            memcpy(k->q + b * SUB32, q, sizeof q);
        }
    return best;
}

static double choose_all(Super *k, const Fit wanted[N_SUB32]) {
    double error = 0;
    for (int b = 0; b < N_SUB32; b++) error += choose_sub(k, b, wanted[b]);
    return error;
}

/* Least squares of x over s q and -m: the best d and dmin for the integers as they are. False: there are none. */
static bool solve_super(const Super *k, float *d, float *dmin) {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int i = 0; i < N; i++) {
        int sub = i / SUB32;
        double w = (double)k->w[i], x = (double)k->x[i], a = (double)k->s[sub] * (double)k->q[i],
               b = -(double)k->m[sub];
        aa += w * a * a, ab += w * a * b, bb += w * b * b, ax += w * a * x, bx += w * b * x;
    }
    double det = aa * bb - ab * ab;
    if (bb == 0) *d = (float)(ax / aa), *dmin = 0; /* no minimum is below zero */
    else *d = (float)((ax * bb - bx * ab) / det), *dmin = (float)((aa * bx - ab * ax) / det);
    return isfinite(*d) && isfinite(*dmin) && *d > 0 && *dmin >= 0;
}

static void pack_scales(const Super *k, uint8_t *p) {
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(k->s[i] | k->s[i + 4] >> 4 << 6);
        p[i + 4] = (uint8_t)(k->m[i] | k->m[i + 4] >> 4 << 6);
        p[i + 8] = (uint8_t)((k->s[i + 4] & 15) | (k->m[i + 4] & 15) << 4);
    }
}

static void pack_super(const Super *k, uint8_t *dst, uint8_t *h, uint8_t *q) {
    (void)quant_store_half(dst, k->d);
    (void)quant_store_half(dst + 2, k->dmin);
    pack_scales(k, dst + 4);
    memset(q, 0, N / 2);
    if (h) memset(h, 0, 32);
    for (int i = 0; i < N; i++) {
        int b = i / SUB32, l = i % SUB32, code = (int)k->q[i];
        uint8_t *byte = &q[b / 2 * 32 + l];
        *byte = (uint8_t)(*byte | (code & 15) << b % 2 * 4);
        if (h) h[l] = (uint8_t)(h[l] | code >> 4 << b);
    }
}

static void encode_super(const float *x, const float *w, float most, uint8_t *dst, uint8_t *h, uint8_t *q) {
    Super k = {.x = x, .w = w, .most = most}, best = k;
    Fit wanted[N_SUB32];
    float scale = 0, low = 0;
    uint8_t half[2];
    for (int b = 0; b < N_SUB32; b++) {
        wanted[b] = fit_range(x + b * SUB32, w + b * SUB32, SUB32, most, true);
        scale = wanted[b].scale > scale ? wanted[b].scale : scale;
        low = wanted[b].low < low ? wanted[b].low : low;
    }
    k.d = scale / 63, k.dmin = -low / 63;
    double error = INFINITY;
    for (int i = 0; i <= N_ROUNDS; i++) {
        k.d = quant_store_half(half, k.d), k.dmin = quant_store_half(half, k.dmin);
        double e = choose_all(&k, wanted);
        if (!(e < error)) break;
        error = e;
        best = k;
        if (!solve_super(&best, &k.d, &k.dmin)) break;
    }
    pack_super(&best, dst, h, q);
}

void quant_q4_k(const float *x, const float *w, uint8_t *dst) { encode_super(x, w, 15, dst, NULL, dst + 16); }
void quant_q5_k(const float *x, const float *w, uint8_t *dst) { encode_super(x, w, 31, dst, dst + 16, dst + 48); }

/* ---- Q6_K -------------------------------------------------------------------------------------------- */

typedef struct Super6 {
    const float *x, *w;
    float d;
    int s[N_SUB16];
    float q[N];
} Super6;

static double choose_sub6(Super6 *k, int b, float wanted) {
    int s0 = rounded(wanted * inverse(k->d), -128, 127);
    double best = INFINITY;
    for (int s = s0 - 1; s <= s0 + 1; s++) {
        float q[SUB16];
        if (s < -128 || s > 127) continue;
        Fit fit = {k->d * (float)s, 0};
        fit_codes(fit, k->x + b * SUB16, SUB16, -32, 31, q);
        double e = fit_error(fit, k->x + b * SUB16, k->w + b * SUB16, SUB16, q);
        if (!(e < best)) continue;
        best = e;
        k->s[b] = s;
        memcpy(k->q + b * SUB16, q, sizeof q);
    }
    return best;
}

static double choose_all6(Super6 *k, const float wanted[N_SUB16]) {
    double error = 0;
    for (int b = 0; b < N_SUB16; b++) error += choose_sub6(k, b, wanted[b]);
    return error;
}

static bool solve_super6(const Super6 *k, float *d) {
    double aa = 0, ax = 0;
    for (int i = 0; i < N; i++) {
        int sub = i / SUB16;
        double a = (double)k->s[sub] * (double)k->q[i];
        aa += (double)k->w[i] * a * a, ax += (double)k->w[i] * a * (double)k->x[i];
    }
    *d = (float)(ax / aa);
    return isfinite(*d) && *d != 0;
}

static void pack_super6(const Super6 *k, uint8_t *dst) {
    memset(dst, 0, 192);
    (void)quant_store_half(dst + 208, k->d);
    for (int b = 0; b < N_SUB16; b++) dst[192 + b] = (uint8_t)k->s[b];
    for (int i = 0; i < N; i++) {
        int code = (int)k->q[i] + 32, half = i / 128, part = i % 128 / 32, l = i % 32;
        uint8_t *q = &dst[half * 64 + (part & 1) * 32 + l], *h = &dst[128 + half * 32 + l];
        *q = (uint8_t)(*q | (code & 15) << part / 2 * 4);
        *h = (uint8_t)(*h | code >> 4 << part * 2);
    }
}

void quant_q6_k(const float *x, const float *w, uint8_t *dst) {
    Super6 k = {.x = x, .w = w}, best = k;
    float wanted[N_SUB16], extreme = 0;
    uint8_t half[2];
    for (int b = 0; b < N_SUB16; b++) {
        wanted[b] = fit_scale(x + b * SUB16, w + b * SUB16, SUB16, -32, 31).scale;
        if (fabsf(wanted[b]) > fabsf(extreme)) extreme = wanted[b];
    }
    k.d = extreme / -128;
    double error = INFINITY;
    for (int i = 0; i <= N_ROUNDS; i++) {
        k.d = quant_store_half(half, k.d);
        double e = choose_all6(&k, wanted);
        if (!(e < error)) break;
        error = e;
        best = k;
        if (!solve_super6(&best, &k.d)) break;
    }
    pack_super6(&best, dst);
}

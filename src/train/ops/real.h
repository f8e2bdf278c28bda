/* real.h - the number type of the ops: float, or double where a test proves gradients by finite differences.
 *
 * Every file op_*.c and llama_net.c is written over `real`. The program compiles them with float; a test defines
 * TRAIN_DOUBLE, includes the very same files, and has them in double.
 *
 * One rule for all of the backward functions: they add to the gradients (d...) they are given, and NULL for one means
 * that nobody wants it. "dx" is the derivative of the loss by x and has x's shape. All arrays are row-major and
 * contiguous, [n_rows][n], and the arrays of a call do not overlap unless the header says so.
 */
#ifndef OPS_REAL_H
#define OPS_REAL_H

#include "train/ops/gemm.h"

#include <tgmath.h>

/* Before a function with loops: compiled for each of these instruction sets too, and the CPU's best is taken when the
 * program starts. Wider vectors do more numbers at once and nothing else, so that the bits stay the same: sums are spelled
 * out in lanes below, and no product is contracted into a sum. (ThreadSanitizer crashes on the choice: the Makefile defines
 * it away there. Clang goes without: its version 14 gives the choice a name that no other file finds.) */
#ifndef REAL_CLONES
#if defined(__x86_64__) && !defined(__clang__)
#define REAL_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define REAL_CLONES
#endif
#endif
#define REAL_INLINE static inline __attribute__((always_inline))

#ifdef TRAIN_DOUBLE
#include <cblas.h>
typedef double real;
REAL_INLINE double real_exp(double x) { return exp(x); }
#else
typedef float real;

/* e^x within 2 units in the last place, in steps that a compiler can do for many x side by side:
 * x = n ln 2 + r with |r| <= ln(2)/2, e^r by its Taylor series, 2^n by the exponent bits. Below -87 it stays at the
 * smallest normal numbers, above 88 at about 1e38. */
REAL_INLINE float real_exp(float x) {
    const float to_whole = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    x = x < -87 ? -87 : x;
    x = x > 88 ? 88 : x;
    float n = (x * 0x1.715476p0f + to_whole) - to_whole;
    float r = (x - n * ln2_high) - n * ln2_low;
    float p = 1 / 720.0f + r * (1 / 5040.0f);
    p = 1 / 120.0f + r * p;
    p = 1 / 24.0f + r * p;
    p = 1 / 6.0f + r * p;
    p = 0.5f + r * p;
    p = 1 + r * (1 + r * p);
    union {
        int32_t bits;
        float value;
    } power = {.bits = ((int32_t)n + 127) << 23};
    return p * power.value;
}
#endif

/* gemm.h's product; of doubles always an exact one. */
static inline void real_gemm(bool turns_a, bool turns_b, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
                             int64_t a_stride, const real *b, int64_t b_stride, bool adds, real *c, int64_t c_stride) {
#ifdef TRAIN_DOUBLE
    cblas_dgemm(CblasRowMajor, turns_a ? CblasTrans : CblasNoTrans, turns_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k,
                alpha, a, (int)a_stride, b, (int)b_stride, adds ? 1 : 0, c, (int)c_stride);
#else
    gemm(turns_a, turns_b, m, n, k, alpha, a, a_stride, b, b_stride, adds, c, c_stride);
#endif
}

/* Sums and maxima of n numbers, in REAL_LANES running ones that a compiler keeps side by side. */
enum { REAL_LANES = 16 };

REAL_INLINE real real_fold(real lane[REAL_LANES]) {
    for (int half = REAL_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

REAL_INLINE real real_dot(const real *a, const real *b, int64_t n) {
    real lane[REAL_LANES] = {0};
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] += a[i + k] * b[i + k];
    for (; i < n; i++) lane[i % REAL_LANES] += a[i] * b[i];
    return real_fold(lane);
}

REAL_INLINE real real_sum(const real *a, int64_t n) {
    real lane[REAL_LANES] = {0};
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] += a[i + k];
    for (; i < n; i++) lane[i % REAL_LANES] += a[i];
    return real_fold(lane);
}

REAL_INLINE real real_max(const real *a, int64_t n) {
    real lane[REAL_LANES];
    for (int k = 0; k < REAL_LANES; k++) lane[k] = a[0];
    int64_t i = 0;
    for (; i + REAL_LANES <= n; i += REAL_LANES)
        for (int k = 0; k < REAL_LANES; k++) lane[k] = a[i + k] > lane[k] ? a[i + k] : lane[k];
    for (; i < n; i++) lane[0] = a[i] > lane[0] ? a[i] : lane[0];
    for (int k = 1; k < REAL_LANES; k++) lane[0] = lane[k] > lane[0] ? lane[k] : lane[0];
    return lane[0];
}

/* p[i] = exp(x[i] - max) / sum; p may be x. Returns log(sum of exp(x[i])). */
REAL_INLINE real real_softmax(real *p, const real *x, int64_t n) {
    real max = real_max(x, n);
    for (int64_t i = 0; i < n; i++) p[i] = real_exp(x[i] - max);
    real sum = real_sum(p, n), inverse = 1 / sum;
    for (int64_t i = 0; i < n; i++) p[i] *= inverse;
    return max + log(sum);
}

#endif

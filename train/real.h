/* real.h - the number type of the ops: float, or double where a test proves gradients by finite differences.
 *
 * The ops and the networks are written over `real`. The program compiles them with float; a test defines TRAIN_DOUBLE,
 * includes the same files, and so has them in double.
 *
 * All backward functions follow one rule: they add to the gradients (d...) that they are given, and NULL for a gradient
 * means that it is not needed. "dx" is the derivative of the loss with respect to x and has x's shape. All arrays are
 * row-major and contiguous, [n_rows][n], and the arrays of a call do not overlap unless the header says so.
 */
#ifndef OPS_REAL_H
#define OPS_REAL_H

#include "train/gemm.h"

#include <tgmath.h>

/* Marks a function with loops: it is compiled for each of these instruction sets, and the best one for the CPU is
 * chosen when the program starts. Wider vectors only handle more numbers at once, so the bits stay the same: sums are
 * spelled out in lanes below, and no product is contracted into a sum. (ThreadSanitizer crashes on the resolver, so the
 * Makefile defines the macro away there. Clang goes without it: version 14 gives the resolver a name that other files
 * cannot link to.) */
#ifndef REAL_CLONES
#if defined(__x86_64__) && !defined(__clang__)
#define REAL_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define REAL_CLONES
#endif
#endif
#define REAL_INLINE static inline __attribute__((always_inline))

#ifdef TRAIN_DOUBLE
typedef double real;
REAL_INLINE double real_exp(double x) { return exp(x); }
#else
typedef float real;

/* e^x within 2 units in the last place, in operations that a compiler can vectorise over many x:
 * x = n ln 2 + r with |r| <= ln(2)/2, e^r by its Taylor series, 2^n by the exponent bits. x is clamped to
 * -87 .. 88, so the result stays between the smallest normal numbers and about 1e38. n is read from the bits of
 * n + 1.5 * 2^23, whose last bit counts one: converting a NaN to an integer is undefined, and its bits are not. */
REAL_INLINE float real_exp(float x) {
    const float to_whole = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    x = x < -87 ? -87 : x;
    x = x > 88 ? 88 : x;
    union {
        float value;
        uint32_t bits;
    } sum = {x * 0x1.715476p0f + to_whole}, whole = {to_whole}, power;
    float n = sum.value - to_whole;
    float r = (x - n * ln2_high) - n * ln2_low;
    float p = 1 / 720.0f + r * (1 / 5040.0f);
    p = 1 / 120.0f + r * p;
    p = 1 / 24.0f + r * p;
    p = 1 / 6.0f + r * p;
    p = 0.5f + r * p;
    p = 1 + r * (1 + r * p);
    power.bits = (sum.bits - whole.bits + 127) << 23;
    return p * power.value;
}
#endif

/* The product of gemm.h; for doubles by three plain loops, because tests multiply small matrices. */
static inline void real_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, real alpha,
                             const real *a, int64_t a_stride, const real *b, int64_t b_stride, bool accumulate, real *c,
                             int64_t c_stride) {
#ifdef TRAIN_DOUBLE
    const int64_t a_row = transpose_a ? 1 : a_stride, a_column = transpose_a ? a_stride : 1;
    const int64_t b_row = transpose_b ? 1 : b_stride, b_column = transpose_b ? b_stride : 1;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            real sum = 0;
            for (int64_t l = 0; l < k; l++) sum += a[i * a_row + l * a_column] * b[l * b_row + j * b_column];
            c[i * c_stride + j] = alpha * sum + (accumulate ? c[i * c_stride + j] : 0);
        }
#else
    gemm(transpose_a, transpose_b, m, n, k, alpha, a, a_stride, b, b_stride, accumulate, c, c_stride);
#endif
}

/* Sums and maxima of n numbers, kept in REAL_LANES running ones that fit vector registers. */
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

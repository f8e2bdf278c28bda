/* float16.c - 16-bit floats to 32-bit and back, with integer arithmetic only: the same bits on every machine.
 *
 *     F32   s eeeeeeee fffffffffffffffffffffff    bias 127
 *     F16   s eeeee ffffffffff                    bias 15
 *     BF16  s eeeeeeee fffffff                    bias 127: the upper half of an F32
 *
 * At the end are the two operations of vdpbf16ps whose treatment of subnormal numbers differs from C's. The instruction
 * ignores the rounding and flush settings of the CPU: it always rounds to nearest even, and always flushes subnormal
 * inputs and results to zero. Proof: tests/compute/test_kernels_matmul.c and tests/train/test_gemm.c compare this
 * arithmetic with the instruction, bit by bit, on CPUs that have it.
 */
#include "gguf/tensor_type.h"

#include <float.h>
#include <math.h>
#include <string.h>

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13); /* infinity, NaN */
    if (exponent != 0) return float_of(sign | (exponent + 127 - 15) << 23 | fraction << 13);
    float magnitude = (float)fraction *
                      0x1p-24f; /* zero and subnormals; the product is exact because both factors are short */
    return float_of(sign | bits_of(magnitude));
}

/* v >> shift, rounded to nearest, ties to even; 0 < shift < 32. */
static uint32_t shift_rounded(uint32_t v, unsigned shift) {
    uint32_t kept = v >> shift, rest = v & (((uint32_t)1 << shift) - 1), tie = (uint32_t)1 << (shift - 1);
    return kept + (rest > tie || (rest == tie && (kept & 1)));
}

uint16_t float_to_half(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff)); /* a NaN becomes a quiet NaN */
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00);    /* 65536 and above */
    if (magnitude >=
        0x38800000) /* normal from 2^-14 on; a carry out of the fraction raises the exponent as it should */
        return (uint16_t)(sign | shift_rounded(magnitude - ((uint32_t)(127 - 15) << 23), 13));
    unsigned exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign; /* below 2^-25: nearer to 0 than to 2^-24 */
    uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | shift_rounded(significand, 126 - exponent));
}

float bf16_to_float(uint16_t h) { return float_of((uint32_t)h << 16); }

uint16_t float_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* rounding might make NaN infinite */
    return (uint16_t)shift_rounded(u, 16);
}

/* ---- dot products of bfloat16 -------------------------------------------------------------------------------- */

uint16_t bf16_dot_operand(float x) { return float_to_bf16(fabsf(x) < FLT_MIN ? copysignf(0, x) : x); }

/* x86 decides whether a result is subnormal after rounding it to 24 bits with an unbounded exponent. The sum in double
 * shows that exactly, since it errs by far less than 2^-151 there. */
float bf16_dot_add(float a, float b, float c) {
    float y = fmaf(a, b, c);
    if (fabsf(y) > 2 * FLT_MIN) return y;
    double exact = (double)a * b + c;
    return exact != 0 && fabs(exact) < (double)FLT_MIN * (1 - 0x1p-25) ? copysignf(0, (float)exact) : y;
}

/* bf16_dot.c - the two operations of vdpbf16ps whose treatment of subnormal numbers differs from C's.
 *
 * The instruction ignores the rounding and flush settings of the CPU: it always rounds to nearest even, and always
 * flushes subnormal inputs and results to zero. Proof: tests/compute/test_kernels_matmul.c and tests/train/test_gemm.c
 * compare this arithmetic with the instruction, bit by bit, on CPUs that have it. */
#include "gguf/bf16_dot.h"

#include "gguf/blocks.h"

#include <float.h>
#include <math.h>

uint16_t bf16_dot_operand(float x) { return float_to_bf16(fabsf(x) < FLT_MIN ? copysignf(0, x) : x); }

/* x86 decides whether a result is subnormal after rounding it to 24 bits with an unbounded exponent. The sum in double
 * shows that exactly, since it errs by far less than 2^-151 there. */
float bf16_dot_add(float a, float b, float c) {
    float y = fmaf(a, b, c);
    if (fabsf(y) > 2 * FLT_MIN) return y;
    double exact = (double)a * b + c;
    return exact != 0 && fabs(exact) < (double)FLT_MIN * (1 - 0x1p-25) ? copysignf(0, (float)exact) : y;
}

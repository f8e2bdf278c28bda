/* bf16_dot.h - the arithmetic of x86's vdpbf16ps in plain C: dot products of BF16 numbers, summed in a float.
 *
 * The instruction takes its inputs in pairs and adds two products to an accumulator, the odd one of a pair first. The
 * reference kernels and the training products (train/gemm.c) are both defined by these two functions. */
#ifndef FORMAT_BF16_DOT_H
#define FORMAT_BF16_DOT_H

#include <stdint.h>

/* x rounded to the nearest BF16, ties to even; a subnormal x becomes a zero of its sign. */
uint16_t bf16_dot_operand(float x);
/* a * b + c with one rounding; a subnormal result becomes a zero of its sign. */
float bf16_dot_add(float a, float b, float c);

#endif

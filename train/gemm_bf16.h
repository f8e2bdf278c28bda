/* gemm_bf16.h - products of matrices whose numbers are rounded to BF16 first: their arithmetic, and the kernels.
 *
 * An input is rounded to BF16 (nearest, ties to even; a subnormal becomes zero). The inner dimension is cut into blocks
 * of BF16_DEPTH. In a block an output owns one float accumulator, which starts as +0 and takes the inputs in ascending
 * pairs as vdpbf16ps does (format/bf16_dot.h; an odd last input is paired with zero). Then
 *
 *     c = alpha acc      or, with `accumulate` or after the first block,      c = c + alpha acc
 *
 * each operation rounded on its own. So the bits of an output depend on nothing but its own inputs, and all kernels of
 * a precision give the same.
 *
 * The precision "bf16-tiles" differs only in the sum of a block, which is that of AMX's tdpbf16ps. A block is cut into
 * steps of BF16_STEP inputs; missing ones are zeros. In a step, the even and the odd inputs of the pairs are summed
 * apart, each sum from +0, in ascending order, by fused multiply-adds whose subnormal results become zero. Then
 *
 *     acc = ftz(acc + ftz(odd sum + even sum))
 *
 * In both precisions a product of k inputs errs by at most about (2^-7 + k 2^-23) sum |a b|; the first term is the
 * rounding of the two inputs, 2^-8 each.
 */
#ifndef OPS_GEMM_BF16_H
#define OPS_GEMM_BF16_H

#include <stdbool.h>
#include <stdint.h>

enum { BF16_DEPTH = 256, BF16_STEP = 32 };

/* [outputs][k] if inputs are adjacent, else [k][outputs]; rows begin `stride` numbers apart. */
typedef struct Bf16Operand {
    const float *at;
    int64_t stride;
    bool inputs_adjacent;
} Bf16Operand;

/* c_ij = alpha sum_l a_il b_jl. c: [m][n] */
typedef struct Bf16Product {
    int64_t m, n, k;
    Bf16Operand a, b; /* of m and n outputs */
    float alpha;
    bool accumulate;
    float *c;
    int64_t c_stride;
} Bf16Product;

void gemm_bf16_plain(const Bf16Product *p); /* the specifications */
void gemm_bf16_tiles_plain(const Bf16Product *p);
#if defined(__x86_64__)
void gemm_bf16_avx512(const Bf16Product *p);    /* AVX-512 F, BW, VL, DQ, BF16 */
void gemm_bf16_tiles_amx(const Bf16Product *p); /* and AMX-TILE, AMX-BF16 */
/* Whether vdpbf16ps does more operations a second than fused multiply-adds of floats: measured, for a millisecond. Some
 * CPUs have it for its numbers and not for speed. Needs what gemm_bf16_avx512 needs. */
bool gemm_bf16_is_faster(void);
#endif

#endif

/* gemm.h - the matrix product of training: in float by OpenBLAS, or with inputs rounded to BF16 by our own kernels,
 * which sum as vdpbf16ps does or as AMX tiles do. */
#ifndef TRAIN_GEMM_H
#define TRAIN_GEMM_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* GEMM_NOT_CHOSEN is for options that were not given. */
typedef enum GemmPrecision { GEMM_F32, GEMM_BF16, GEMM_BF16_TILES, GEMM_NOT_CHOSEN } GemmPrecision;

/* Sets the precision of the whole process; call it before the first product, and while no other thread runs. GEMM_F32
 * loads OpenBLAS, which can fail: it may not be installed, or the address space may be too small for it. At most
 * n_threads threads will call gemm at a time. */
int gemm_open(GemmPrecision precision, int n_threads, fr_error *err);
GemmPrecision gemm_precision(void); /* the one set by gemm_open */
/* Returns the default: GEMM_BF16 where the CPU multiplies BF16 faster than floats, which the first call measures, else
 * GEMM_F32. GEMM_BF16_TILES is chosen by name only, because its speed has not been measured yet. */
GemmPrecision gemm_best_precision(void);
/* Returns whether this CPU has instructions for the precision; without them BF16 is plain C. */
bool gemm_has_instructions(GemmPrecision precision);
const char *gemm_precision_name(GemmPrecision precision); /* "f32", "bf16", "bf16-tiles" */
/* Returns the kernel in use, for display: "float (OpenBLAS SkylakeX)", "BF16 (AVX-512)", "BF16 tiles (plain C,
 * slow)". */
const char *gemm_description(void);

/* c = alpha op(a) op(b), or with `accumulate` c += that; op transposes a matrix whose flag is set. c: [m][n]; a:
 * [m][k], transposed [k][m]; b: [k][n], transposed [n][k]; rows of x begin x_stride numbers apart. The bits depend on
 * only the arguments and the precision. In BF16 they are the same on every machine; in float they are those of the
 * installed OpenBLAS. */
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
          int64_t a_stride, const float *b, int64_t b_stride, bool accumulate, float *c, int64_t c_stride);

/* ---- products of BF16 -------------------------------------------------------------------------------- */

/* Their arithmetic.
 *
 * An input is rounded to BF16 (nearest, ties to even; a subnormal becomes zero). The inner dimension is cut into blocks
 * of BF16_DEPTH. In a block an output owns one float accumulator, which starts as +0 and takes the inputs in ascending
 * pairs as vdpbf16ps does (bf16_dot_add in gguf/tensor_type.h; an odd last input is paired with zero). Then
 *
 *     c = alpha acc      or, with `accumulate` or after the first block,      c = c + alpha acc
 *
 * where each operation is rounded. So the bits of an output depend on nothing but its own inputs, and all kernels of a
 * precision give the same.
 *
 * The precision "bf16-tiles" differs only in the sum of a block, which is that of AMX's tdpbf16ps. A block is cut into
 * steps of BF16_STEP inputs; missing ones are zeros. In a step, the even and the odd inputs of the pairs are summed
 * apart, each sum from +0, in ascending order, by fused multiply-adds whose subnormal results become zero. Then
 *
 *     acc = ftz(acc + ftz(odd sum + even sum))
 *
 * In both precisions a product of k inputs errs by at most about (2^-7 + k 2^-23) sum |a b|; the first term is the
 * rounding of the two inputs, 2^-8 each. */
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
    Bf16Operand a, b; /* operands of m and n outputs */
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
/* Measures, for a few milliseconds, whether vdpbf16ps does more operations a second than fused multiply-adds of floats:
 * some CPUs have the instruction only for its numbers. The CPU must have the instructions of gemm_bf16_avx512. */
bool gemm_bf16_is_faster(void);
#endif

#endif

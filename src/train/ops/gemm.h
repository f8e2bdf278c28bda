/* gemm.h - the matrix product of training: in float by OpenBLAS, or with inputs rounded to BF16 by our own kernel
 * (gemm_bf16.h). */
#ifndef OPS_GEMM_H
#define OPS_GEMM_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum GemmPrecision { GEMM_F32, GEMM_BF16 } GemmPrecision;

/* Sets the precision of the whole process; call it before the first product, and while no other thread runs. GEMM_F32
 * loads OpenBLAS, which can fail: it may not be installed, or the address space may be too small for it. At most
 * n_threads threads will call gemm at a time. */
int gemm_open(GemmPrecision precision, int n_threads, fr_error *err);
GemmPrecision gemm_precision(void); /* the one set by gemm_open */
/* The fastest precision on this CPU: GEMM_BF16 where it has BF16 instructions. */
GemmPrecision gemm_best_precision(void);
const char *gemm_precision_name(GemmPrecision precision); /* "f32", "bf16" */
/* The kernel in use, for display: "float (OpenBLAS)", "BF16 (AVX-512)", "BF16 (plain C, slow)". */
const char *gemm_description(void);

/* c = alpha op(a) op(b), or with `accumulate` c += that; op transposes a matrix whose flag is set. c: [m][n]; a:
 * [m][k], transposed [k][m]; b: [k][n], transposed [n][k]; rows of x begin x_stride numbers apart. The bits depend on
 * the arguments and the precision alone. In BF16 they are the same on every machine; in float they are those of the
 * installed OpenBLAS. */
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
          int64_t a_stride, const float *b, int64_t b_stride, bool accumulate, float *c, int64_t c_stride);

#endif

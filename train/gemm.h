/* gemm.h - the matrix product of training: in float by OpenBLAS, or with inputs rounded to BF16 by our own kernels
 * (gemm_bf16.h), which sum as vdpbf16ps does or as AMX tiles do. */
#ifndef OPS_GEMM_H
#define OPS_GEMM_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum GemmPrecision { GEMM_F32, GEMM_BF16, GEMM_BF16_TILES } GemmPrecision;

/* Sets the precision of the whole process; call it before the first product, and while no other thread runs. GEMM_F32
 * loads OpenBLAS, which can fail: it may not be installed, or the address space may be too small for it. At most
 * n_threads threads will call gemm at a time. */
int gemm_open(GemmPrecision precision, int n_threads, fr_error *err);
GemmPrecision gemm_precision(void); /* the one set by gemm_open */
/* The default: GEMM_BF16 where the CPU multiplies BF16 faster than floats, which the first call measures, else
 * GEMM_F32. GEMM_BF16_TILES is chosen by name only, because its speed has not been measured yet. */
GemmPrecision gemm_best_precision(void);
/* Whether this CPU has instructions for the precision; without them BF16 is plain C. */
bool gemm_has_instructions(GemmPrecision precision);
const char *gemm_precision_name(GemmPrecision precision); /* "f32", "bf16", "bf16-tiles" */
/* The kernel in use, for display: "float (OpenBLAS SkylakeX)", "BF16 (AVX-512)", "BF16 tiles (plain C, slow)". */
const char *gemm_description(void);

/* c = alpha op(a) op(b), or with `accumulate` c += that; op transposes a matrix whose flag is set. c: [m][n]; a:
 * [m][k], transposed [k][m]; b: [k][n], transposed [n][k]; rows of x begin x_stride numbers apart. The bits depend on
 * only the arguments and the precision. In BF16 they are the same on every machine; in float they are those of the
 * installed OpenBLAS. */
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
          int64_t a_stride, const float *b, int64_t b_stride, bool accumulate, float *c, int64_t c_stride);

#endif

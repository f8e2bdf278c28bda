/* gemm.h - the matrix product of training: in float by OpenBLAS, or with inputs rounded to BF16 (gemm_bf16.h). */
#ifndef OPS_GEMM_H
#define OPS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

typedef enum GemmPrecision { GEMM_F32, GEMM_BF16 } GemmPrecision;

/* Holds for the whole process, from before the first product on; GEMM_F32 until it is called. Threads of OpenBLAS are
 * set to one: ours are the ones that share the work. */
void gemm_open(GemmPrecision precision);
GemmPrecision gemm_precision(void); /* that of gemm_open */
/* What this CPU is fastest with: GEMM_BF16 where it has products of BF16. */
GemmPrecision gemm_best_precision(void);
const char *gemm_precision_name(GemmPrecision precision); /* "f32", "bf16" */
/* What multiplies, for people: "float (OpenBLAS)", "BF16 (AVX-512)", "BF16 (plain C, slow)". */
const char *gemm_description(void);

/* c = alpha op(a) op(b), or with `adds` c += that; op turns a matrix whose flag is set.
 * c: [m][n]; a: [m][k], turned [k][m]; b: [k][n], turned [n][k]; a row of x is x_stride numbers behind the one before. The
 * bits depend on the arguments and the precision alone: in BF16 on no machine, in float on OpenBLAS. */
void gemm(bool turns_a, bool turns_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t a_stride,
          const float *b, int64_t b_stride, bool adds, float *c, int64_t c_stride);

#endif

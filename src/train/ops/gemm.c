/* gemm.c - chooses, once for the process, which kernel multiplies matrices: OpenBLAS in float, or one of two BF16
 * kernels with the same bits. The program chooses BF16 where the CPU has AVX-512 BF16; docs/TRAINING.md compares the
 * speed and the losses. */
#include "train/ops/gemm.h"

#include "train/ops/gemm_bf16.h"

#include <cblas.h>

/* NULL: products in float, by OpenBLAS. Written once, before any product. */
static void (*multiply_bf16)(const Bf16Product *p);

static bool has_avx512_bf16(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

void gemm_open(GemmPrecision precision) {
    openblas_set_num_threads(1);
    multiply_bf16 = precision == GEMM_F32 ? NULL : gemm_bf16_plain;
#if defined(__x86_64__)
    if (precision == GEMM_BF16 && has_avx512_bf16()) multiply_bf16 = gemm_bf16_avx512;
#endif
}

GemmPrecision gemm_precision(void) { return multiply_bf16 ? GEMM_BF16 : GEMM_F32; }

GemmPrecision gemm_best_precision(void) { return has_avx512_bf16() ? GEMM_BF16 : GEMM_F32; }

const char *gemm_precision_name(GemmPrecision precision) { return precision == GEMM_BF16 ? "bf16" : "f32"; }

const char *gemm_description(void) {
    if (!multiply_bf16) return "float (OpenBLAS)";
    return multiply_bf16 == gemm_bf16_plain ? "BF16 (plain C, slow)" : "BF16 (AVX-512)";
}

void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
          int64_t a_stride, const float *b, int64_t b_stride, bool accumulate, float *c, int64_t c_stride) {
    if (multiply_bf16)
        multiply_bf16(&(Bf16Product){m,
                                     n,
                                     k,
                                     {a, a_stride, !transpose_a},
                                     {b, b_stride, transpose_b},
                                     alpha,
                                     accumulate,
                                     c,
                                     c_stride});
    else
        cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
                    (int)m, (int)n, (int)k, alpha, a, (int)a_stride, b, (int)b_stride, accumulate ? 1 : 0, c,
                    (int)c_stride);
}

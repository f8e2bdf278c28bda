/* kernels_avx512_bf16.c - table "avx512-bf16": AVX-512 with vdpbf16ps for BF16 weights. Only this file is compiled for
 * these instructions (Makefile). */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx512.h"

#include "compute/cpu/kernels/tables.h"

#define TABLE kernels_avx512_bf16
#define TABLE_NAME "avx512-bf16"
#define TABLE_ROWS row_kernels_avx512
#include "compute/cpu/kernels/table_body.h"
#endif

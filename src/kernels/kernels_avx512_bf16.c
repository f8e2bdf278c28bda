/* kernels_avx512_bf16.c - table "avx512-bf16". */
#if defined(__x86_64__)
#include "kernels/simd_avx512.h"

#include "kernels/tables.h"

#define TABLE kernels_avx512_bf16
#define TABLE_NAME "avx512-bf16"
#include "kernels/table_body.h"
#endif

/* kernels_avx512.c - table "avx512": AVX-512 F, BW, VL, DQ and VNNI. Only this file is compiled for
 * these instructions (Makefile). */
#if defined(__x86_64__)
#include "kernels/simd_avx512.h"

#include "kernels/tables.h"

#define TABLE kernels_avx512
#define TABLE_NAME "avx512"
#define TABLE_ROWS row_kernels_avx512
#include "kernels/table_body.h"
#endif

/* kernels_avx512.c - table "avx512": AVX-512 F, BW, VL, DQ and VNNI. Only this file is compiled for
 * these instructions (Makefile). */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx512.h"

#include "compute/cpu/kernels/scores.h"
#include "compute/cpu/kernels/tables.h"

#define ROW_TABLE row_kernels_avx512
#include "compute/cpu/kernels/row_body.h"

#define SCORE_TABLE score_kernels_avx512
#define SCORE_TABLE_NAME "avx512"
#include "compute/cpu/kernels/scores_body.h"

#define TABLE kernels_avx512
#define TABLE_NAME "avx512"
#define TABLE_ROWS row_kernels_avx512
#include "compute/cpu/kernels/table_body.h"
#endif

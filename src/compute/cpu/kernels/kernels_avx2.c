/* kernels_avx2.c - table "avx2": AVX2 with FMA and F16C, for x86-64 from 2013 on. Only this file is compiled for
 * these instructions (Makefile). */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx2.h"

#include "compute/cpu/kernels/scores.h"
#include "compute/cpu/kernels/tables.h"

#define ROW_TABLE row_kernels_avx2
#include "compute/cpu/kernels/row_body.h"

#define SCORE_TABLE score_kernels_avx2
#define SCORE_TABLE_NAME "avx2"
#include "compute/cpu/kernels/scores_body.h"

#define TABLE kernels_avx2
#define TABLE_NAME "avx2"
#define TABLE_ROWS row_kernels_avx2
#include "compute/cpu/kernels/table_body.h"
#endif

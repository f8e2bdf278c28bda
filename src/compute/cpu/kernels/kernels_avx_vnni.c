/* kernels_avx_vnni.c - table "avx-vnni": the kernels of "avx2" with vpdpbusd and vpdpwssd, for CPUs without AVX-512.
 * Only this file is compiled for these instructions (Makefile). */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx2.h"

#include "compute/cpu/kernels/scores.h"
#include "compute/cpu/kernels/tables.h"

#define SCORE_TABLE score_kernels_avx_vnni
#define SCORE_TABLE_NAME "avx-vnni"
#include "compute/cpu/kernels/scores_body.h"

#define TABLE kernels_avx_vnni
#define TABLE_NAME "avx-vnni"
#define TABLE_ROWS row_kernels_avx2
#include "compute/cpu/kernels/table_body.h"
#endif

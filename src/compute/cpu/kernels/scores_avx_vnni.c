/* scores_avx_vnni.c - scores.h for AVX-VNNI: 8 keys to a vector, two products a lane by vpdpwssd. Only this file is
 * compiled for these instructions (Makefile). */
#if defined(__x86_64__)
#include "compute/cpu/kernels/scores_simd_avx2.h"

#define TABLE score_kernels_avx_vnni
#define TABLE_NAME "avx-vnni"
#include "compute/cpu/kernels/scores_body.h"
#endif

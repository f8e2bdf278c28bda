/* scores_avx2.c - scores.h for AVX2: 8 keys to a vector, two products a lane by vpmaddwd. Only this file is compiled for
 * these instructions (Makefile). */
#if defined(__x86_64__)
#include "compute/cpu/kernels/scores_simd_avx2.h"

#define TABLE score_kernels_avx2
#define TABLE_NAME "avx2"
#include "compute/cpu/kernels/scores_body.h"
#endif

/* evex_scores.c - the scores of table "avx-vnni" in the encoding that CPUs with AVX-512 have; see evex_vnni.c. */
#include "evex_scores.h"

#if defined(__x86_64__)
#include "compute/cpu/kernels/scores_simd_avx2.h"

#if !defined(DPBUSD)
#error "compile this file with -mavx512vl -mavx512vnni"
#endif

#define TABLE score_kernels_evex_vnni
#define TABLE_NAME "avx-vnni as EVEX"
#include "compute/cpu/kernels/scores_body.h"
#endif

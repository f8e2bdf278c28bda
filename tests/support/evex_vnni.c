/* evex_vnni.c - the code of table "avx-vnni" in the encoding that CPUs with AVX-512 have, so that its arithmetic is
 * tested on those CPUs: the same header, the same bodies, but vpdpbusd on 256 bits encoded as EVEX instead of VEX. */
#include "all_tables.h"

#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx2.h"

#include "compute/cpu/kernels/tables.h"

#if !defined(DPBUSD)
#error "compile this file with -mavx512vl -mavx512vnni"
#endif

#define SCORE_TABLE score_kernels_evex_vnni
#define SCORE_TABLE_NAME "avx-vnni as EVEX"
#include "compute/cpu/kernels/scores_body.h"

#define TABLE kernels_evex_vnni
#define TABLE_NAME "avx-vnni as EVEX"
#define TABLE_ROWS row_kernels_avx2
#include "compute/cpu/kernels/table_body.h"
#endif

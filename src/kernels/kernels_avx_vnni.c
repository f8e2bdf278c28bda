/* kernels_avx_vnni.c - table "avx-vnni". */
#if defined(__x86_64__)
#include "kernels/simd_avx2.h"

#include "kernels/tables.h"

#define TABLE kernels_avx_vnni
#define TABLE_NAME "avx-vnni"
#include "kernels/table_body.h"
#endif

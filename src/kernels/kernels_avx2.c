/* kernels_avx2.c - table "avx2". */
#if defined(__x86_64__)
#include "kernels/simd_avx2.h"

#include "kernels/tables.h"

#define TABLE kernels_avx2
#define TABLE_NAME "avx2"
#include "kernels/table_body.h"
#endif

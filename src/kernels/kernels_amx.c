/* kernels_amx.c - table "amx": table "avx512", and AMX tiles for the products of many rows with the block types. Only
 * this file is compiled for these instructions (Makefile). A compiler that does not know them leaves the table empty, and
 * select.c does not list it. */
#if defined(__x86_64__)
#include "kernels/tables.h"

#if defined(__AMX_INT8__) || defined(__AMXINT8__) /* GCC, Clang */
#define BF16_BY_FMA                               /* the CPUs with tiles are Intel's (select.c) */
#include "kernels/simd_avx512.h"

#include "base/tiles_amx.h"

#define TABLE kernels_amx
#define TABLE_NAME "amx"
#define TABLE_ROWS row_kernels_avx512
#define TABLE_HAS_TILES
#include "kernels/table_body.h"
#else
const Kernels kernels_amx = {.name = NULL};
#endif
#endif

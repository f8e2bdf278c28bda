/* kernels_neon.c - table "neon": 64-bit ARM without extensions. Only this file is compiled for
 * these instructions (Makefile). */
#if defined(__aarch64__)
#include "kernels/simd_neon.h"

#include "kernels/tables.h"

#define TABLE kernels_neon
#define TABLE_NAME "neon"
#define TABLE_ROWS row_kernels_neon
#include "kernels/table_body.h"
#endif

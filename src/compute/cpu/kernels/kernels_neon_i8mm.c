/* kernels_neon_i8mm.c - table "neon-i8mm": 64-bit ARM with the matrix product of bytes (smmla). Only this file is
 * compiled for these instructions (Makefile). */
#if defined(__aarch64__)
#include "compute/cpu/kernels/simd_neon.h"

#include "compute/cpu/kernels/tables.h"

#define TABLE kernels_neon_i8mm
#define TABLE_NAME "neon-i8mm"
#define TABLE_ROWS row_kernels_neon
#include "compute/cpu/kernels/table_body.h"
#endif

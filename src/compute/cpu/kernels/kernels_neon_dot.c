/* kernels_neon_dot.c - table "neon-dot": 64-bit ARM with the dot product of bytes (sdot). Only this file is compiled
 * for these instructions (Makefile). */
#if defined(__aarch64__)
#include "compute/cpu/kernels/simd_neon.h"

#include "compute/cpu/kernels/scores.h"
#include "compute/cpu/kernels/tables.h"

#define SCORES_BY_BYTES
#define SCORE_TABLE score_kernels_neon_dot
#define SCORE_TABLE_NAME "neon-dot"
#include "compute/cpu/kernels/scores_body.h"

#define TABLE kernels_neon_dot
#define TABLE_NAME "neon-dot"
#define TABLE_ROWS row_kernels_neon
#include "compute/cpu/kernels/table_body.h"
#endif

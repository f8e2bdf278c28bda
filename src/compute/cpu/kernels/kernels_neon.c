/* kernels_neon.c - table "neon": 64-bit ARM without extensions. Only this file is compiled for
 * these instructions (Makefile). */
#if defined(__aarch64__)
#include "compute/cpu/kernels/simd_neon.h"

#include "compute/cpu/kernels/scores.h"
#include "compute/cpu/kernels/tables.h"

#define ROW_TABLE row_kernels_neon
#include "compute/cpu/kernels/row_body.h"

#define SCORE_TABLE score_kernels_neon
#define SCORE_TABLE_NAME "neon"
#include "compute/cpu/kernels/scores_body.h"

#define TABLE kernels_neon
#define TABLE_NAME "neon"
#define TABLE_ROWS row_kernels_neon
#include "compute/cpu/kernels/table_body.h"
#endif

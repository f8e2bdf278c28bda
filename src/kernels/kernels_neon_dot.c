/* kernels_neon_dot.c - table "neon-dot". */
#if defined(__aarch64__)
#include "kernels/simd_neon.h"

#include "kernels/tables.h"

#define TABLE kernels_neon_dot
#define TABLE_NAME "neon-dot"
#include "kernels/table_body.h"
#endif

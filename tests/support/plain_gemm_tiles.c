/* plain_gemm_tiles.c - gemm_amx.c compiled over tiles in plain C. */
#include "plain_tiles.h"

#if defined(__x86_64__)
#define TILE_GEMM gemm_bf16_plain_tiles
#include "train/gemm_amx.c"
#endif

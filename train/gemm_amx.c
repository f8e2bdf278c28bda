/* gemm_amx.c - the precision "bf16-tiles" with AMX. Only this file is compiled for these instructions (Makefile); a
 * compiler that does not know them makes it the plain form. */
#if defined(__x86_64__)
#include "train/gemm_bf16.h"

#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* GCC, Clang */
#include "base/tiles_amx.h"

#define TILE_GEMM gemm_bf16_tiles_amx
#include "train/gemm_tile_body.h"
#else
void gemm_bf16_tiles_amx(const Bf16Product *p) { gemm_bf16_tiles_plain(p); }
#endif
#endif

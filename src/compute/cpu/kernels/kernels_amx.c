/* kernels_amx.c - table "amx": table "avx512", and AMX tiles for the products of many rows with the block types. Only
 * this file is compiled for these instructions (Makefile). With a compiler that does not know them there is no such
 * table. */
#if defined(__x86_64__)
#include "compute/cpu/kernels/tables.h"

#if defined(__AMX_INT8__) || defined(__AMXINT8__) /* GCC, Clang */
#include "compute/cpu/kernels/simd_avx512.h"

#include "base/tiles_amx.h"

#include "compute/cpu/kernels/tile_body.h"

bool kernels_amx_open(Kernels *out) {
    fill_tile_table(out, "amx");
    return true;
}
#else
bool kernels_amx_open(Kernels *out) {
    (void)out;
    return false;
}
#endif
#endif

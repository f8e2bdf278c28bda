/* tiles_amx.h - the tile instructions of AMX, one macro each, for src/compute/cpu/kernels/tile_body.h and
 * train/gemm_amx.c. tests/support/plain_tiles.h has the same names in plain C, so that the code that uses them is
 * tested on any CPU.
 *
 * A register is named by its number, written as a literal or as a macro that is one, because it becomes a part of the
 * instruction's text. The compiler's own intrinsics are not used: those of GCC 12 do not tell the compiler that a load
 * reads memory, so that it may move the stores that fill the buffer to after the load. */
#ifndef BASE_TILES_AMX_H
#define BASE_TILES_AMX_H

#include "base/system.h"

#include <stddef.h>

#define TILE_ASM(text, ...) __asm__ volatile(text : : __VA_ARGS__ : "memory")

/* Sets the shapes of all registers and makes them zero. config: const TileConfig *. */
#define TILE_CONFIGURE(config) TILE_ASM("ldtilecfg %0", "m"(*(config)))
/* Forgets shapes and contents, so that the system saves no tiles when it switches threads. */
#define TILE_RELEASE() TILE_ASM("tilerelease", "i"(0))
#define TILE_ZERO(t) TILE_ZERO_(t)
#define TILE_ZERO_(t) TILE_ASM("tilezero %%tmm" #t, "i"(0))
/* Row i of the register is at p + i * stride. */
#define TILE_LOAD(t, p, stride) TILE_LOAD_(t, p, stride)
#define TILE_LOAD_(t, p, stride) \
    TILE_ASM("tileloadd (%0,%1,1), %%tmm" #t, "r"((const void *)(p)), "r"((size_t)(stride)))
#define TILE_STORE(t, p, stride) TILE_STORE_(t, p, stride)
#define TILE_STORE_(t, p, stride) TILE_ASM("tilestored %%tmm" #t ", (%0,%1,1)", "r"((void *)(p)), "r"((size_t)(stride)))

/* c[m][n] += the sum over k and j < 4 of a[m][4k + j] * b[k][4n + j]: signed bytes, in 32-bit integers. */
#define TILE_DOT_BYTES(c, a, b) TILE_DOT_("tdpbssd", c, a, b)
/* c[m][n] += the sum of products of pairs of BF16, in the order that plain_tiles.c spells out. */
#define TILE_DOT_BF16(c, a, b) TILE_DOT_("tdpbf16ps", c, a, b)
#define TILE_DOT_(name, c, a, b) TILE_DOT__(name, c, a, b)
#define TILE_DOT__(name, c, a, b) TILE_ASM(name " %%tmm" #b ", %%tmm" #a ", %%tmm" #c, "i"(0))

#endif

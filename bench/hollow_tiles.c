/* hollow_tiles.c - see hollow_tiles.h. */
#include "hollow_tiles.h"

#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx512.h"

#include "base/system.h"

static _Thread_local TileConfig config;

#define VECTOR_ASM(text, ...) __asm__ volatile(text : : __VA_ARGS__ : "xmm16", "memory")

/* Unrolled, because a tile instruction has no loop of its own to pay for. */
#define EACH_ROW(t, step) \
    do { \
        if (config.rows[t] == TILE_MAX_ROWS) UNROLL for (int r = 0; r < TILE_MAX_ROWS; r++, row += stride) step; \
        else \
            for (int r = config.rows[t]; r > 0; r--, row += stride) step; \
    } while (0)

INLINE void hollow_load(int t, const void *p, size_t stride) {
    const unsigned char *row = p;
    if (config.row_bytes[t] == TILE_MAX_BYTES) EACH_ROW(t, VECTOR_ASM("vmovdqu64 %0, %%zmm16", "m"(*row)));
    else EACH_ROW(t, VECTOR_ASM("vmovdqu64 %0, %%ymm16", "m"(*row)));
}

INLINE void hollow_store(int t, void *p, size_t stride) {
    unsigned char *row = p;
    EACH_ROW(t, VECTOR_ASM("vmovdqu64 %%zmm16, %0", "m"(*row)));
}

#define TILE_CONFIGURE(c) (config = *(c))
#define TILE_RELEASE() ((void)0)
#define TILE_ZERO(t) ((void)0)
#define TILE_LOAD(t, p, stride) hollow_load(t, p, stride)
#define TILE_STORE(t, p, stride) hollow_store(t, p, stride)
#define TILE_DOT_BYTES(c, a, b) ((void)0)
#define TILE_DOT_BF16(c, a, b) ((void)0)
#include "compute/cpu/kernels/tile_body.h"

const Kernels *kernels_hollow_tiles(void) {
    static Kernels table;
    if (!table.name) fill_tile_table(&table, "amx without its products");
    return &table;
}
#else
const Kernels *kernels_hollow_tiles(void) { return NULL; }
#endif

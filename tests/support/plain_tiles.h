/* plain_tiles.h - the tile instructions of base/tiles_amx.h in plain C, which check everything that a CPU would refuse,
 * and every access to memory; and a kernel table and a product of matrices that use them. */
#ifndef TESTS_PLAIN_TILES_H
#define TESTS_PLAIN_TILES_H

#include "base/system.h"
#include "compute/cpu/kernels/kernels.h"
#include "train/gemm.h"

#include <stddef.h>

/* Table "avx512" with the products of tile_body.h over these tiles; the way of a product alternates with the number of
 * rows. */
const Kernels *kernels_plain_tiles(void);

/* gemm_amx.c over these tiles; needs AVX-512 with BF16 (plain_gemm_tiles.c). */
void gemm_bf16_plain_tiles(const Bf16Product *p);

/* A check that fails calls this function, which does not return. NULL, the default: print and abort. */
extern void (*plain_tiles_on_fault)(const char *what);
/* The numbers of products, of tiles and configurations loaded, and of releases, over all threads. */
typedef struct TileCounts {
    int64_t n_products, n_loads, n_configured, n_released;
} TileCounts;
extern TileCounts plain_tiles_counts;
/* A control for tests of results: products leave out the last byte of each row. */
extern bool plain_tiles_are_wrong;

void plain_tile_configure(const TileConfig *c);
void plain_tile_release(void);
void plain_tile_zero(int t);
void plain_tile_load(int t, const void *p, size_t stride);
void plain_tile_store(int t, void *p, size_t stride);
void plain_tile_dot_bytes(int c, int a, int b);
void plain_tile_dot_bf16(int c, int a, int b);

#define TILE_CONFIGURE(config) plain_tile_configure(config)
#define TILE_RELEASE() plain_tile_release()
#define TILE_ZERO(t) plain_tile_zero(t)
#define TILE_LOAD(t, p, stride) plain_tile_load(t, p, stride)
#define TILE_STORE(t, p, stride) plain_tile_store(t, p, stride)
#define TILE_DOT_BYTES(c, a, b) plain_tile_dot_bytes(c, a, b)
#define TILE_DOT_BF16(c, a, b) plain_tile_dot_bf16(c, a, b)

#endif

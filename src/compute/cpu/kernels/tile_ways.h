/* tile_ways.h - in which of several ways a table with tile instructions computes a product: the bits are the same, and which
 * one is the fastest depends on the number of rows and on the CPU. */
#ifndef KERNELS_TILE_WAYS_H
#define KERNELS_TILE_WAYS_H

#include "compute/cpu/kernels/kernels.h"

typedef enum TileWay {
    WAY_VECTORS,    /* as table "avx512" */
    WAY_TILES,      /* tile instructions, one tile of outputs at a time */
    WAY_TILE_PAIRS, /* ... two */
    N_TILE_WAYS,
} TileWay;

/* More rows than a tile has are all treated alike. */
enum { TILE_WAY_ROWS = 17, TILE_WAY_KINDS = 2 };

typedef struct TileWays {
    /* [form of activations][types with one scale for 32 inputs, with two][rows - 1] */
    unsigned char of[2][TILE_WAY_KINDS][TILE_WAY_ROWS];
} TileWays;

/* The products of a table with tile instructions. */
typedef struct TileProducts {
    /* Kernels.matmul in a way that the caller chooses. */
    void (*matmul)(TileWay way, const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                   int64_t tile_begin, int64_t tile_end);
    /* Kernels.peak_loop with products of tiles, for PEAK_INT8 and PEAK_BF16. */
    double (*peak_loop)(PeakKind kind, int64_t n_rounds);
    TileWays *ways; /* what Kernels.matmul chooses from */
} TileProducts;

const char *tile_way_name(TileWay way);
TileWay tile_way(const TileWays *ways, TensorType type, ActForm form, int64_t n_rows);
/* The least number of rows from which on no product is computed by vectors; TILE_WAY_ROWS + 1: none. */
int tile_rows_min(const TileWays *ways, ActForm form);

/* Chooses the ways of a table by the time that products in the second cache take in each: some ten milliseconds. Where
 * memory runs out, all rows go by vectors. */
void tile_ways_measure(const Kernels *k);

#endif

/* product_ways.h - the ways in which a table can compute a matrix product. All ways give the same bits; which one is
 * the fastest depends on the CPU, so that it is measured when a table is selected. */
#ifndef KERNELS_PRODUCT_WAYS_H
#define KERNELS_PRODUCT_WAYS_H

#include "compute/cpu/kernels/kernels.h"

/* ---- reading: how a product by vectors reads the weights --------------------------------------------------------- */

typedef struct ReadWay {
    const char *name;
    int n_streams;  /* 1: one tile after another; 2: the two halves of the tiles take turns */
    int far_ahead;  /* distance in bytes of what is prefetched into the second cache; 0: nothing is */
    int far_step;   /* bytes between the lines that are prefetched into the second cache */
    int near_ahead; /* distance in bytes of what is prefetched into the first cache, every line of it; 0: nothing is */
} ReadWay;

enum {
    READ_WAYS = 9,
    READ_ROWS = 3,  /* classes of numbers of rows: one, two, more */
    READ_FORMS = 2, /* forms of activations in blocks */
    READ_KINDS = 2, /* kinds of block types: Q8_0, which reads the most bytes for its work; all others */
};

/* All ways of reading; a way is known by its index. */
static const ReadWay read_ways[READ_WAYS] = {
    {"two streams, 16 KB and 2 KB ahead", 2, 16 << 10, 64, 2 << 10},
    {"one stream, 16 KB and 2 KB ahead", 1, 16 << 10, 64, 2 << 10},
    {"two streams, 4 KB ahead", 2, 0, 64, 4 << 10},
    {"one stream, 4 KB ahead", 1, 0, 64, 4 << 10},
    {"two streams, 8 KB ahead", 2, 0, 64, 8 << 10},
    {"one stream, 8 KB ahead", 1, 0, 64, 8 << 10},
    {"one stream, every eighth line 16 KB ahead", 1, 16 << 10, 512, 0},
    {"two streams, no prefetch", 2, 0, 64, 0},
    {"one stream, no prefetch", 1, 0, 64, 0},
};
enum { READ_ONE = 0, READ_SEVERAL = 1 }; /* the defaults, for one row and for several */

/* The ways of reading that a table uses; all zeros are the defaults. */
typedef struct ReadChoice {
    unsigned char of[READ_FORMS][READ_KINDS][READ_ROWS]; /* 1 + the number of a way; 0: the default */
    int forced;                                          /* 1 + the number of a way that every product uses; 0: none */
    bool is_measured;
} ReadChoice;

/* Returns the number of the way in which a product of n_rows rows reads. */
int read_way(const ReadChoice *choice, TensorType type, ActForm form, int64_t n_rows);
/* Writes the ways of reading that were chosen for 16-bit activations as a text of six lines. */
enum { READ_TEXT_BYTES = 400 };
void read_ways_text(const ReadChoice *choice, char out[READ_TEXT_BYTES]);

/* ---- pairs: how many tiles of outputs a product by vectors takes at a time -------------------------------------- */

enum {
    PAIR_ROWS_MIN = 12, /* fewer rows take one tile at a time: pairs were slower for them on every CPU (DIARY.md) */
    SCALE_KINDS = 2,    /* kinds of block types: with one scale for 32 inputs, and with two */
};

/* The choice whether products of many rows use passes over pairs of tiles, of a table that has these (TILES_IN_PAIRS).
 * All zeros mean that they do. */
typedef struct PairChoice {
    bool is_slow[2][SCALE_KINDS]; /* [form of activations][kind] */
    int forced;                   /* 1: every product takes one tile at a time; 2: many rows take pairs; 0: neither */
    bool is_measured;
} PairChoice;

/* Returns whether a product of n_rows rows takes pairs of tiles. */
bool takes_pairs(const PairChoice *choice, TensorType type, ActForm form, int64_t n_rows);

/* ---- tile instructions ------------------------------------------------------------------------------------------- */

typedef enum TileWay {
    WAY_VECTORS,    /* vector instructions, as in table "avx512" */
    WAY_TILES,      /* tile instructions, one tile of outputs at a time */
    WAY_TILE_PAIRS, /* tile instructions, two tiles of outputs at a time */
    N_TILE_WAYS,
} TileWay;

/* More rows than a tile has are all treated alike. */
enum { TILE_WAY_ROWS = 17 };

typedef struct TileWays {
    /* [form of activations][kind][rows - 1] */
    unsigned char of[2][SCALE_KINDS][TILE_WAY_ROWS];
    bool is_measured;
} TileWays;

/* The products of a table with tile instructions. */
typedef struct TileProducts {
    /* The product of Kernels.matmul in a way that the caller chooses. */
    void (*matmul)(TileWay way, const PackedMatrix *w, const void *x, int64_t n_rows, float *y, int64_t y_stride,
                   int64_t tile_begin, int64_t tile_end);
    /* The loop of Kernels.peak_loop with products of tiles, for PEAK_INT8 and PEAK_BF16. */
    double (*peak_loop)(PeakKind kind, int64_t n_rounds);
    TileWays *ways; /* what Kernels.matmul chooses from */
} TileProducts;

const char *tile_way_name(TileWay way);
TileWay tile_way(const TileWays *ways, TensorType type, ActForm form, int64_t n_rows);
/* Returns the number of rows from which on all products are computed by tiles; TILE_WAY_ROWS + 1 if there is none. */
int tile_rows_min(const TileWays *ways, ActForm form);

/* ---- the choice -------------------------------------------------------------------------------------------------- */

/* Measures the ways of a table when it is selected for the first time, which takes some ten milliseconds for each
 * kind of ways that the table has. The defaults stay where memory runs out, or where the CPU cannot be told to drop
 * a cache line. Several threads may call it. */
void product_ways_measure(const Kernels *k);
/* The parts of that function; each call measures again. After cpu_s_max seconds of processor time the reads that have
 * not been measured yet keep their defaults. */
#define READ_CPU_S_MAX 20e-3
void read_ways_measure(const Kernels *k, double cpu_s_max);
void pairs_measure(const Kernels *k);
void tile_ways_measure(const Kernels *k);
/* Makes every product of a table read in one way; -1 returns to the chosen ways. For tests and measurements. */
void read_ways_force(const Kernels *k, int way);
/* Makes products of many rows take pairs of tiles (1) or one tile at a time (0); -1 returns to the choice. */
void pairs_force(const Kernels *k, int pairs);

#endif

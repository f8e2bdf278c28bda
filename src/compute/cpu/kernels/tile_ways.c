/* tile_ways.c - chooses the ways of products of a table with tile instructions (tile_ways.h) by measuring them.
 *
 * The problem. A tile instruction's product takes as long for one row of inputs as its loads, its store and its latency let it,
 * and a vector product as long as its rows are many. From which number of rows on tiles are faster depends on the CPU, its clock and
 * what a hypervisor does to it, so that a constant would be right on one machine at best. The bits of an output are the same in
 * all ways (tests/compute/test_kernels_tiles.c), so that a choice by time changes no text.
 *
 * What is measured: one thread, a matrix of two tiles whose weights and activations stay in the second cache, the least time of
 * several runs with the ways in turns, for each number of rows of a tile and for two tiles full of rows. Where the memory
 * is the limit, all ways take the same time, and the one with the least work leaves most of it to the memory. Types are taken as two
 * kinds, by their scales: Q8_0 stands for those with one scale for 32 inputs, Q6_K for those with two, which need twice the
 * products. */
#include "compute/cpu/kernels/tile_ways.h"

#include "base/system.h"
#include "base/mem.h"
#include "compute/cpu/kernels/layout.h"

#include <string.h>

enum {
    N_OUT = 2 * TILE_ROWS,
    N_IN = 2048,
    MANY_ROWS = 32, /* stands for all numbers above those of a tile */
    N_RUNS = 5,
};

const char *tile_way_name(TileWay way) {
    static const char *const names[N_TILE_WAYS] = {"vectors", "tiles", "pairs of tiles"};
    return names[way];
}

static int kind_of(TensorType type) { return scale_parts(type) - 1; }

TileWay tile_way(const TileWays *ways, TensorType type, ActForm form, int64_t n_rows) {
    if (!act_is_blocks(form) || n_rows < 1) return WAY_VECTORS;
    return (TileWay)ways->of[form][kind_of(type)][(n_rows < TILE_WAY_ROWS ? n_rows : TILE_WAY_ROWS) - 1];
}

int tile_rows_min(const TileWays *ways, ActForm form) {
    int n = TILE_WAY_ROWS;
    for (; n > 0; n--)
        for (int kind = 0; kind < TILE_WAY_KINDS; kind++)
            if (ways->of[form][kind][n - 1] == WAY_VECTORS) return n + 1;
    return 1;
}

typedef struct Trial {
    const Kernels *kernels;
    PackedMatrix w;
    void *x;
    float *y;
} Trial;

static double run_s(const Trial *t, TileWay way, int64_t n_rows) {
    double start = clock_s();
    t->kernels->tiles->matmul(way, &t->w, t->x, n_rows, t->y, N_OUT, 0, packed_n_tiles(&t->w));
    return clock_s() - start;
}

static TileWay fastest(const Trial *t, int64_t n_rows) {
    double least[N_TILE_WAYS];
    TileWay best = WAY_VECTORS;
    for (int run = 0; run < N_RUNS; run++)
        for (int way = 0; way < N_TILE_WAYS; way++) {
            double s = run_s(t, (TileWay)way, n_rows);
            if (run == 0 || s < least[way]) least[way] = s;
        }
    for (int way = 1; way < N_TILE_WAYS; way++)
        if (least[way] < least[best]) best = (TileWay)way;
    return best;
}

static void measure_kind(const Kernels *k, TensorType type, ActForm form, unsigned char of[TILE_WAY_ROWS]) {
    Trial t = {.kernels = k};
    size_t row_bytes = act_row_bytes(form, N_IN);
    t.x = mem_calloc(MANY_ROWS, row_bytes);
    t.y = mem_calloc(MANY_ROWS, N_OUT * sizeof *t.y);
    if (packed_init(&t.w, type, form, N_OUT, N_IN, NULL) == FR_OK && t.x && t.y) {
        memset(t.w.data, 0, packed_bytes(&t.w));
        for (int n = 1; n <= TILE_WAY_ROWS; n++)
            of[n - 1] = (unsigned char)fastest(&t, n < TILE_WAY_ROWS ? n : MANY_ROWS);
    }
    packed_free(&t.w);
    mem_free(t.x);
    mem_free(t.y);
}

void tile_ways_measure(const Kernels *k) {
    static const TensorType examples[TILE_WAY_KINDS] = {TYPE_Q8_0, TYPE_Q6_K};
    TileWays *ways = k->tiles->ways;
    *ways = (TileWays){0};
    for (ActForm form = ACT_Q16; form <= ACT_Q8; form++)
        for (int kind = 0; kind < TILE_WAY_KINDS; kind++) measure_kind(k, examples[kind], form, ways->of[form][kind]);
}

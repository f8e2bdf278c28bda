/* bench_tiles.c - what a product by tile instructions takes in each of its ways (kernels/tile_ways.h), and which way is chosen.
 *
 *     bench_tiles [TYPE...]        (default: Q8_0 Q4_0 Q4_K Q6_K)
 *
 * One thread; 128 outputs of 2048 inputs, in the second cache. A figure is nanoseconds for a slice of a tile of outputs, which is
 * 16 outputs x 32 inputs, with all rows: the least of many runs in turns, so that other programs raise it little. On a
 * CPU without AMX tile instructions are replaced by their loads and stores (hollow_tiles.h), so that only everything but
 * the tile products is measured; then the choice says nothing either. */
#include "hollow_tiles.h"

#include "base/system.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_OUT = 128, N_IN = 2048, N_RUNS = 60, ROWS_MAX = 80 };

static const int counts[] = {1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 80};
enum { N_COUNTS = sizeof counts / sizeof *counts };

static void die(const char *what) {
    fprintf(stderr, "bench_tiles: %s\n", what);
    exit(1);
}

static void fill_weights(PackedMatrix *w) {
    size_t row_bytes;
    float x[N_IN];
    if (!tensor_type_row_bytes(w->type, N_IN, &row_bytes)) die("rows of this length are not whole blocks of the type");
    unsigned char *rows = mem_alloc(row_bytes * N_OUT);
    if (!rows) die("out of memory");
    for (int k = 0; k < N_IN; k++) x[k] = (float)(((uint32_t)k * 2654435761u) >> 8 & 0xffff) / 32768.0f - 1;
    blocks_quantize(w->type, x, N_IN, rows);
    for (size_t o = 1; o < N_OUT; o++) memcpy(rows + o * row_bytes, rows, row_bytes);
    packed_fill(w, rows, 0, packed_n_tiles(w));
    mem_free(rows);
}

static void measure(const Kernels *k, TensorType type, ActForm form) {
    PackedMatrix w;
    size_t act_bytes = act_row_bytes(form, N_IN);
    void *x = mem_calloc(ROWS_MAX, act_bytes);
    float *y = mem_calloc(ROWS_MAX, N_OUT * sizeof *y);
    double least[N_COUNTS][N_TILE_WAYS];
    if (packed_init(&w, type, form, N_OUT, N_IN, NULL) != FR_OK || !x || !y) die("out of memory");
    fill_weights(&w);
    for (int run = 0; run < N_RUNS; run++)
        for (int i = 0; i < N_COUNTS; i++)
            for (int way = 0; way < N_TILE_WAYS; way++) {
                double start = clock_s();
                k->tiles->matmul((TileWay)way, &w, x, counts[i], y, N_OUT, 0, packed_n_tiles(&w));
                double s = clock_s() - start;
                if (run == 0 || s < least[i][way]) least[i][way] = s;
            }
    double slices = (double)packed_n_tiles(&w) * N_IN / ACT_BLOCK;
    for (int way = 0; way < N_TILE_WAYS; way++) {
        printf("%-7s %-4s %-14s", tensor_type_info(type)->name, form == ACT_Q16 ? "q16" : "q8",
               tile_way_name((TileWay)way));
        for (int i = 0; i < N_COUNTS; i++)
            printf(" %6.1f%c", 1e9 * least[i][way] / slices,
                   tile_way(k->tiles->ways, type, form, counts[i]) == (TileWay)way ? '*' : ' ');
        putchar('\n');
    }
    packed_free(&w);
    mem_free(x);
    mem_free(y);
}

int main(int argc, char **argv) {
    static const char *const defaults[] = {"Q8_0", "Q4_0", "Q4_K", "Q6_K"};
    const Kernels *k = kernels_select("amx");
    if (!k) {
        printf(
            "This CPU has no AMX: tile instructions are replaced by their loads and stores, and nothing is chosen.\n");
        if (kernels_select("avx512")) k = kernels_hollow_tiles();
    }
    if (!k) die("this CPU lacks AVX-512 with VNNI");
    printf("%-27s", "ns per slice, * chosen");
    for (int i = 0; i < N_COUNTS; i++) printf(" %4d   ", counts[i]);
    putchar('\n');
    int n = argc > 1 ? argc - 1 : (int)(sizeof defaults / sizeof *defaults);
    for (int i = 0; i < n; i++) {
        TensorType type;
        if (!tensor_type_from_name(argc > 1 ? argv[i + 1] : defaults[i], &type)) die("unknown tensor type");
        for (ActForm form = ACT_Q16; form <= ACT_Q8; form++)
            if (act_form(type, form) == form) measure(k, type, form);
    }
    return 0;
}

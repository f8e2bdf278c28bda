/* bench_tiles.c - the time of a product by tile instructions in each of its ways (compute/cpu/kernels/product_ways.h),
 * and which way is chosen.
 *
 *     bench_tiles [TYPE...]        (default: Q8_0 Q4_0 Q4_K Q6_K)
 *
 * It uses one thread, and 128 outputs of 2048 inputs in the second-level cache. A figure is nanoseconds for a slice of
 * a tile, which is 16 outputs x 32 inputs, with all rows: the least of many runs in turns, so that other programs raise
 * it little. On a CPU without AMX, tile instructions are replaced by their loads and stores (hollow_load), so that
 * everything except the tile products is measured; nothing is chosen then. */
#if defined(__x86_64__)
#include "compute/cpu/kernels/simd_avx512.h"
#endif

#include "base/mem.h"
#include "base/system.h"
#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/product_ways.h"
#include "gguf/tensor_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_OUT = 128, N_IN = 2048, N_RUNS = 60, MAX_COUNT = 80 };

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
    void *x = mem_calloc(MAX_COUNT, act_bytes);
    float *y = mem_calloc(MAX_COUNT, N_OUT * sizeof *y);
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

/* ---- tiles without their products ------------------------------------------------------------------------ */

/* The code of table "amx", in which a tile's load is a vector load for each of its rows, its store a vector store for
 * each, and its product nothing. So the time is that of everything except the products, which the CPU computes in a
 * separate unit; the results mean nothing. */
#if defined(__x86_64__)
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

/* Table "avx512" with that code, or NULL where there is none. */
static const Kernels *hollow_tiles(void) {
    static Kernels table;
    if (!table.name) fill_tile_table(&table, "amx without its products");
    return &table;
}
#else
static const Kernels *hollow_tiles(void) { return NULL; }
#endif

/* ---- the program ----------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    static const char *const defaults[] = {"Q8_0", "Q4_0", "Q4_K", "Q6_K"};
    const Kernels *k = kernels_select("amx");
    if (!k) {
        printf(
            "This CPU has no AMX: tile instructions are replaced by their loads and stores, and nothing is chosen.\n");
        if (kernels_select("avx512")) k = hollow_tiles();
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

/* bench_kernels.c - how close the matrix products come to the bandwidth of the memory.
 *
 * For each type and number of rows it divides the bytes of a set of matrices larger than the caches by the time of one
 * pass through all of them. "raw" is the bandwidth at which the same bytes are only read; these reads alternate with
 * the passes.
 *
 *     bench_kernels [TABLE [THREADS [TYPE [q16|q8]]]]        (default: auto, all cores, all types, q16)
 *
 * Figures are the best of several passes. "T(n)/T(1)" is what verifying n tokens costs over decoding one.
 */
#include "base/system.h"
#include "base/mem.h"
#include "base/threads.h"
#include "gguf/tensor_type.h"
#include "compute/cpu/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_OUT = 2048, N_IN = 5632, SET_BYTES = 220 << 20, N_ROWS_MAX = 512, N_PASSES = 15 };

typedef struct Bench {
    const Kernels *kernels;
    ActForm activations;
    int n_threads;
    PackedMatrix set[64];
    int n_set;
    void *acts;
    float *y;
    int64_t n_rows;
    uint32_t seen[THREADS_MAX]; /* what read_loop returned */
} Bench;

static void die(const char *what) {
    fprintf(stderr, "bench_kernels: %s\n", what);
    exit(1);
}

/* Copies of one matrix: reading them takes as long as reading different ones. */
static void open_set(Bench *b, TensorType type) {
    size_t row_bytes, total = 0;
    float x[N_IN];
    if (!tensor_type_row_bytes(type, N_IN, &row_bytes)) die("rows of this length are not whole blocks of the type");
    unsigned char *rows = mem_alloc(row_bytes * N_OUT);
    if (!rows) die("out of memory");
    for (int k = 0; k < N_IN; k++) x[k] = (float)(((uint32_t)k * 2654435761u) >> 8 & 0xffff) / 32768.0f - 1;
    blocks_quantize(type, x, N_IN, rows);
    for (size_t o = 1; o < N_OUT; o++) memcpy(rows + o * row_bytes, rows, row_bytes);
    for (b->n_set = 0; total < SET_BYTES && b->n_set < 64; b->n_set++) {
        PackedMatrix *m = &b->set[b->n_set];
        if (packed_init(m, type, b->activations, N_OUT, N_IN, NULL) != FR_OK) die("out of memory");
        if (b->n_set == 0) packed_fill(m, rows, 0, packed_n_tiles(m));
        else memcpy(m->data, b->set[0].data, m->tile_bytes * (size_t)packed_n_tiles(m));
        total += m->tile_bytes * (size_t)packed_n_tiles(m);
    }
    mem_free(rows);
    ActForm form = act_form(type, b->activations);
    size_t act_bytes = act_row_bytes(form, N_IN);
    b->acts = mem_calloc(N_ROWS_MAX, act_bytes);
    if (!b->acts) die("out of memory");
    for (size_t r = 0; r < N_ROWS_MAX; r++)
        b->kernels->act_convert(form, x, N_IN, (unsigned char *)b->acts + r * act_bytes);
}

static void close_set(Bench *b) {
    for (int i = 0; i < b->n_set; i++) packed_free(&b->set[i]);
    mem_free(b->acts);
}

static void pass(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Bench *b = ctx;
    for (int i = 0; i < b->n_set; i++) {
        int64_t begin, end;
        threads_split(packed_n_tiles(&b->set[i]), 1, i_part, n_parts, &begin, &end);
        b->kernels->matmul(&b->set[i], b->acts, b->n_rows, b->y, N_OUT, begin, end);
    }
}

static void read_pass(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Bench *b = ctx;
    for (int i = 0; i < b->n_set; i++) {
        const PackedMatrix *m = &b->set[i];
        int64_t begin, end;
        threads_split(packed_n_tiles(m) * (int64_t)m->tile_bytes, 256, i_part, n_parts, &begin, &end);
        b->seen[i_part] += b->kernels->read_loop((const char *)m->data + begin, (size_t)(end - begin));
    }
}

static void keep_best(Bench *b, PartFn fn, double *best_s) {
    double start = clock_s();
    threads_run_once(b->n_threads, fn, b);
    double s = clock_s() - start;
    if (s < *best_s) *best_s = s;
}

static void bench_type(Bench *b, TensorType type) {
    static const int64_t rows[] = {1, 2, 4, 5, 8, 16, 32, 64, 512};
    enum { N = sizeof rows / sizeof *rows };
    open_set(b, type);
    double bytes = (double)b->set[0].tile_bytes * (double)packed_n_tiles(&b->set[0]) * b->n_set, best[N], raw = 1e9;
    for (int i = 0; i < N; i++) best[i] = 1e9;
    for (int pass_i = 0; pass_i < N_PASSES; pass_i++) {
        keep_best(b, read_pass, &raw);
        for (int i = 0; i < N && (rows[i] < 64 || pass_i < N_PASSES / 4); i++) {
            b->n_rows = rows[i];
            keep_best(b, pass, &best[i]);
        }
    }
    printf("%-5s | raw %5.1f GB/s | 1: %5.1f GB/s %3.0f%%", tensor_type_info(type)->name, bytes / raw * 1e-9,
           bytes / best[0] * 1e-9, 100 * raw / best[0]);
    for (int i = 1; i < N - 1; i++)
        printf(" | %lld: %5.1f x%.2f", (long long)rows[i], bytes / best[i] * 1e-9, best[i] / best[0]);
    printf(" | %lld: %.0f Gop/s\n", (long long)rows[N - 1],
           2e-9 * N_OUT * N_IN * (double)rows[N - 1] * b->n_set / best[N - 1]);
    close_set(b);
}

int main(int argc, char **argv) {
    Bench b = {.kernels = kernels_select(argc > 1 ? argv[1] : NULL),
               .n_threads = argc > 2 ? atoi(argv[2]) : threads_n_cores()};
    MachineSpeed speed;
    TensorType only = TYPE_COUNT;
    if (!b.kernels) die("this machine does not support that kernel table");
    if (argc > 3 && strcmp(argv[3], "all") != 0 && !tensor_type_from_name(argv[3], &only)) die("unknown tensor type");
    ActPrecision activations;
    if (!act_precision_from_name(argc > 4 ? argv[4] : NULL, &activations)) die("activations must be q16 or q8");
    b.activations = activations == ACT_PRECISION_Q8 ? ACT_Q8 : ACT_Q16;
    b.y = mem_calloc(N_ROWS_MAX, N_OUT * sizeof *b.y);
    if (!b.y) die("out of memory");
    double start = clock_s();
    if (machine_measure(b.kernels, b.n_threads, &speed, NULL) != FR_OK) die("out of memory");
    printf("table %s, %d threads: read %.1f GB/s, peaks int8 %.0f, bf16 %.0f, f32 %.0f Gop/s (measured in "
           "%.2f s)\n",
           b.kernels->name, b.n_threads, speed.read_gb_s, speed.peak_gop_s[PEAK_INT8], speed.peak_gop_s[PEAK_BF16],
           speed.peak_gop_s[PEAK_F32], clock_s() - start);
    for (int type = 0; type < TYPE_COUNT; type++)
        if (only == TYPE_COUNT || (int)only == type) bench_type(&b, (TensorType)type);
    mem_free(b.y);
    return 0;
}

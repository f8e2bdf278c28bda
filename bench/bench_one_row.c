/* bench_one_row.c - how fast one row reads its weights, with prefetches and orders of reading that the kernels do not have, beside a
 * plain read of the same bytes and the kernels' own product.
 *
 *     bench_one_row [ROUNDS [small]]        (default: 300 rounds, huge pages where the system gives them)
 *
 * Q8_0 weights of 0.8 GB, one thread, AVX-512 with VNNI. All variants take turns over stretches of 2 MB, a tenth of a
 * millisecond each, which other programs mostly leave alone: the figures are quantiles of the rate, and ratios to the plain read
 * of the same quantile hold on a busy machine, too. For all cores at once start one for each of them:
 *
 *     for core in 0 1; do taskset -c $core build/release/bench/bench_one_row & done; wait */
#include "base/system.h"
#include "base/mem.h"
#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512VNNI__)
#include "compute/cpu/kernels/simd_avx512.h"

#include <sys/mman.h>

enum {
    N_IN = 2048,
    RECORD = 1088, /* two slices: 2 x 512 bytes of codes, 2 x 32 of scales */
    TILE_BYTES = N_IN / 64 * RECORD,
    N_TILES = 24000,
    STRETCH = 64, /* tiles of a measurement */
    GAP = 4,      /* ... and between two of them, so that none reads what another one prefetched */
    ROUNDS_MAX = 4000,
    BEYOND = 1 << 20 /* bytes behind the last tile, which are prefetched */
};

static unsigned char *weights;
static _Alignas(64) unsigned char acts[N_IN / ACT_BLOCK * 80];
static float results[(int64_t)N_TILES * TILE_ROWS];

/* Half i of a record: a slice of one tile times the row. */
INLINE Vf add_half(const unsigned char *record, int i, const ActBlock *x, Vf acc) {
    Vi t = v_shift_left(v_set_int(x->minus_sum), 7), high = v_set_int(0);
    UNROLL for (int g = 0; g < 8; g++) {
        Vi codes = v_load_int(record + 512 * i + 64 * g);
        high = v_dot_bytes(codes, v_set_4_bytes(x->plane[0] + 4 * g), high);
        t = v_dot_bytes(codes, v_set_4_bytes(x->plane[1] + 4 * g), t);
    }
    Vf scale = v_mul(v_load_half(record + 1024 + 32 * i), v_set(x->scale));
    return v_fma(v_from_int(v_add_int(v_shift_left(high, 8), t)), scale, acc);
}

/* n tiles from p on, and n that are `apart` bytes behind them in turns where there are two streams. far, near: bytes from what is
 * computed to what is prefetched into the second and the first cache; 0: not. */
INLINE void multiply(const unsigned char *p, int n, int n_streams, int64_t apart, int far, int near, float *y) {
    for (int tile = 0; tile < n; tile++) {
        Vf acc[2] = {v_zero(), v_zero()};
        const unsigned char *record = p + (int64_t)tile * TILE_BYTES;
        const unsigned char *x = acts;
        for (int k = 0; k < N_IN / 64; k++, record += RECORD)
            UNROLL for (int i = 0; i < 2; i++, x += 80) UNROLL for (int s = 0; s < n_streams; s++) {
                const unsigned char *r = record + s * apart;
                for (int line = 8 * i; line < 8 + 9 * i; line++) {
                    if (far) __builtin_prefetch(r + 64 * line + far, 0, 2);
                    if (near) __builtin_prefetch(r + 64 * line + near, 0, 3);
                }
                acc[s] = add_half(r, i, (const void *)x, acc[s]);
            }
        UNROLL for (int s = 0; s < n_streams; s++) v_store(y + (int64_t)(tile + s * n) * TILE_ROWS, acc[s]);
    }
}

static uint32_t sink;
static const Kernels *kernels;
static void plain_read(int64_t t) {
    sink += kernels->read_loop(weights + t * TILE_BYTES, (size_t)STRETCH * TILE_BYTES);
}
static void table_product(int64_t t) {
    PackedMatrix m = {.type = TYPE_Q8_0, .act = ACT_Q16, .n_out = (int64_t)N_TILES * TILE_ROWS, .n_in = N_IN};
    m.tile_bytes = TILE_BYTES, m.data = weights;
    kernels->matmul(&m, acts, 1, results, m.n_out, t, t + STRETCH);
}

#define EACH_VARIANT(X) \
    X(none, "no prefetch", 1, 0, 0) \
    X(now, "16K, 2K: the kernels' own", 1, 16 << 10, 2 << 10) \
    X(far_only, "16K into the second cache only", 1, 16 << 10, 0) \
    X(near_4, "4K into the first only", 1, 0, 4 << 10) \
    X(closer, "8K, 1K", 1, 8 << 10, 1 << 10) \
    X(farther, "32K, 4K", 1, 32 << 10, 4 << 10) \
    X(two_none, "two streams, no prefetch", 2, 0, 0) \
    X(two_closer, "two streams, 8K, 1K", 2, 8 << 10, 1 << 10) \
    X(two, "two streams, 16K, 2K", 2, 16 << 10, 2 << 10) \
    X(two_farther, "two streams, 32K, 4K", 2, 32 << 10, 4 << 10)
#define DEFINE(name, text, streams, far, near) \
    static void run_##name(int64_t t) { \
        multiply(weights + t * TILE_BYTES, STRETCH / (streams), streams, (int64_t)STRETCH / 2 * TILE_BYTES, far, near, \
                 results + t * TILE_ROWS); \
    }
EACH_VARIANT(DEFINE)

static const struct {
    const char *text;
    void (*run)(int64_t tile);
} variants[] = {{"plain read", plain_read},
                {"the table's product", table_product},
#define LIST(name, text, streams, far, near) {text, run_##name},
                EACH_VARIANT(LIST)};
enum { N_VARIANTS = sizeof variants / sizeof *variants };
static double seconds[N_VARIANTS][ROUNDS_MAX];

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *open_weights(bool is_small) {
    const size_t n = (size_t)N_TILES * TILE_BYTES + BEYOND;
    if (!is_small) return mem_alloc(n);
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    (void)madvise(p, n, MADV_NOHUGEPAGE);
    return p;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 300;
    if (rounds < 20 || rounds > ROUNDS_MAX) rounds = 300;
    kernels = kernels_select("avx512");
    weights = kernels ? open_weights(argc > 2 && strcmp(argv[2], "small") == 0) : NULL;
    if (!weights) {
        fprintf(stderr, "bench_one_row: %s\n", kernels ? "out of memory" : "this CPU lacks AVX-512 with VNNI");
        return 1;
    }
    memset(weights, 1, (size_t)N_TILES * TILE_BYTES + BEYOND);
    int64_t at = 0;
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < N_VARIANTS; k++) {
            int v = (k + r) % N_VARIANTS;
            at = at + 2 * STRETCH + GAP > N_TILES ? 0 : at + STRETCH + GAP;
            double start = clock_s();
            variants[v].run(at);
            seconds[v][r] = clock_s() - start;
        }
    printf("%-32s %26s %26s\n", "Q8_0, one row, GB/s (of read)", "best twentieth", "best fifth");
    for (int v = 0; v < N_VARIANTS; v++) {
        printf("%-32s", variants[v].text);
        qsort(seconds[v], (size_t)rounds, sizeof **seconds, by_size);
        for (int share = 20; share >= 5; share /= 4)
            printf("         %8.1f   (%.3f)", (double)STRETCH * TILE_BYTES / seconds[v][rounds / share] * 1e-9,
                   seconds[0][rounds / share] / seconds[v][rounds / share]);
        putchar('\n');
    }
    return (int)(sink & 0);
}
#else
int main(void) {
    fprintf(stderr, "bench_one_row: built without AVX-512\n");
    return 1;
}
#endif

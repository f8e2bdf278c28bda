/* bench_one_row.c - how fast products with one row and with a few rows read their weights, in every way of reading that
 * the kernels have (compute/cpu/kernels/product_ways.h), compared with a plain read of the same bytes.
 *
 *     bench_one_row [TABLE [ROUNDS [small]]]  (default: the best table, 60 rounds, huge pages if there are any)
 *
 * It uses one thread and weights of half a gigabyte, of the types Q8_0 and Q4_K. All ways take turns over stretches of
 * 1 MB, each a tenth of a millisecond, which other programs rarely interrupt: a figure is the rate of the best fifth of
 * the rounds, as a share of the plain read's rate, and holds on a busy machine, too. The way that was chosen when the
 * table was opened has a star. To measure all cores at once, start one process for each of them:
 *
 *     for core in 0 1; do taskset -c $core build/release/bench/bench_one_row & done; wait */
#include "base/system.h"
#include "base/mem.h"
#include "compute/cpu/kernels/product_ways.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    N_IN = 2048,
    STRETCH = 1 << 20, /* bytes of a measurement */
    GAP = 64 << 10,    /* bytes between two of them, so that none reads what another one prefetched */
    WEIGHTS = 512 << 20,
    ROUNDS_MAX = 1000,
    N_VARIANTS = READ_WAYS + 2, /* the ways, the table's choice, and a plain read */
    CHOSEN = READ_WAYS,
    PLAIN,
    ROWS_MAX = 16,
};

static unsigned char *weights;
static unsigned char *acts;
static float *results;
static double seconds[N_VARIANTS][ROUNDS_MAX];
static uint32_t sink;

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double run_s(const Kernels *k, PackedMatrix *m, int variant, int64_t n_rows, size_t at) {
    m->data = weights + at;
    read_ways_force(k, variant < READ_WAYS ? variant : -1);
    double start = clock_s();
    if (variant == PLAIN) sink += k->read_loop(m->data, packed_bytes(m) / 256 * 256);
    else k->matmul(m, acts, n_rows, results, m->n_out, 0, packed_n_tiles(m));
    return clock_s() - start;
}

/* Measures the rates of every variant for that many rows, over the best fifth of the rounds, in bytes per second. */
static void measure(const Kernels *k, PackedMatrix *m, int64_t n_rows, int rounds, double rates[N_VARIANTS]) {
    static size_t at;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < N_VARIANTS; i++) {
            int variant = (i + r) % N_VARIANTS;
            at = at + 2 * STRETCH + 2 * GAP > WEIGHTS ? 0 : at + STRETCH + GAP;
            seconds[variant][r] = run_s(k, m, variant, n_rows, at);
        }
    read_ways_force(k, -1);
    for (int v = 0; v < N_VARIANTS; v++) {
        qsort(seconds[v], (size_t)rounds, sizeof **seconds, by_size);
        rates[v] = (double)packed_bytes(m) / seconds[v][rounds / 5];
    }
}

static void print_type(const Kernels *k, TensorType type, ActForm form, int rounds) {
    static const int counts[] = {1, 2, 3, 4, 5, 8, 12, 16};
    enum { N_COUNTS = sizeof counts / sizeof *counts };
    double rates[N_COUNTS][N_VARIANTS];
    PackedMatrix m;
    if (packed_shape(&m, type, form, 16, N_IN, NULL)) exit(1);
    if (packed_shape(&m, type, form, STRETCH / (int64_t)m.tile_bytes * TILE_ROWS, N_IN, NULL)) exit(1);
    for (int i = 0; i < N_COUNTS; i++) measure(k, &m, counts[i], rounds, rates[i]);
    printf("%-5s %-3s %-32s", tensor_type_info(type)->name, act_form_name(form), "share of a plain read");
    for (int i = 0; i < N_COUNTS; i++) printf(" %4d rows", counts[i]);
    printf("\n%-42s", "plain read, GB/s");
    for (int i = 0; i < N_COUNTS; i++) printf(" %8.1f ", rates[i][PLAIN] * 1e-9);
    for (int v = 0; v <= CHOSEN; v++) {
        printf("\n%-42s", v == CHOSEN ? "as chosen" : read_ways[v].name);
        for (int i = 0; i < N_COUNTS; i++)
            printf(" %8.3f%c", rates[i][v] / rates[i][PLAIN],
                   v < CHOSEN && read_way(k->reads, type, form, counts[i]) == v ? '*' : ' ');
    }
    printf("\n%-42s", "T(n) / T(1) as chosen");
    for (int i = 0; i < N_COUNTS; i++) printf(" %8.3f ", rates[0][CHOSEN] / rates[i][CHOSEN]);
    printf("\n\n");
}

static void *open_weights(bool is_small) {
    if (!is_small) return mem_alloc(WEIGHTS);
    void *p = mmap(NULL, WEIGHTS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    (void)madvise(p, WEIGHTS, MADV_NOHUGEPAGE);
    return p;
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 60;
    if (rounds < 10 || rounds > ROUNDS_MAX) rounds = 60;
    double start = clock_s();
    const Kernels *k = kernels_select(argc > 1 ? argv[1] : NULL);
    double select_s = clock_s() - start;
    weights = k && k->reads ? open_weights(argc > 3 && strcmp(argv[3], "small") == 0) : NULL;
    acts = mem_calloc(ROWS_MAX, act_row_bytes(ACT_Q16, N_IN));
    results = mem_alloc((size_t)ROWS_MAX * STRETCH / 256 * sizeof *results);
    if (!weights || !acts || !results) {
        fprintf(stderr, "bench_one_row: %s\n", k ? "out of memory" : "this CPU does not run that table");
        return 1;
    }
    memset(weights, 1, WEIGHTS);
    char reads[READ_TEXT_BYTES];
    read_ways_text(k->reads, reads);
    printf("kernels %s, opened in %.1f ms\n%s\n\n", k->name, 1e3 * select_s, reads);
    for (ActForm form = ACT_Q16; form <= ACT_Q8; form++) {
        print_type(k, TYPE_Q8_0, form, rounds);
        print_type(k, TYPE_Q4_K, form, rounds);
    }
    return (int)(sink & 0);
}

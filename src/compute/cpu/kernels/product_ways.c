/* product_ways.c - chooses the ways of products (product_ways.h) by measuring them when a table is selected.
 *
 * The problem. How fast one row of activations reads its weights depends on how far ahead they are prefetched, into
 * which cache, and whether they are read as one stream or as two. Each way is the best one on some CPU and loses a
 * fifth to a third on another: Zen 5 reads Q8_0 best with every line prefetched 4 KB ahead, Zen 4 with no prefetch, and
 * Intel's CPUs need two streams. Tile instructions are faster than vectors if there are enough rows; how many depends
 * on the CPU, its clock and its hypervisor. A constant would be right on one machine at best. The bits of an output are
 * the same in all ways (tests/compute/test_kernels_matmul.c, test_kernels_tiles.c), so that a choice by time changes no
 * text.
 *
 * Reading. One thread multiplies a stretch of weights that are in no cache: their lines are flushed before each run,
 * because reading a buffer that is larger than the caches would take longer than the whole measurement may. A stretch
 * is about as long as the part of a matrix that a thread takes, so that the beginning, where nothing has been
 * prefetched yet, has the share that it has in a forward, and it has enough tiles for two streams. The weights are in
 * a large page, as those of a model are. The ways take turns, and the least of READ_RUNS times counts, because a
 * disturbance only makes a run slower. A way replaces the default only if it is faster by three per cent. With 8-bit
 * activations only one row is measured; more rows read as with 16-bit activations.
 *
 * Pairs. A pass over two tiles of outputs reads each activation once for both, which helps where reading is the limit
 * (Intel) and costs a tenth where it is not (Zen 4). One thread multiplies two tiles with 16 rows from the second
 * cache. Pairs are used only if they are faster by three per cent, because one tile at a time reads better from memory.
 *
 * Tile instructions. One thread multiplies two tiles of outputs, whose weights and activations stay in the second
 * cache, for each number of rows of a tile and for two tiles full of rows. Where the memory is the limit, all ways
 * take the same time, and the one with the least work leaves most of it to the memory. Types are taken as two kinds,
 * by their scales: Q8_0 is the example of those with one scale for 32 inputs, Q6_K of those with two, which need
 * twice the products. */
#include "compute/cpu/kernels/product_ways.h"

#include "base/system.h"
#include "base/mem.h"
#include "compute/cpu/kernels/layout.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum {
    N_IN = 2048,
    LEAST_GAIN = 32, /* a way is clearly faster than another one if it saves more than 1/LEAST_GAIN of the time */
};

/* A product whose time is measured. */
typedef struct Trial {
    const Kernels *kernels;
    PackedMatrix w;
    void *x;
    float *y;
} Trial;

static bool trial_open(Trial *t, const Kernels *k, TensorType type, ActForm form, int64_t n_out, int64_t n_rows) {
    *t = (Trial){.kernels = k};
    t->x = mem_calloc((size_t)n_rows, act_row_bytes(form, N_IN));
    t->y = mem_calloc((size_t)n_rows, (size_t)n_out * sizeof *t->y);
    if (packed_init(&t->w, type, form, n_out, N_IN, NULL) != FR_OK || !t->x || !t->y) return false;
    memset(t->w.data, 0, packed_bytes(&t->w));
    return true;
}

static void trial_close(Trial *t) {
    packed_free(&t->w);
    mem_free(t->x);
    mem_free(t->y);
}

static double product_s(const Trial *t, int64_t n_rows) {
    double start = clock_s();
    t->kernels->matmul(&t->w, t->x, n_rows, t->y, t->w.n_out, 0, packed_n_tiles(&t->w));
    return clock_s() - start;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum {
    READ_BYTES = 2304 << 10, /* of all stretches: more than a large page */
    READ_STRETCHES = 4,
    READ_RUNS = 4,
};

int read_way(const ReadChoice *choice, TensorType type, ActForm form, int64_t n_rows) {
    if (choice->forced) return choice->forced - 1;
    int way = choice->of[form == ACT_Q8][type != TYPE_Q8_0][n_rows <= 2 ? n_rows - 1 : 2];
    return way ? way - 1 : n_rows == 1 ? READ_ONE : READ_SEVERAL;
}

void read_ways_text(const ReadChoice *choice, char out[READ_TEXT_BYTES]) {
    const char *names[READ_KINDS][READ_ROWS];
    for (int kind = 0; kind < READ_KINDS; kind++)
        for (int i = 0; i < READ_ROWS; i++)
            names[kind][i] = read_ways[read_way(choice, kind == 0 ? TYPE_Q8_0 : TYPE_Q4_K, ACT_Q16, i + 1)].name;
    snprintf(out, READ_TEXT_BYTES,
             "Q8_0, 1 row: %s\nQ8_0, 2 rows: %s\nQ8_0, more rows: %s\nother types, 1 row: %s\nother types, 2 rows: %s\n"
             "other types, more rows: %s",
             names[0][0], names[0][1], names[0][2], names[1][0], names[1][1], names[1][2]);
}

void read_ways_force(const Kernels *k, int way) {
    if (k->reads) k->reads->forced = way + 1;
}

/* Flushes the lines of tiles [first, last) from the caches. Returns false if this machine cannot do that. */
static bool flush_tiles(const PackedMatrix *w, int64_t first, int64_t last) {
    const char *p = (const char *)packed_tile(w, first), *end = (const char *)packed_tile(w, last);
#if defined(__x86_64__)
    for (; p < end; p += 64) _mm_clflush(p);
    _mm_mfence();
    return true;
#elif defined(__aarch64__)
    for (; p < end; p += 64) __asm__ volatile("dc civac, %0" : : "r"(p) : "memory");
    __asm__ volatile("dsb ish" : : : "memory");
    return true;
#else
    return p == end;
#endif
}

static double read_s(const Trial *t, int64_t n_rows, int i_stretch) {
    int64_t n = packed_n_tiles(&t->w) / READ_STRETCHES, first = n * i_stretch;
    if (!flush_tiles(&t->w, first, first + n)) return 0;
    double start = clock_s();
    t->kernels->matmul(&t->w, t->x, n_rows, t->y, t->w.n_out, first, first + n);
    return clock_s() - start;
}

/* Returns the number of the fastest way for n_rows rows, which is the default unless another way is clearly faster. */
static int fastest_read(const Trial *t, int64_t n_rows) {
    double least[READ_WAYS];
    for (int run = 0; run < READ_RUNS; run++)
        for (int way = 0; way < READ_WAYS; way++) {
            read_ways_force(t->kernels, way);
            double s = read_s(t, n_rows, (run + way) % READ_STRETCHES);
            if (run == 0 || s < least[way]) least[way] = s;
        }
    read_ways_force(t->kernels, -1);
    const int usual = n_rows == 1 ? READ_ONE : READ_SEVERAL;
    int best = usual;
    for (int way = 0; way < READ_WAYS; way++)
        if (least[way] < least[best]) best = way;
    return least[best] < least[usual] * (1 - 1.0 / LEAST_GAIN) ? best : usual;
}

/* Measures the first n classes of numbers of rows, as long as there is time. */
static void measure_reads(const Kernels *k, ActForm form, int kind, int n, double end_s) {
    static const TensorType examples[READ_KINDS] = {TYPE_Q8_0, TYPE_Q4_K};
    static const int64_t n_rows[READ_ROWS] = {1, 2, 4};
    Trial t;
    int64_t n_tiles = READ_BYTES / (int64_t)tile_size(examples[kind], N_IN);
    bool opened = trial_open(&t, k, examples[kind], form, n_tiles * TILE_ROWS, n_rows[READ_ROWS - 1]);
    for (int i = 0; opened && i < n && clock_cpu_s() < end_s; i++)
        k->reads->of[form][kind][i] = (unsigned char)(1 + fastest_read(&t, n_rows[i]));
    trial_close(&t);
}

void read_ways_measure(const Kernels *k, double cpu_s_max) {
    double end_s = clock_cpu_s() + cpu_s_max;
    for (int kind = 0; kind < READ_KINDS; kind++) {
        measure_reads(k, ACT_Q16, kind, READ_ROWS, end_s);
        memcpy(k->reads->of[ACT_Q8][kind], k->reads->of[ACT_Q16][kind], sizeof k->reads->of[ACT_Q8][kind]);
        measure_reads(k, ACT_Q8, kind, 1, end_s);
    }
}

/* ---- pairs and tile instructions: what they share ---------------------------------------------------------------- */

enum {
    TILES_OUT = 2 * TILE_ROWS,
    MANY_ROWS = 32, /* one measurement decides for all numbers of rows above those of a tile */
    TILE_RUNS = 5,
    PAIR_TRIAL_ROWS = 16, /* few of those that may take pairs: there the ways differ most */
};

static int scale_kind(TensorType type) { return scale_parts(type) - 1; }
static const TensorType kind_examples[SCALE_KINDS] = {TYPE_Q8_0, TYPE_Q6_K};

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

bool takes_pairs(const PairChoice *choice, TensorType type, ActForm form, int64_t n_rows) {
    if (n_rows < PAIR_ROWS_MIN) return false;
    return choice->forced ? choice->forced == 2 : !choice->is_slow[form][scale_kind(type)];
}

void pairs_force(const Kernels *k, int pairs) {
    if (k->pairs) k->pairs->forced = pairs + 1;
}

/* Returns whether pairs of tiles are not clearly faster than one tile at a time. */
static bool pairs_are_slow(const Trial *t) {
    double least[2];
    for (int run = 0; run < TILE_RUNS; run++)
        for (int pairs = 0; pairs < 2; pairs++) {
            pairs_force(t->kernels, pairs);
            double s = product_s(t, PAIR_TRIAL_ROWS);
            if (run == 0 || s < least[pairs]) least[pairs] = s;
        }
    pairs_force(t->kernels, -1);
    return least[1] > least[0] * (1 - 1.0 / LEAST_GAIN);
}

void pairs_measure(const Kernels *k) {
    for (ActForm form = ACT_Q16; form <= ACT_Q8; form++)
        for (int kind = 0; kind < SCALE_KINDS; kind++) {
            Trial t;
            if (trial_open(&t, k, kind_examples[kind], form, TILES_OUT, PAIR_TRIAL_ROWS))
                k->pairs->is_slow[form][kind] = pairs_are_slow(&t);
            trial_close(&t);
        }
}

/* ---- tile instructions ------------------------------------------------------------------------------------------- */

const char *tile_way_name(TileWay way) {
    static const char *const names[N_TILE_WAYS] = {"vectors", "tiles", "pairs of tiles"};
    return names[way];
}

TileWay tile_way(const TileWays *ways, TensorType type, ActForm form, int64_t n_rows) {
    if (!act_is_blocks(form) || n_rows < 1) return WAY_VECTORS;
    return (TileWay)ways->of[form][scale_kind(type)][(n_rows < TILE_WAY_ROWS ? n_rows : TILE_WAY_ROWS) - 1];
}

int tile_rows_min(const TileWays *ways, ActForm form) {
    int n = TILE_WAY_ROWS;
    for (; n > 0; n--)
        for (int kind = 0; kind < SCALE_KINDS; kind++)
            if (ways->of[form][kind][n - 1] == WAY_VECTORS) return n + 1;
    return 1;
}

static double tile_s(const Trial *t, TileWay way, int64_t n_rows) {
    double start = clock_s();
    t->kernels->tiles->matmul(way, &t->w, t->x, n_rows, t->y, TILES_OUT, 0, packed_n_tiles(&t->w));
    return clock_s() - start;
}

static TileWay fastest_tiles(const Trial *t, int64_t n_rows) {
    double least[N_TILE_WAYS];
    TileWay best = WAY_VECTORS;
    for (int run = 0; run < TILE_RUNS; run++)
        for (int way = 0; way < N_TILE_WAYS; way++) {
            double s = tile_s(t, (TileWay)way, n_rows);
            if (run == 0 || s < least[way]) least[way] = s;
        }
    for (int way = 1; way < N_TILE_WAYS; way++)
        if (least[way] < least[best]) best = (TileWay)way;
    return best;
}

void tile_ways_measure(const Kernels *k) {
    TileWays *ways = k->tiles->ways;
    memset(ways->of, WAY_VECTORS, sizeof ways->of);
    for (ActForm form = ACT_Q16; form <= ACT_Q8; form++)
        for (int kind = 0; kind < SCALE_KINDS; kind++) {
            Trial t;
            if (trial_open(&t, k, kind_examples[kind], form, TILES_OUT, MANY_ROWS))
                for (int n = 1; n <= TILE_WAY_ROWS; n++)
                    ways->of[form][kind][n - 1] = (unsigned char)fastest_tiles(&t, n < TILE_WAY_ROWS ? n : MANY_ROWS);
            trial_close(&t);
        }
}

/* ---- once for each table ----------------------------------------------------------------------------------------- */

void product_ways_measure(const Kernels *k) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    if (k->reads && !k->reads->is_measured) {
        read_ways_measure(k, READ_CPU_S_MAX);
        k->reads->is_measured = true;
    }
    if (k->pairs && !k->pairs->is_measured) {
        pairs_measure(k);
        k->pairs->is_measured = true;
    }
    if (k->tiles && !k->tiles->ways->is_measured) {
        tile_ways_measure(k);
        k->tiles->ways->is_measured = true;
    }
    pthread_mutex_unlock(&mutex);
}

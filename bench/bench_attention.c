/* bench_attention.c - measures the attention kernels separately, in the cache: 1024 keys of one KV head, for several
 * numbers of queries.
 *
 *     bench_attention [TABLE [HEAD_DIM]]        (auto, 64)
 *
 * Each figure is the least processor time of 60 repetitions on one thread, with the cases taking turns, and its ratio
 * to the time that only the multiplications would take in floats at their peak, measured in the same turns. Ratios hold
 * on a busy machine, too. `integers` are the scores of compute/cpu/kernels/scores.h, including the rounding of the
 * queries. */
#include "base/mem.h"
#include "compute/cpu/kernels/kernels.h"
#include "compute/cpu/kernels/scores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_KEYS = 1024, STRIDE = N_KEYS + 16, QUERIES_MAX = 64, N_REPEATS = 60, PEAK_ROUNDS = 20000 };

typedef struct Bench {
    const Kernels *kn;
    const ScoreKernels *by_integers;
    int64_t dim;
    float *q, *scores, *out, *floats; /* [QUERIES_MAX][dim], [QUERIES_MAX][STRIDE], as q, [KEYS_PACKED][dim] */
    KeyBlock *blocks;
    char *rounded, *cache[KV_TYPE_COUNT];
    int32_t slots[N_KEYS];
} Bench;

static void die(const char *what) {
    fprintf(stderr, "bench_attention: %s\n", what);
    exit(1);
}

static void *zeros(size_t n, size_t each) {
    void *p = mem_calloc(n, each);
    if (!p) die("out of memory");
    return p;
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void scores_by_rows(Bench *b, KvType type, int64_t n_q) {
    b->kn->attn_scores(type, b->q, n_q, b->dim, b->cache[type], kv_row_bytes(type, b->dim), b->slots, N_KEYS, 0.125f,
                       b->scores, STRIDE);
}

static void scores_together(Bench *b, KvType type, int64_t n_q) {
    const float *q[QUERIES_MAX];
    float *to[QUERIES_MAX];
    for (int64_t i = 0; i < N_KEYS; i += KEYS_PACKED) {
        for (int64_t h = 0; h < n_q; h++) q[h] = b->q + h * b->dim, to[h] = b->scores + h * STRIDE + i;
        b->kn->pack_keys(type, b->dim, b->cache[type], kv_row_bytes(type, b->dim), b->slots + i, KEYS_PACKED,
                         b->floats);
        b->kn->packed_scores(q, n_q, b->dim, b->floats, KEYS_PACKED, 0.125f, to);
    }
}

static void scores_by_integers(Bench *b, KvType type, int64_t n_q) {
    const RoundedQuery *q[QUERIES_MAX];
    float *to[QUERIES_MAX];
    for (int64_t h = 0; h < n_q; h++) {
        RoundedQuery *r = (void *)(b->rounded + (size_t)h * rounded_query_bytes(b->dim));
        b->by_integers->round_query(b->q + h * b->dim, b->dim, r);
        q[h] = r;
    }
    for (int64_t i = 0; i < N_KEYS; i += KEYS_PACKED) {
        for (int64_t h = 0; h < n_q; h++) to[h] = b->scores + h * STRIDE + i;
        b->by_integers->pack(b->dim, b->cache[type], kv_row_bytes(type, b->dim), b->slots + i, KEYS_PACKED, b->blocks);
        b->by_integers->scores(q, n_q, b->dim, b->blocks, KEYS_PACKED, 0.125f, to);
    }
}

static void values_by_rows(Bench *b, KvType type, int64_t n_q) {
    b->kn->attn_mix(type, b->scores, STRIDE, n_q, b->dim, b->cache[type], kv_row_bytes(type, b->dim), b->slots, N_KEYS,
                    b->out);
}

static void values_together(Bench *b, KvType type, int64_t n_q) {
    const float *w[QUERIES_MAX];
    float *to[QUERIES_MAX];
    for (int64_t i = 0; i < N_KEYS; i += KEYS_PACKED) {
        for (int64_t h = 0; h < n_q; h++) w[h] = b->scores + h * STRIDE + i, to[h] = b->out + h * b->dim;
        b->kn->unpack_values(type, b->dim, b->cache[type], kv_row_bytes(type, b->dim), b->slots + i, KEYS_PACKED,
                             b->floats);
        b->kn->mix_values(w, n_q, b->dim, b->floats, KEYS_PACKED, to);
    }
}

static const struct {
    const char *name;
    void (*run)(Bench *b, KvType type, int64_t n_q);
    KvType type;
} cases[] = {
    {"scores f16, row by row", scores_by_rows, KV_F16}, {"scores f16, together", scores_together, KV_F16},
    {"scores q8, row by row", scores_by_rows, KV_Q8},   {"scores q8, together", scores_together, KV_Q8},
    {"scores q8, integers", scores_by_integers, KV_Q8}, {"values f16, row by row", values_by_rows, KV_F16},
    {"values f16, together", values_together, KV_F16},  {"values q8, row by row", values_by_rows, KV_Q8},
    {"values q8, together", values_together, KV_Q8},
};
enum { N_CASES = sizeof cases / sizeof *cases, N_NUMBERS = 4 };
static const int64_t numbers[N_NUMBERS] = {1, 4, 8, 64};

static void fill(Bench *b) {
    uint32_t bits = 1;
    float *key = zeros((size_t)b->dim, sizeof *key);
    for (int64_t i = -QUERIES_MAX; i < N_KEYS; i++) {
        float *x = i < 0 ? b->q + (i + QUERIES_MAX) * b->dim : key;
        for (int64_t d = 0; d < b->dim; d++) {
            bits = bits * 1664525u + 1013904223u;
            x[d] = (float)(bits >> 8) * 0x1p-23f - 1;
        }
        for (int type = 0; i >= 0 && type < KV_TYPE_COUNT; type++)
            b->kn->kv_store((KvType)type, key, b->dim, b->cache[type] + (size_t)i * kv_row_bytes((KvType)type, b->dim));
        if (i >= 0) b->slots[i] = (int32_t)i;
    }
    mem_free(key);
}

static void open_bench(Bench *b) {
    size_t n = QUERIES_MAX * (size_t)b->dim;
    b->q = zeros(n, sizeof *b->q), b->out = zeros(n, sizeof *b->out);
    b->scores = zeros(QUERIES_MAX * STRIDE, sizeof *b->scores);
    b->floats = zeros(KEYS_PACKED * (size_t)b->dim, sizeof *b->floats);
    b->blocks = zeros((size_t)score_blocks(b->dim), sizeof *b->blocks);
    b->rounded = zeros(QUERIES_MAX, rounded_query_bytes(b->dim));
    for (int type = 0; type < KV_TYPE_COUNT; type++) b->cache[type] = zeros(N_KEYS, kv_row_bytes((KvType)type, b->dim));
    fill(b);
}

static void close_bench(Bench *b) {
    mem_free(b->q), mem_free(b->out), mem_free(b->scores), mem_free(b->floats), mem_free(b->blocks);
    mem_free(b->rounded);
    for (int type = 0; type < KV_TYPE_COUNT; type++) mem_free(b->cache[type]);
}

int main(int argc, char **argv) {
    Bench b = {.kn = kernels_select(argc > 1 ? argv[1] : NULL), .dim = argc > 2 ? atoi(argv[2]) : 64};
    double op_s = INFINITY, best[N_CASES][N_NUMBERS];
    if (!b.kn) die("this machine does not support that kernel table");
    if (b.dim < 16 || b.dim > 1024 || b.dim % 16) die("HEAD_DIM is a multiple of 16 from 16 to 1024");
    b.by_integers = score_kernels_of(b.kn);
    open_bench(&b);
    for (int repeat = 0; repeat < N_REPEATS; repeat++) {
        double start = cpu_s(), ops = b.kn->peak_loop(PEAK_F32, PEAK_ROUNDS);
        op_s = fmin(op_s, (cpu_s() - start) / ops);
        for (int i = 0; i < N_CASES; i++)
            for (int k = 0; k < N_NUMBERS; k++) {
                start = cpu_s();
                cases[i].run(&b, cases[i].type, numbers[k]);
                double s = cpu_s() - start;
                best[i][k] = repeat && best[i][k] < s ? best[i][k] : s;
            }
    }
    printf("table %s, head size %lld, %d keys: us (times the f32 peak's time)\n%-24s", b.kn->name, (long long)b.dim,
           N_KEYS, "queries");
    for (int k = 0; k < N_NUMBERS; k++) printf(" %17lld", (long long)numbers[k]);
    for (int i = 0; i < N_CASES; i++) {
        printf("\n%-24s", cases[i].name);
        for (int k = 0; k < N_NUMBERS; k++)
            printf(" %9.2f (%5.2f)", 1e6 * best[i][k],
                   best[i][k] / (2.0 * N_KEYS * (double)(b.dim * numbers[k]) * op_s));
    }
    putchar('\n');
    close_bench(&b);
    return 0;
}

/* bench_context.c - T(n) at long contexts: the cost of 1, 4, 8, 16 and 32 rows after 1K to 128K tokens, with keys and
 * values in F16 and in Q8, compared with the cost of reading everything once.
 *
 *     bench_context MODEL.gguf [THREADS [SECONDS [CONTEXT...]]]  (all cores, 10 s per table, 1024 8192 32768 131072)
 *
 * Nothing is run to fill the cache: its slots get random numbers (executor_sequence_pad), which takes as long as
 * writing them. So any context that fits into memory can be measured, whatever the model was trained for; a 1.1B model
 * with 22 layers, 4 KV heads of 64 needs 3 GB for 128K tokens of F16.
 *
 * Forwards of each number of rows take turns with reading the weights; the fastest of each counts, and the peaks are
 * measured before and after. `reads` is the time to read the weights and the context's keys and values at that
 * bandwidth; `limit` is that or the time of the arithmetic at its peak, whichever is longer; `attention` is its time
 * within one forward, measured separately. */
#include "compute/cost.h"
#include "base/system.h"
#include "base/threads.h"
#include "opened_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_COUNTS = 5, MIN_ROUNDS = 3 };
static const int32_t counts[N_COUNTS] = {1, 4, 8, 16, 32};
static const char *const contexts[] = {"1024", "8192", "32768", "131072"};

static fr_error err;
static void die(const char *what) {
    fprintf(stderr, "bench_context: %s\n", what);
    exit(1);
}
static void check(int status) {
    if (status) die(err.message);
}

typedef struct Times {
    MachineSpeed speed;
    double seconds[N_COUNTS], attention_s[N_COUNTS];
} Times;

static Times measure(const OpenedModel *m, Executor *e, int32_t n_context, int n_threads, double seconds) {
    Times t;
    MachineSpeed after;
    double read_s = INFINITY;
    for (int i = 0; i < N_COUNTS; i++) t.seconds[i] = INFINITY, t.attention_s[i] = 0;
    check(cost_machine_speed(m->weights, n_threads, &t.speed, &err));
    double end_s = clock_s() + seconds;
    for (int round = 0; round < MIN_ROUNDS || clock_s() < end_s; round++) {
        double now[N_COUNTS], reading;
        check(cost_read_weights(m->device, m->weights, &reading, &err));
        check(cost_measure(e, n_context, counts, N_COUNTS, 1, 0, 0, now, &err));
        read_s = fmin(read_s, reading);
        for (int i = 0; i < N_COUNTS; i++) t.seconds[i] = fmin(t.seconds[i], now[i]);
    }
    check(cost_machine_speed(m->weights, n_threads, &after, &err));
    machine_speed_keep_peaks(&t.speed, &after);
    t.speed.read_gb_s = (double)m->weights->bytes / read_s * 1e-9;
    for (int i = 0; i < N_COUNTS; i++) {
        CostPart parts[COST_PARTS_MAX];
        double whole_s;
        int n = cost_parts_measure(e, &t.speed, counts[i], n_context, seconds / 20, parts, &whole_s, &err);
        check(n < 0 ? n : 0);
        for (int k = 0; k < n; k++)
            if (parts[k].n_out == 0 && parts[k].floor_s > 0) t.attention_s[i] += parts[k].seconds;
    }
    return t;
}

static void print(const Times *t, const CostWork *work, int32_t n_context, KvType kv) {
    printf("\nKV %s, %d tokens: reads %.1f GB/s, int8 %.0f, f32 %.0f billion operations/s\n", kv_type_name(kv),
           n_context, t->speed.read_gb_s, t->speed.peak_gop_s[PEAK_INT8], t->speed.peak_gop_s[PEAK_F32]);
    printf("%6s %10s %8s %10s %8s %10s %8s %13s\n", "rows", "T ms", "T/T(1)", "reads ms", "T/reads", "limit ms",
           "T/limit", "attention ms");
    for (int i = 0; i < N_COUNTS; i++) {
        double bytes = work->weight_bytes + cost_keys_seen(work, n_context + counts[i]) * work->kv_bytes_per_key;
        double reads_s = bytes / (t->speed.read_gb_s * 1e9);
        double limit_s = cost_limit_s(work, &t->speed, counts[i], n_context);
        printf("%6d %10.2f %8.2f %10.2f %8.2f %10.2f %8.2f %13.2f\n", counts[i], 1e3 * t->seconds[i],
               t->seconds[i] / t->seconds[0], 1e3 * reads_s, t->seconds[i] / reads_s, 1e3 * limit_s,
               t->seconds[i] / limit_s, 1e3 * t->attention_s[i]);
    }
    fflush(stdout);
}

static void bench(const OpenedModel *m, KvType kv, int32_t n_context, int n_threads, double seconds) {
    ExecutorOptions options = {.kv_type = kv,
                               .page_size = 16,
                               .n_ctx = n_context + counts[N_COUNTS - 1],
                               .max_sequences = 1,
                               .max_rows = counts[N_COUNTS - 1]};
    Executor *e;
    CostWork work;
    check(executor_open(&e, m->device, m->weights, &options, &err));
    cost_work(m->weights, kv, &work);
    Times t = measure(m, e, n_context, n_threads, seconds);
    print(&t, &work, n_context, kv);
    executor_close(e);
}

int main(int argc, char **argv) {
    static const KvType types[] = {KV_F16, KV_Q8};
    if (argc < 2) die("usage: bench_context MODEL.gguf [THREADS [SECONDS [CONTEXT...]]]");
    int n_threads = argc > 2 ? atoi(argv[2]) : threads_n_cores();
    double seconds = argc > 3 ? atof(argv[3]) : 10;
    int n = argc > 4 ? argc - 4 : (int)(sizeof contexts / sizeof *contexts);
    char *const *given = argv + 4;
    Gguf *g;
    OpenedModel m;
    check(gguf_open(&g, argv[1], &err));
    check(opened_model_open(&m, g, ACT_PRECISION_Q16, n_threads, &err));
    printf("%d threads, kernels %s, %.3f GB of weights\n", n_threads, m.weights->options.kernels,
           (double)m.weights->bytes * 1e-9);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (int i = 0; i < n; i++) {
            int32_t n_context = atoi(argc > 4 ? given[i] : contexts[i]);
            if (n_context < 1 || n_context > 1 << 20) die("a context is a number of tokens from 1 to 1048576");
            bench(&m, types[k], n_context, n_threads, seconds);
        }
    opened_model_close(&m);
    gguf_close(g);
    return 0;
}

/* bench_cost.c - how well the engine's cost model predicts the time of a forward.
 *
 *   bench_cost MODEL.gguf [SECONDS [CONTEXT,... [REPETITIONS [q16|q8]]]]
 *
 * It measures the cost curve as the engine does for its first request with an automatic budget (cost_curve_measure,
 * whose own time is printed), then forwards of 1 to 32 rows after each context (default 128,1024; SECONDS for each,
 * default 2), and prints the measured time, the predicted one and the error. All this is done REPETITIONS (3) times. A
 * time is the minimum over its rounds, as in the curve. If the machine changed its speed meanwhile, the errors mean
 * nothing: T(1) is measured once more at the end, and a repetition counts only if the two agree within 5 %.
 */
#include "opened_model.h"

#include "base/system.h"
#include "base/threads.h"
#include "compute/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t COUNTS[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
enum { N_COUNTS = sizeof COUNTS / sizeof *COUNTS, N_CTX = 2048 };

static void die(const fr_error *err) {
    fprintf(stderr, "bench_cost: %s\n", err->message);
    exit(1);
}

static CostCurve measure(Executor *e, int n_ctx, int n_threads) {
    CostCurve c = {0};
    fr_error err;
    double start_s = clock_s();
    if (cost_curve_measure(&c, e, n_ctx, n_threads, &err)) die(&err);
    printf("measured in %.3f s: T(1) %.3f ms, T(32) %.3f ms, %.4f us a row and key\n", clock_s() - start_s,
           1e3 * cost_curve_at(&c, 1), 1e3 * cost_curve_at(&c, 32), 1e6 * c.key_s);
    return c;
}

static double compare(Executor *e, CostCurve *c, int32_t n_context, double seconds_each) {
    double seconds[N_COUNTS], worst = 0;
    fr_error err;
    for (int i = 0; i < N_COUNTS; i++)
        if (cost_measure(e, n_context, &COUNTS[i], 1, 3, seconds_each / N_COUNTS, 0, &seconds[i], &err)) die(&err);
    c->n_context = n_context;
    for (int i = 0; i < N_COUNTS; i++) {
        double says = cost_curve_at(c, COUNTS[i]), off = says / seconds[i] - 1;
        printf("%8d %6d %11.3f %11.3f %+8.1f%%\n", n_context, COUNTS[i], 1e3 * seconds[i], 1e3 * says, 100 * off);
        if (fabs(off) > worst) worst = fabs(off);
    }
    return worst;
}

static double compare_all(Executor *e, CostCurve *c, const char *list, double seconds_each) {
    double worst = 0;
    char contexts[256];
    snprintf(contexts, sizeof contexts, "%s", list);
    printf("%8s %6s %11s %11s %9s\n", "context", "rows", "T ms", "model ms", "error");
    for (char *at = strtok(contexts, ","); at; at = strtok(NULL, ",")) {
        int n_context = atoi(at);
        if (n_context < 0 || n_context > N_CTX - 32) continue;
        double off = compare(e, c, n_context, seconds_each);
        if (off > worst) worst = off;
    }
    return worst;
}

/* T(1) now over the T(1) that the curve was measured from. */
static bool is_steady(Executor *e, const CostCurve *c) {
    double s;
    fr_error err;
    if (cost_measure(e, 0, COUNTS, 1, 8, 0, 0, &s, &err)) die(&err);
    return fabs(s / c->seconds[0] - 1) < 0.05;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_cost MODEL.gguf [SECONDS [CONTEXT,... [REPETITIONS [q16|q8]]]]\n");
        return 2;
    }
    Gguf *g;
    OpenedModel m;
    Executor *e;
    fr_error err;
    double seconds_each = argc > 2 ? atof(argv[2]) : 2, least = INFINITY;
    int n_threads = threads_n_cores(), n_steady = 0, n_repetitions = argc > 4 ? atoi(argv[4]) : 3;
    ActPrecision activations;
    if (!act_precision_from_name(argc > 5 ? argv[5] : NULL, &activations)) return 2;
    if (gguf_open(&g, argv[1], &err)) die(&err);
    if (opened_model_open(&m, g, activations, n_threads, &err)) die(&err);
    const ExecutorOptions options = {.kv_type = KV_F16,
                                     .page_size = 16,
                                     .n_ctx = N_CTX,
                                     .max_sequences = 1,
                                     .max_rows = 64};
    if (executor_open(&e, m.device, m.weights, &options, &err)) die(&err);
    for (int i = 0; i < n_repetitions; i++) {
        CostCurve c = measure(e, N_CTX, n_threads);
        double worst = compare_all(e, &c, argc > 3 ? argv[3] : "128,1024", seconds_each);
        bool steady = is_steady(e, &c);
        printf("at worst %.1f%%%s\n\n", 100 * worst, steady ? "" : "; but the machine changed its speed meanwhile");
        if (!steady) continue;
        n_steady++;
        least = worst < least ? worst : least;
    }
    if (n_steady) printf("on a steady machine at worst %.1f%% in the best of %d\n", 100 * least, n_steady);
    executor_close(e);
    opened_model_close(&m);
    gguf_close(g);
    return 0;
}

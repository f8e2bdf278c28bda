/* bench_cost - how well does the engine's cost model know what a forward costs?
 *
 *   bench_cost MODEL.gguf [SECONDS [CONTEXT,...]]
 *
 * Measures the model as the engine does when the first request plans (cost_curve_measure, its time is printed), then forwards of 1 to 32
 * rows behind each context (128,1024; SECONDS, 2, for each), and prints the time, what the model says, and how far it is off.
 * Times are the least of their rounds, as those of the curve are; it is measured once more at the end, for a machine that changed its speed meanwhile
 * says nothing about the model. */
#include "base/clock.h"
#include "base/threads.h"
#include "model/cost.h"
#include "model/cost_curve.h"

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

static CostCurve measure(Executor *e, int n_ctx) {
    CostCurve c = {0};
    fr_error err;
    double start_s = clock_s();
    if (cost_curve_measure(&c, e, n_ctx, &err)) die(&err);
    printf("measured in %.3f s: T(1) %.3f ms, T(32) %.3f ms, %.4f us a row and key\n", clock_s() - start_s, 1e3 * cost_curve_at(&c, 1),
           1e3 * cost_curve_at(&c, 32), 1e6 * c.key_s);
    return c;
}

static void compare(Executor *e, CostCurve *c, int32_t n_context, double seconds_each, double *worst) {
    double seconds[N_COUNTS];
    fr_error err;
    if (cost_measure(e, n_context, COUNTS, N_COUNTS, 3, seconds_each, 0, seconds, &err)) die(&err);
    c->n_context = n_context;
    for (int i = 0; i < N_COUNTS; i++) {
        double says = cost_curve_at(c, COUNTS[i]), off = says / seconds[i] - 1;
        printf("%8d %6d %11.3f %11.3f %+8.1f%%\n", n_context, COUNTS[i], 1e3 * seconds[i], 1e3 * says, 100 * off);
        if (fabs(off) > *worst) *worst = fabs(off);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_cost MODEL.gguf [SECONDS [CONTEXT,...]]\n");
        return 2;
    }
    Gguf *g;
    Model *m;
    Executor *e;
    fr_error err;
    double seconds_each = argc > 2 ? atof(argv[2]) : 2, worst = 0;
    int n_threads = threads_n_cores();
    if (gguf_open(&g, argv[1], &err)) die(&err);
    if (model_open(&m, g, &(ModelOptions){.n_threads = n_threads}, &err)) die(&err);
    const ExecutorOptions options = {.n_threads = n_threads, .kv_type = KV_F16, .page_size = 16, .n_ctx = N_CTX, .max_sequences = 1,
                                     .max_rows = 64};
    if (executor_open(&e, m, &options, &err)) die(&err);
    CostCurve c = measure(e, N_CTX);
    printf("%8s %6s %11s %11s %9s\n", "context", "rows", "T ms", "model ms", "off");
    char contexts[256];
    snprintf(contexts, sizeof contexts, "%s", argc > 3 ? argv[3] : "128,1024");
    for (char *at = strtok(contexts, ","); at; at = strtok(NULL, ",")) {
        int n_context = atoi(at);
        if (n_context < 0 || n_context > N_CTX - 32) continue;
        compare(e, &c, n_context, seconds_each, &worst);
    }
    printf("at worst %.1f%%\n", 100 * worst);
    measure(e, N_CTX);
    executor_close(e);
    model_close(m);
    gguf_close(g);
    return 0;
}

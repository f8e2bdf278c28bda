/* bench_ranks.c - how well the cost model predicts the time of a forward that several ranks compute together.
 *
 *   mpirun -n 2 bench_ranks MODEL.gguf [SECONDS [NETWORK]]
 *   bench_ranks MODEL.gguf [SECONDS [NETWORK]]        (two forked ranks)
 *
 * Each rank has one thread. Rank 0 measures the cost curve as the engine does for its first request with an automatic
 * budget (cost_curve_measure), and then forwards of 1, 4, 8 and 16 rows after 128 tokens, in turn. It does so five
 * times, for SECONDS (10) in all besides the curves, and prints rows of a Markdown table that begin with the name of
 * the network:
 *
 *   T      the median time of a forward
 *   curve  what the curve says, which --draft auto and --tree-budget auto plan with
 *   price  the time of a forward outside its exchanges, plus n_exchanges latency + bytes received / bandwidth: the
 *          formula of docs/CLUSTER.md with the latency and the bandwidth that --stats prints. First halves, which are
 *          sent while the second halves are computed, count as free.
 *
 * The errors are those of the two predictions, relative to T. An error is the median over the five times, in each of
 * which it compares neighbours, because the speed of a machine varies. In the price, time in which a rank waits until
 * another one has computed its part counts as time of an exchange, which the formula does not know.
 * bench/ranks_figures.sh runs this over networks of several speeds. */
#include "base/mem.h"
#include "base/system.h"
#include "compute/cost.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

static const int32_t COUNTS[] = {1, 4, 8, 16};
enum { N_COUNTS = sizeof COUNTS / sizeof *COUNTS, MOST_ROWS = 16, N_CTX = 1024, N_CONTEXT = 128 };
enum { N_TIMES = 5, MOST_ROUNDS = 1000 };

/* The forwards of one number of rows. */
typedef struct Forwards {
    double seconds[MOST_ROUNDS], exchanges_s[MOST_ROUNDS];
    int64_t n_exchanges, n_bytes; /* of one forward, without first halves */
} Forwards;

static void die(const fr_error *err) {
    fprintf(stderr, "bench_ranks: %s\n", err->message);
    exit(1);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return values[n / 2];
}

/* Times one forward of a chain after the tokens of the sequence, and forgets its rows. */
static void time_forward(Executor *e, const Comm *comm, int32_t sequence, int32_t n_rows, int i_round, Forwards *out) {
    Row rows[MOST_ROWS];
    fr_error err;
    for (int32_t i = 0; i < n_rows; i++)
        rows[i] = (Row){.token = 11 + i * 37, .sequence = sequence, .parent = i - 1, .want_logits = true};
    if (executor_reserve(e, sequence, n_rows, &err)) die(&err);
    CommCounts before = comm_counts(comm);
    double start_s = clock_s();
    if (executor_forward(e, rows, n_rows, &err)) die(&err);
    out->seconds[i_round] = clock_s() - start_s;
    CommCounts after = comm_counts(comm);
    executor_commit(e, sequence, NULL, 0);
    out->exchanges_s[i_round] = after.seconds - before.seconds;
    out->n_exchanges = after.n_gathers - before.n_gathers - (after.n_early_gathers - before.n_early_gathers);
    out->n_bytes = after.n_gather_bytes - before.n_gather_bytes - (after.n_early_bytes - before.n_early_bytes);
}

/* What was found for one number of rows, each of the times. */
typedef struct Figures {
    double t_s[N_TIMES], curve_s[N_TIMES], exchanges_s[N_TIMES], price_s[N_TIMES], curve_error[N_TIMES],
        price_error[N_TIMES];
} Figures;

/* Compares forwards with a curve that has just been measured. all: [N_COUNTS], memory for the forwards. */
static void compare(Executor *e, const fr_model *m, double budget_s, int i_time, Forwards *all, Figures *out) {
    const Comm *comm = m->ranks->comm;
    const double received = 1 - 1.0 / comm_size(comm);
    CostCurve curve;
    int32_t sequence;
    int n_rounds = 0;
    fr_error err;
    if (cost_curve_measure(&curve, e, N_CTX, 1, &err)) die(&err);
    if (executor_sequence_open(e, &sequence, &err) || executor_sequence_pad(e, sequence, N_CONTEXT, &err)) die(&err);
    for (double end_s = clock_s() + budget_s; n_rounds < MOST_ROUNDS && (n_rounds < 3 || clock_s() < end_s); n_rounds++)
        for (int k = 0; k < N_COUNTS; k++) time_forward(e, comm, sequence, COUNTS[k], n_rounds, &all[k]);
    executor_sequence_close(e, sequence);
    curve.n_context = N_CONTEXT, curve.logits_s = cost_logits_s(m->weights);
    for (int k = 0; k < N_COUNTS; k++) {
        Forwards *f = &all[k];
        Figures *o = &out[k];
        double t_s = median(f->seconds, n_rounds), exchanges_s = median(f->exchanges_s, n_rounds);
        o->t_s[i_time] = t_s, o->exchanges_s[i_time] = exchanges_s;
        o->curve_s[i_time] = cost_curve_at(&curve, COUNTS[k]);
        o->price_s[i_time] = t_s - exchanges_s + (double)f->n_exchanges * m->weights->exchange_s +
                             (double)f->n_bytes * received / m->weights->exchange_bytes_per_s;
        o->curve_error[i_time] = o->curve_s[i_time] / t_s - 1;
        o->price_error[i_time] = o->price_s[i_time] / t_s - 1;
    }
}

static void print_rows(const fr_model *m, const char *network, Figures *f) {
    for (int k = 0; k < N_COUNTS; k++, f++)
        printf("| %s | %.0f us, %.2f GB/s | %d | %.2f ms | %.2f ms | %+.1f %% | %.2f ms | %.2f ms | %+.1f %% |\n",
               network, 1e6 * m->weights->exchange_s, 1e-9 * m->weights->exchange_bytes_per_s, COUNTS[k],
               1e3 * median(f->t_s, N_TIMES), 1e3 * median(f->curve_s, N_TIMES), 100 * median(f->curve_error, N_TIMES),
               1e3 * median(f->exchanges_s, N_TIMES), 1e3 * median(f->price_s, N_TIMES),
               100 * median(f->price_error, N_TIMES));
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_ranks MODEL.gguf [SECONDS [NETWORK]]\n");
        return 2;
    }
    fr_model *m;
    Device *d;
    Executor *e;
    fr_error err;
    const fr_model_options options = {.struct_size = sizeof options,
                                      .n_threads = 1,
                                      .n_ranks = getenv("OMPI_COMM_WORLD_SIZE") ? FR_RANKS_MPI : 2};
    int status = fr_model_open(&m, argv[1], &options, &err);
    if (status == FR_ERR_CANCELLED) return 0; /* this was a later rank, and rank 0 is done */
    if (status) die(&err);
    const ExecutorOptions of_executor = {.kv_type = KV_F16,
                                         .page_size = 16,
                                         .n_ctx = N_CTX,
                                         .max_sequences = 2,
                                         .max_rows = 64};
    if (m->weights->backend->device_open(&d, &(DeviceOptions){.n_threads = 1}, &err)) die(&err);
    if (executor_open(&e, d, m->weights, &of_executor, &err)) die(&err);
    Forwards *memory = mem_calloc(N_COUNTS, sizeof *memory);
    Figures figures[N_COUNTS];
    double budget_s = argc > 2 ? atof(argv[2]) : 10;
    for (int i = 0; memory && i < N_TIMES; i++) compare(e, m, budget_s / N_TIMES, i, memory, figures);
    if (memory) print_rows(m, argc > 3 ? argv[3] : "two processes", figures);
    mem_free(memory);
    executor_close(e);
    device_close(d);
    fr_model_close(m);
    return 0;
}

/* perf_scaling.c - `forerun perf --threads 1,2,4`: how a forward scales with the number of threads.
 *
 * One row is bound by reading the weights, so it gains nothing from more threads than it takes to use the memory's
 * bandwidth, which is measured with each number of threads beside it. 64 rows are bound by arithmetic, and 8 are
 * between. The numbers of threads take turns, so that disturbances affect them alike, and the fastest round of each
 * counts. */
#include "cli/cli.h"

#include "cli/json_memory.h"
#include "cli/plot.h"
#include "base/system.h"
#include "base/threads.h"
#include "compute/cost.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

enum { N_ROWS = 3, MAX_ROWS = 64, MIN_ROUNDS = 3 };
static const int32_t ROWS[N_ROWS] = {1, 8, MAX_ROWS};

/* The measurement with one number of threads. */
typedef struct Count {
    Device *device;
    Executor *executor;
    double read_gb_s; /* 0: the backend does not know it */
    double seconds[N_ROWS];
} Count;

typedef struct Scaling {
    const CliModel *model;
    const PerfScaling *options;
    Count counts[PERF_MAX_COUNTS];
} Scaling;

static int open_count(Scaling *s, int i, fr_error *err) {
    const CliModel *m = s->model;
    Count *c = &s->counts[i];
    MachineSpeed speed;
    const DeviceOptions device = {.kernels = m->kernels, .n_threads = s->options->threads[i], .pin_threads = m->pin};
    const ExecutorOptions options = {.kv_type = m->kv,
                                     .page_size = 16,
                                     .n_ctx = s->options->n_context + MAX_ROWS,
                                     .max_sequences = 1,
                                     .max_rows = MAX_ROWS};
    for (int k = 0; k < N_ROWS; k++) c->seconds[k] = INFINITY;
    int status = m->weights->backend->device_open(&c->device, &device, err);
    if (!status) status = executor_open(&c->executor, c->device, m->weights, &options, err);
    if (!status) status = cost_machine_speed(m->weights, s->options->threads[i], &speed, err);
    if (!status) c->read_gb_s = speed.read_gb_s;
    return status;
}

static int measure_round(Scaling *s, fr_error *err) {
    for (int i = 0; i < s->options->n_counts; i++) {
        double now[N_ROWS];
        int status = cost_measure(s->counts[i].executor, s->options->n_context, ROWS, N_ROWS, 1, 0, 0, now, err);
        if (status) return status;
        for (int k = 0; k < N_ROWS; k++) s->counts[i].seconds[k] = fmin(s->counts[i].seconds[k], now[k]);
    }
    return FR_OK;
}

static int measure(Scaling *s, fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < s->options->n_counts && !status; i++) status = open_count(s, i, err);
    double end_s = clock_s() + s->options->seconds;
    for (int round = 0; !status && (round < MIN_ROUNDS || clock_s() < end_s); round++) status = measure_round(s, err);
    return status;
}

/* Returns how many times as fast as with the first number of threads the forward of ROWS[k] rows is. */
static double speed_up(const Scaling *s, int i, int k) { return s->counts[0].seconds[k] / s->counts[i].seconds[k]; }

static void print_text(const Scaling *s) {
    const CliModel *m = s->model;
    CostWork work;
    cost_work(m->weights, m->kv, &work);
    printf("kernels %s, activations %s, %.3f GB of weights, context %d;\n"
           "T(n) is the time of a forward of n rows, the fastest of several rounds, and the\n"
           "factor after it the speed-up over the first line; this machine has %d core%s\n\n",
           m->weights->options.kernels, weights_activations(m->weights), work.weight_bytes * 1e-9,
           s->options->n_context, threads_n_physical_cores(), threads_n_physical_cores() == 1 ? "" : "s");
    printf("%7s %11s", "threads", "reads GB/s");
    for (int k = 0; k < N_ROWS; k++)
        printf(" %*sT(%d) ms%s", ROWS[k] < 10 ? 4 : 3, "", ROWS[k], k + 1 < N_ROWS ? "        " : "\n");
    for (int i = 0; i < s->options->n_counts; i++) {
        printf("%7d", s->options->threads[i]);
        if (s->counts[i].read_gb_s > 0) printf(" %11.1f", s->counts[i].read_gb_s);
        else printf(" %11s", "-");
        for (int k = 0; k < N_ROWS; k++) printf(" %11.3f %6.2fx", 1e3 * s->counts[i].seconds[k], speed_up(s, i, k));
        putchar('\n');
    }
}

static int print_json(const Scaling *s, fr_error *err) {
    json_t *list = json_array();
    for (int i = 0; i < s->options->n_counts; i++) {
        const Count *c = &s->counts[i];
        json_t *forwards = json_array();
        for (int k = 0; k < N_ROWS; k++)
            json_array_append_new(forwards, json_pack("{s:i, s:f, s:f}", "rows", ROWS[k], "seconds", c->seconds[k],
                                                      "speed_up", speed_up(s, i, k)));
        json_array_append_new(list,
                              json_pack("{s:i, s:o, s:o}", "threads", s->options->threads[i], "read_gb_s",
                                        c->read_gb_s > 0 ? json_real(c->read_gb_s) : json_null(), "forward", forwards));
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:i, s:o}", "cores", threads_n_physical_cores(), "kernel_table",
                          s->model->weights->options.kernels, "activations", weights_activations(s->model->weights),
                          "context", s->options->n_context, "scaling", list);
    return json_print(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6), err);
}

static int plot(const Scaling *s, fr_error *err) {
    double threads[PERF_MAX_COUNTS], y[N_ROWS][PERF_MAX_COUNTS];
    char names[N_ROWS][24];
    PlotSeries series[N_ROWS];
    for (int k = 0; k < N_ROWS; k++) {
        for (int i = 0; i < s->options->n_counts; i++) threads[i] = s->options->threads[i], y[k][i] = speed_up(s, i, k);
        snprintf(names[k], sizeof names[k], "%d row%s", ROWS[k], ROWS[k] == 1 ? "" : "s");
        series[k] = (PlotSeries){.name = names[k], .n = s->options->n_counts, .x = threads, .y = y[k]};
    }
    const Plot p = {.kind = PLOT_LINES,
                    .title = "A forward with more threads",
                    .x_label = "threads",
                    .y_label = "speed-up",
                    .series = series,
                    .n_series = N_ROWS,
                    .y_from_zero = true};
    return plot_write_svg(&p, s->options->plot, err);
}

int perf_scaling(const CliModel *m, const PerfScaling *options, fr_error *err) {
    Scaling s = {.model = m, .options = options};
    int status = measure(&s, err);
    for (int i = 0; i < options->n_counts; i++) {
        executor_close(s.counts[i].executor);
        device_close(s.counts[i].device);
    }
    if (status) return status;
    if (options->json) status = print_json(&s, err);
    else print_text(&s);
    return !status && options->plot ? plot(&s, err) : status;
}

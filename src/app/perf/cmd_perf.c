/* cmd_perf.c - `forerun perf`: the limits of this machine, and how near a forward over n rows comes to them. */
#include "app/cli.h"
#include "app/perf/perf_figures.h"
#include "app/perf/perf_parts.h"
#include "app/plot.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_ROWS = 256, KEY_JSON, KEY_SECONDS, KEY_PLOT, KEY_PARTS, KEY_FIGURES, MAX_COUNTS = 64, MAX_ROWS = 512, MAX_SPLIT = 8 };
#define PARTS_S 1.0 /* to take one forward apart */

typedef struct PerfArgs {
    CliModel model;
    const char *rows, *parts, *plot;
    int n_context, json, figures;
    double seconds;
} PerfArgs;

static const struct argp_option option_table[] = {
    {"rows", KEY_ROWS, "1,2,4,...", 0, "numbers of rows (default 1,2,3,4,5,6,8,12,16,24,32,48,64)", 0},
    {"ctx", 'c', "N", 0, "tokens that stand before the rows (default 128)", 0},
    {"parts", KEY_PARTS, "1,8,...", 0, "numbers of rows whose forward is taken apart (default 1,8,32)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "how long to measure (default 5; three rounds at the least)", 0},
    {"figures", KEY_FIGURES, NULL, 0, "instead: the share of bandwidth of one row and T(4, 8, 16, 32)/T(1) at contexts 128 and 1024, beside what should "
     "be reached on the shape of TinyLlama-1.1B and what this machine allows; --seconds for each context", 0},
    {"plot", KEY_PLOT, "FILE.svg", 0, "draw T(n) and the limit (needs gnuplot)", 0},
    {"json", KEY_JSON, NULL, 0, "print JSON", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    PerfArgs *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; return 0;
    case KEY_ROWS: a->rows = arg; return 0;
    case KEY_PARTS: a->parts = arg; return 0;
    case KEY_PLOT: a->plot = arg; return 0;
    case KEY_JSON: a->json = 1; return 0;
    case KEY_FIGURES: a->figures = 1; return 0;
    case KEY_SECONDS: a->seconds = atof(arg); return 0;
    case 'c':
        a->n_context = (int32_t)cli_parse_int(state, arg, 0, 1 << 20, "--ctx");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

typedef struct Report {
    const PerfArgs *args;
    const Weights *weights;
    MachineSpeed speed;
    CostWork work;
    int32_t *rows;
    int64_t n;
    double seconds[MAX_COUNTS];
    int32_t *split; /* [n_split] rows of the forwards that are taken apart */
    int64_t n_split;
    CostPart parts[MAX_SPLIT][COST_PARTS_MAX];
    int n_parts[MAX_SPLIT];
    double whole_s[MAX_SPLIT];
} Report;

static double limit_s(const Report *r, int64_t i) {
    return cost_limit_s(&r->work, &r->speed, r->rows[i], r->args->n_context);
}

/* Bytes a second that the forward really read, as a share of what the machine can read. */
static double read_share(const Report *r, int64_t i) {
    double bytes = r->work.weight_bytes + r->args->n_context * r->work.kv_bytes_per_key;
    return bytes / r->seconds[i] / (r->speed.read_gb_s * 1e9);
}

static double t1(const Report *r) {
    for (int64_t i = 0; i < r->n; i++)
        if (r->rows[i] == 1) return r->seconds[i];
    return r->seconds[0] / r->rows[0];
}

static void print_text(const Report *r) {
    const double *peak = r->speed.peak_gop_s;
    printf("machine   %d threads, backend %s, kernels %s (of", r->args->model.n_threads, r->weights->backend->name, r->weights->options.kernels);
    for (const char *const *name = r->weights->backend->kernel_names(); *name; name++) printf(" %s", *name);
    printf("), activations %s\n", act_precision_name(r->weights->options.activations));
    printf("          reads %.1f GB/s; int8 %.0f, bf16 %.0f, f32 %.0f billion operations/s\n", r->speed.read_gb_s,
           peak[PEAK_INT8], peak[PEAK_BF16], peak[PEAK_F32]);
    printf("model     %.3f GB of weights read a forward, %d tokens before it\n", r->work.weight_bytes * 1e-9,
           r->args->n_context);
    printf("limit     the longer of reading everything once and computing everything at the peak\n\n");
    printf("%6s %10s %8s %11s %10s %8s %10s %9s\n", "rows", "T ms", "T/T(1)", "rows/s", "limit ms", "of it", "bandwidth", "Gop/s");
    for (int64_t i = 0; i < r->n; i++) {
        double ops = 0;
        for (int k = 0; k < PEAK_COUNT; k++) ops += r->rows[i] * r->work.ops_per_row[k];
        printf("%6d %10.3f %8.2f %11.1f %10.3f %7.0f%% %9.0f%% %9.0f\n", r->rows[i], 1e3 * r->seconds[i],
               r->seconds[i] / t1(r), r->rows[i] / r->seconds[i], 1e3 * limit_s(r, i),
               100 * limit_s(r, i) / r->seconds[i], 100 * read_share(r, i), ops / r->seconds[i] * 1e-9);
    }
    for (int64_t i = 0; i < r->n_split; i++)
        perf_parts_print(r->parts[i], r->n_parts[i], r->split[i], r->whole_s[i], &r->speed);
}

static void print_json(const Report *r) {
    const double *peak = r->speed.peak_gop_s;
    json_t *rows = json_array();
    for (int64_t i = 0; i < r->n; i++)
        json_array_append_new(rows, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "rows", r->rows[i], "seconds",
            r->seconds[i], "ratio", r->seconds[i] / t1(r), "limit_s", limit_s(r, i), "of_limit",
            limit_s(r, i) / r->seconds[i], "bandwidth_share", read_share(r, i)));
    json_t *split = json_array();
    for (int64_t i = 0; i < r->n_split; i++)
        json_array_append_new(split, perf_parts_json(r->parts[i], r->n_parts[i], r->split[i], r->whole_s[i], &r->speed));
    json_t *j = json_pack("{s:i, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:i, s:o, s:o}", "threads", r->args->model.n_threads, "kernel_table",
                     r->weights->options.kernels, "activations", act_precision_name(r->weights->options.activations), "read_gb_s", r->speed.read_gb_s, "int8_gop_s", peak[PEAK_INT8],
                     "bf16_gop_s", peak[PEAK_BF16], "f32_gop_s", peak[PEAK_F32], "weight_gb",
                     r->work.weight_bytes * 1e-9, "context", r->args->n_context, "forward", rows, "split", split);
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(j);
}

static int plot(const Report *r, fr_error *err) {
    double rows[MAX_COUNTS], ms[MAX_COUNTS], limit_ms[MAX_COUNTS];
    for (int64_t i = 0; i < r->n; i++)
        rows[i] = r->rows[i], ms[i] = 1e3 * r->seconds[i], limit_ms[i] = 1e3 * limit_s(r, i);
    const PlotSeries series[] = {{.name = "T(n)", .n = (int)r->n, .x = rows, .y = ms},
                                 {.name = "limit", .n = (int)r->n, .x = rows, .y = limit_ms}};
    const Plot p = {.kind = PLOT_LINES, .title = "A forward over n rows, and the least it could take", .x_label = "rows",
                    .y_label = "ms", .series = series, .n_series = 2, .y_from_zero = true};
    return plot_write_svg(&p, r->args->plot, err);
}

/* The machine is measured before and after, and counts with the better figures: what other programs took from one of
 * them is no limit of the machine. */
static int measure(Report *r, Executor *e, fr_error *err) {
    MachineSpeed after;
    int status = cost_machine_speed(r->weights, r->args->model.n_threads, &r->speed, err);
    if (!status) status = cost_measure(e, r->args->n_context, r->rows, (int)r->n, 3, r->args->seconds, 0.5, r->seconds, err);
    if (!status) status = cost_machine_speed(r->weights, r->args->model.n_threads, &after, err);
    if (status) return status;
    if (after.read_gb_s > r->speed.read_gb_s) r->speed.read_gb_s = after.read_gb_s;
    for (int k = 0; k < PEAK_COUNT; k++)
        if (after.peak_gop_s[k] > r->speed.peak_gop_s[k]) r->speed.peak_gop_s[k] = after.peak_gop_s[k];
    return FR_OK;
}

static int take_apart(Report *r, Executor *e, fr_error *err) {
    for (int64_t i = 0; i < r->n_split; i++) {
        r->n_parts[i] = cost_parts_measure(e, &r->speed, r->split[i], r->args->n_context, PARTS_S, r->parts[i], &r->whole_s[i], err);
        if (r->n_parts[i] < 0) return r->n_parts[i];
    }
    return FR_OK;
}

static int report(const PerfArgs *a, fr_error *err) {
    Report r = {.args = a, .weights = a->model.weights};
    int status = cli_parse_ints(a->rows, 1, MAX_ROWS, &r.rows, &r.n, err);
    if (status) return status;
    status = cli_parse_ints(a->parts, 1, MAX_ROWS, &r.split, &r.n_split, err);
    if (!status && r.n_split > MAX_SPLIT) status = error_set(err, FR_ERR_ARGUMENT, "--parts: at most %d numbers", MAX_SPLIT);
    if (r.n > MAX_COUNTS) status = error_set(err, FR_ERR_ARGUMENT, "--rows: at most %d numbers", MAX_COUNTS);
    Executor *executor = NULL;
    ExecutorOptions options = {.kv_type = a->model.kv, .page_size = 16,
                               .n_ctx = a->n_context + MAX_ROWS, .max_sequences = 1, .max_rows = MAX_ROWS};
    cost_work(r.weights, a->model.kv, &r.work);
    if (!status) status = executor_open(&executor, a->model.device, r.weights, &options, err);
    if (!status && a->plot) status = plot_check(a->plot, err);
    if (!status) status = measure(&r, executor, err);
    if (!status) status = take_apart(&r, executor, err);
    executor_close(executor);
    if (!status) {
        if (a->json) print_json(&r);
        else print_text(&r);
        if (a->plot) status = plot(&r, err);
    }
    free(r.rows);
    free(r.split);
    return status;
}

int cmd_perf(int argc, char **argv) {
    static const struct argp_child children[] = {{&cli_model_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = option_table, .parser = parse, .children = children,
        .doc = "Measure this machine's read bandwidth and arithmetic peaks, and T(n): what a forward over n rows costs. "
               "Drafting pays as long as T(n)/T(1) stays below the tokens accepted a step. Then forwards are taken apart: bytes and "
               "operations of each part, its time over the floor that the machine sets, and what that means.\v"
               "Example:\n  forerun perf -m models/target.gguf --rows 1,2,4,8,16 --ctx 128"};
    PerfArgs a = {.rows = "1,2,3,4,5,6,8,12,16,24,32,48,64", .parts = "1,8,32", .n_context = 128, .seconds = 5};
    cli_model_defaults(&a.model);
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    fr_error err;
    int status = cli_model_open(&a.model, &err);
    if (!status) status = a.figures ? perf_figures(&a.model, a.seconds, a.json, &err) : report(&a, &err);
    cli_model_close(&a.model);
    return status ? cli_fail(&err) : CLI_OK;
}

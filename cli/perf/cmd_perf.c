/* cmd_perf.c - `forerun perf`: the limits of this machine, and how close a forward over n rows and its parts come to
 * them. */
#include "cli/cli.h"
#include "cli/json_memory.h"
#include "cli/plot.h"
#include "cli/speed.h"
#include "compute/cost.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COUNTS = 64, MAX_ROWS = 512, MAX_SPLIT = 8 };
#define PARTS_S 1.0 /* seconds to measure the parts of one forward */

typedef struct PerfArgs {
    CliModel model;
    const char *threads, *rows, *parts, *plot;
    int n_context;
    bool json, figures;
    double seconds;
} PerfArgs;

static PerfArgs args;

static const Option option_table[] = {
    {.key = "threads",
     .letter = 't',
     OPT_TEXT(PerfArgs, threads),
     .metavar = "N|1,2,4,...",
     .default_help = "one per core",
     .section = "Measuring",
     .help = "number of threads; several: print how forwards over 1, 8 and 64 rows scale with them, and nothing else"},
    {.key = "rows",
     OPT_TEXT(PerfArgs, rows),
     .metavar = "1,2,4,...",
     .default_value = "1,2,3,4,5,6,8,12,16,24,32,48,64",
     .help = "time forwards over these numbers of rows"},
    {.key = "ctx",
     .letter = 'c',
     OPT_INT(PerfArgs, n_context, 0, 1 << 20),
     .default_value = "128",
     .help = "number of context tokens before the rows"},
    {.key = "parts",
     OPT_TEXT(PerfArgs, parts),
     .metavar = "1,8,...",
     .default_value = "1,8,32",
     .help = "break down forwards over these numbers of rows into their parts"},
    {.key = "seconds",
     OPT_REAL(PerfArgs, seconds, 0, 86400),
     .metavar = "S",
     .default_value = "5",
     .help = "measure for S seconds, but at least three rounds"},
    {.key = "figures",
     OPT_FLAG(PerfArgs, figures),
     .help = "print only key figures: the share of the bandwidth that one row reaches, and T(4, 8, 16, 32)/T(1), at "
             "contexts 128 and 1024, beside the limits of this machine; --seconds then applies to each context"},
    {.key = "plot",
     OPT_OUTPUT(PerfArgs, plot),
     .metavar = "FILE.svg",
     .help = "draw T(n) and its limit, or the speed-up by more threads; needs gnuplot"},
    {.key = "json", OPT_FLAG(PerfArgs, json), .help = "print JSON"},
    {.key = NULL},
};

static void set_defaults(void) { cli_model_defaults(&args.model); }

typedef struct Report {
    const PerfArgs *args;
    const Weights *weights;
    MachineSpeed speed;
    MachineSpeed limits; /* what bounds this model: `speed`, without its bandwidth if the model is in the cache */
    bool is_cached;      /* a forward reads the weights faster than memory could deliver them */
    CostWork work;
    int32_t *rows;
    int64_t n;
    double seconds[MAX_COUNTS];
    int32_t *split; /* [n_split] rows of the forwards that are broken down into parts */
    int64_t n_split;
    CostPart parts[MAX_SPLIT][COST_PARTS_MAX];
    int n_parts[MAX_SPLIT];
    double whole_s[MAX_SPLIT];
} Report;

/* At most the measured time, which proves that the limit is not higher. */
static double limit_s(const Report *r, int64_t i) {
    return fmin(cost_limit_s(&r->work, &r->limits, r->rows[i], r->args->n_context), r->seconds[i]);
}

/* Returns the bandwidth that the forward achieved, as a share of what the machine can read. */
static double read_share(const Report *r, int64_t i) {
    double bytes = r->work.weight_bytes + cost_keys_seen(&r->work, r->args->n_context) * r->work.kv_bytes_per_key;
    return bytes / r->seconds[i] / (r->speed.read_gb_s * 1e9);
}

static double t1(const Report *r) {
    for (int64_t i = 0; i < r->n; i++)
        if (r->rows[i] == 1) return r->seconds[i];
    return r->seconds[0] / r->rows[0];
}

/* Returns whether the backend knows the limits of the machine. */
static bool has_limits(const Report *r) { return r->speed.read_gb_s > 0; }

/* Memory bounds no forward of a model that stays in the processor's cache. */
static void find_limits(Report *r) {
    r->limits = r->speed;
    for (int64_t i = 0; i < r->n && has_limits(r); i++) r->is_cached |= read_share(r, i) > 1.05;
    if (r->is_cached) r->limits.read_gb_s = INFINITY;
}

/* ---- the parts of a forward ------------------------------------------------------------------------------ */

/* Says in words how close a part comes to its lower limit, and whether arithmetic or reading sets that limit. */
static const char *verdict(const CostPart *p, double whole_s, const MachineSpeed *speed, char out[96]) {
    if (p->floor_s <= 0) return p->seconds > 0.1 * whole_s ? "no limit known, but a large share" : "no limit known";
    bool reads = p->bytes / (speed->read_gb_s * 1e9) >= 0.999 * p->floor_s;
    const char *by = reads ? "reading" : "arithmetic";
    double ratio = p->seconds / p->floor_s;
    if (p->seconds < 0.02 * whole_s) snprintf(out, 96, "too small to matter");
    else if (ratio < 0.9) snprintf(out, 96, "faster than memory: its data stays in the cache");
    else if (ratio < 1.15) snprintf(out, 96, "at the limit of %s", by);
    else if (ratio < 1.5) snprintf(out, 96, "near the limit of %s", by);
    else
        snprintf(out, 96, "%.1f times the limit of %s: %.0f%% of the forward is lost", ratio, by,
                 100 * (p->seconds - p->floor_s) / whole_s);
    return out;
}

static void print_parts(const CostPart *parts, int n, int32_t n_rows, double whole_s, const MachineSpeed *speed) {
    char text[96];
    printf("\nwhere the time goes, %d row%s: %.3f ms\n", n_rows, n_rows > 1 ? "s" : "", 1e3 * whole_s);
    printf("%-12s %12s %3s %8s %9s %9s %6s %6s\n", "part", "shape", "n", "MB", "ms", "limit ms", "ratio", "share");
    for (int i = 0; i < n; i++) {
        const CostPart *p = &parts[i];
        char shape[32] = "";
        if (p->n_out) snprintf(shape, sizeof shape, "%lldx%lld", (long long)p->n_out, (long long)p->n_in);
        printf("%-12s %12s %3d %8.2f %9.3f ", p->name, shape, p->n_layers, 1e-6 * p->bytes, 1e3 * p->seconds);
        if (p->floor_s > 0) printf("%9.3f %6.2f", 1e3 * p->floor_s, p->seconds / p->floor_s);
        else printf("%9s %6s", "", "");
        printf(" %5.1f%%\n", 100 * p->seconds / whole_s);
    }
    for (int i = 0; i < n; i++) printf("%-12s %s\n", parts[i].name, verdict(&parts[i], whole_s, speed, text));
}

static json_t *parts_json(const CostPart *parts, int n, int32_t n_rows, double whole_s, const MachineSpeed *speed) {
    char text[96];
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const CostPart *p = &parts[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:s}", "part", p->name, "n_out",
                                              (json_int_t)p->n_out, "n_in", (json_int_t)p->n_in, "n_layers",
                                              p->n_layers, "bytes", p->bytes, "ops", p->ops, "seconds", p->seconds,
                                              "limit_s", p->floor_s, "verdict", verdict(p, whole_s, speed, text)));
    }
    return json_pack("{s:i, s:f, s:o}", "rows", n_rows, "seconds", whole_s, "parts", list);
}

/* ---- the output ----------------------------------------------------------------------------------------- */

static void print_row(const Report *r, int64_t i) {
    double ops = 0;
    for (int k = 0; k < PEAK_COUNT; k++) ops += r->rows[i] * r->work.ops_per_row[k];
    printf("%6d %10.3f %8.2f %11.1f", r->rows[i], 1e3 * r->seconds[i], r->seconds[i] / t1(r),
           r->rows[i] / r->seconds[i]);
    if (has_limits(r)) {
        printf(" %10.3f %7.0f%%", 1e3 * limit_s(r, i), 100 * limit_s(r, i) / r->seconds[i]);
        if (r->is_cached) printf(" %10s", "-");
        else printf(" %9.0f%%", 100 * read_share(r, i));
        printf(" %9.0f", ops / r->seconds[i] * 1e-9);
    }
    putchar('\n');
}

/* Prints how the kernels read weights: a line for each line of speed->reads. */
static void print_reads(const MachineSpeed *speed) {
    for (const char *line = speed->reads; *line; line += strcspn(line, "\n"), line += *line == '\n')
        printf("\n          reading %.*s", (int)strcspn(line, "\n"), line);
}

/* Prints for each form of activations whether the products of many rows take two tiles of outputs at a time. */
static void print_pairs(const MachineSpeed *speed) {
    for (int i = 0; i < 2; i++)
        if (speed->pair_rows[i] > 0)
            printf("\n          multiplying two tiles at a time from %d rows on with %d-bit activations",
                   speed->pair_rows[i], i == 0 ? 16 : 8);
}

static void print_tiles(const MachineSpeed *speed) {
    const double *tiles = speed->tile_gop_s;
    if (tiles[PEAK_INT8] == 0) {
        printf("\n          AMX tiles: not on this machine");
        return;
    }
    printf("\n          AMX tiles, billion op/s: int8 %.0f, bf16 %.0f", tiles[PEAK_INT8], tiles[PEAK_BF16]);
    for (int i = 0; i < 2; i++)
        if (speed->tile_rows[i] > 0)
            printf("\n          AMX tiles are used from %d rows on with %d-bit activations", speed->tile_rows[i],
                   i == 0 ? 16 : 8);
}

static void print_text(const Report *r) {
    const double *peak = r->speed.peak_gop_s;
    const Weights *w = r->weights;
    int n_threads = r->args->model.device->n_threads;
    printf("machine   %d thread%s, backend %s, kernels %s, activations %s\n          kernels of this CPU:", n_threads,
           n_threads == 1 ? "" : "s", w->backend->name, w->options.kernels, weights_activations(w));
    for (const char *const *name = w->backend->kernel_names(); *name; name++) printf(" %s", *name);
    if (has_limits(r)) {
        printf("\n          reads %.1f GB/s; billion op/s: int8 %.0f, ", r->speed.read_gb_s, peak[PEAK_INT8]);
        if (isfinite(peak[PEAK_INT16])) printf("int16 %.0f, ", peak[PEAK_INT16]);
        printf("bf16 %.0f, f32 %.0f", peak[PEAK_BF16], peak[PEAK_F32]);
        print_reads(&r->speed);
        print_pairs(&r->speed);
        print_tiles(&r->speed);
    }
    printf("\nmodel     %.3f GB of weights read per forward, %d tokens of context\n", r->work.weight_bytes * 1e-9,
           r->args->n_context);
    if (r->is_cached)
        printf("limit     computing everything at the peak rate; this model is in the cache of\n"
               "          the processor, so memory is no limit, and a larger model behaves\n"
               "          differently\n");
    else if (has_limits(r))
        printf("limit     the longer of two times: reading everything once, and computing\n"
               "          everything at the peak rate\n");
    else printf("limit     the backend %s does not know the limits of the machine\n", w->backend->name);
    printf("\n%6s %10s %8s %11s", "rows", "T ms", "T/T(1)", "rows/s");
    printf(has_limits(r) ? " %10s %8s %10s %9s\n" : "\n", "limit ms", "of limit", "bandwidth", "Gop/s");
    for (int64_t i = 0; i < r->n; i++) print_row(r, i);
    for (int64_t i = 0; i < r->n_split; i++)
        if (r->n_parts[i]) print_parts(r->parts[i], r->n_parts[i], r->split[i], r->whole_s[i], &r->limits);
}

/* Returns the value, or null if the limits are unknown. */
static json_t *figure(const Report *r, double value) { return has_limits(r) ? json_real_or_null(value) : json_null(); }

static int print_json(const Report *r, fr_error *err) {
    const double *peak = r->speed.peak_gop_s;
    json_t *rows = json_array();
    for (int64_t i = 0; i < r->n; i++)
        json_array_append_new(rows,
                              json_pack("{s:i, s:f, s:f, s:o, s:o, s:o}", "rows", r->rows[i], "seconds", r->seconds[i],
                                        "ratio", r->seconds[i] / t1(r), "limit_s", figure(r, limit_s(r, i)), "of_limit",
                                        figure(r, limit_s(r, i) / r->seconds[i]), "bandwidth_share",
                                        r->is_cached ? json_null() : figure(r, read_share(r, i))));
    json_t *split = json_array();
    for (int64_t i = 0; i < r->n_split; i++)
        json_array_append_new(split, parts_json(r->parts[i], r->n_parts[i], r->split[i], r->whole_s[i], &r->limits));
    const double *tiles = r->speed.tile_gop_s; /* null: the machine has no tiles */
    json_t *j = json_pack(
        "{s:i, s:s, s:s, s:s, s:f, s:f, s:o, s:f, s:f, s:o, s:o, s:f, s:b, s:i, s:o, s:o}", "threads",
        r->args->model.device->n_threads, "backend", r->weights->backend->name, "kernel_table",
        r->weights->options.kernels, "activations", weights_activations(r->weights), "read_gb_s", r->speed.read_gb_s,
        "int8_gop_s", peak[PEAK_INT8], "int16_gop_s", json_real_or_null(peak[PEAK_INT16]), "bf16_gop_s",
        peak[PEAK_BF16], "f32_gop_s", peak[PEAK_F32], "tile_int8_gop_s",
        tiles[PEAK_INT8] > 0 ? json_real(tiles[PEAK_INT8]) : json_null(), "tile_bf16_gop_s",
        tiles[PEAK_BF16] > 0 ? json_real(tiles[PEAK_BF16]) : json_null(), "weight_gb", r->work.weight_bytes * 1e-9,
        "in_cache", r->is_cached, "context", r->args->n_context, "forward", rows, "split", split);
    return json_print(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6), err);
}

static int plot(const Report *r, fr_error *err) {
    double rows[MAX_COUNTS], ms[MAX_COUNTS], limit_ms[MAX_COUNTS];
    for (int64_t i = 0; i < r->n; i++)
        rows[i] = r->rows[i], ms[i] = 1e3 * r->seconds[i], limit_ms[i] = 1e3 * limit_s(r, i);
    const PlotSeries series[] = {{.name = "T(n)", .n = (int)r->n, .x = rows, .y = ms},
                                 {.name = "limit", .n = (int)r->n, .x = rows, .y = limit_ms}};
    const Plot p = {.kind = PLOT_LINES,
                    .title = "A forward over n rows, and its lower limit",
                    .x_label = "rows",
                    .y_label = "ms",
                    .series = series,
                    .n_series = 2,
                    .y_from_zero = true};
    return plot_write_svg(&p, r->args->plot, err);
}

/* ---- measuring -------------------------------------------------------------------------------------------- */

/* Measures the machine before and after the forwards and keeps the better figures, because other programs may have
 * slowed down one of the two measurements. */
static int measure(Report *r, Executor *e, fr_error *err) {
    MachineSpeed after;
    int status = cost_machine_speed(r->weights, r->args->model.n_threads, &r->speed, err);
    if (!status)
        status = cost_measure(e, r->args->n_context, r->rows, (int)r->n, 3, r->args->seconds, 0.5, r->seconds, err);
    if (!status) status = cost_machine_speed(r->weights, r->args->model.n_threads, &after, err);
    if (status) return status;
    if (after.read_gb_s > r->speed.read_gb_s) r->speed.read_gb_s = after.read_gb_s;
    machine_speed_keep_peaks(&r->speed, &after);
    return FR_OK;
}

static int measure_parts(Report *r, Executor *e, fr_error *err) {
    for (int64_t i = 0; i < r->n_split; i++) {
        r->n_parts[i] = cost_parts_measure(e, &r->limits, r->split[i], r->args->n_context, PARTS_S, r->parts[i],
                                           &r->whole_s[i], err);
        if (r->n_parts[i] < 0) return r->n_parts[i];
    }
    return FR_OK;
}

static int report(const PerfArgs *a, fr_error *err) {
    Report r = {.args = a, .weights = a->model.weights};
    int status = cli_parse_ints("--rows", a->rows, 1, MAX_ROWS, &r.rows, &r.n, err);
    if (status) return status;
    status = cli_parse_ints("--parts", a->parts, 1, MAX_ROWS, &r.split, &r.n_split, err);
    if (!status && r.n_split > MAX_SPLIT)
        status = error_set(err, FR_ERR_ARGUMENT, "--parts: at most %d numbers", MAX_SPLIT);
    if (r.n > MAX_COUNTS) status = error_set(err, FR_ERR_ARGUMENT, "--rows: at most %d numbers", MAX_COUNTS);
    Executor *executor = NULL;
    ExecutorOptions options = {.kv_type = a->model.kv,
                               .page_size = 16,
                               .n_ctx = a->n_context + MAX_ROWS,
                               .max_sequences = 1,
                               .max_rows = MAX_ROWS};
    if (!status) speed_warn_if_busy("perf");
    cost_work(r.weights, a->model.kv, &r.work);
    if (!status) status = executor_open(&executor, a->model.device, r.weights, &options, err);
    if (!status) status = measure(&r, executor, err);
    if (!status) find_limits(&r);
    if (!status) status = measure_parts(&r, executor, err);
    executor_close(executor);
    if (!status) {
        if (a->json) status = print_json(&r, err);
        else print_text(&r);
        if (!status && a->plot) status = plot(&r, err);
    }
    free(r.rows);
    free(r.split);
    return status;
}

/* Reads --threads. The model is opened with the greatest of the numbers. */
static int read_threads(PerfArgs *a, PerfScaling *s, int32_t **list, fr_error *err) {
    int64_t n = 0;
    int status = a->threads ? cli_parse_ints("--threads", a->threads, 1, THREADS_MAX, list, &n, err) : FR_OK;
    if (!status && n > PERF_MAX_COUNTS)
        status = error_set(err, FR_ERR_ARGUMENT, "--threads: at most %d numbers", PERF_MAX_COUNTS);
    if (!status && n > 1 && a->figures)
        status = error_set(err, FR_ERR_ARGUMENT, "--figures: give one number of --threads");
    if (status || n == 0) return status;
    a->model.n_threads = 0;
    for (int64_t i = 0; i < n; i++)
        if ((*list)[i] > a->model.n_threads) a->model.n_threads = (*list)[i];
    *s = (PerfScaling){.threads = *list,
                       .n_counts = (int)n,
                       .n_context = a->n_context,
                       .seconds = a->seconds,
                       .json = a->json,
                       .plot = a->plot};
    return FR_OK;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    PerfScaling scaling = {0};
    int32_t *threads = NULL;
    int status = args.plot ? plot_check(&err) : FR_OK;
    if (!status) status = read_threads(&args, &scaling, &threads, &err);
    if (!status) status = cli_model_open(&args.model, &err);
    if (!status && (args.figures || scaling.n_counts > 1)) speed_warn_if_busy("perf");
    if (!status)
        status = scaling.n_counts > 1 ? perf_scaling(&args.model, &scaling, &err)
                 : args.figures       ? perf_figures(&args.model, args.seconds, args.json, &err)
                                      : report(&args, &err);
    free(threads);
    cli_model_close(&args.model);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_perf = {
    .name = "perf",
    .summary = "measure the limits of this machine, and the cost of a forward over n rows",
    .about = "Measure this machine's read bandwidth and peak arithmetic rates, and T(n), the time of a forward over n "
             "rows. Drafting pays as long as T(n)/T(1) is less than the number of tokens accepted per step. Then break "
             "forwards down into parts: the bytes and operations of each part, and its time relative to the lower "
             "limit that the machine sets.",
    .sets = (const OptionSet[]){{cli_model_options, &args.model}, {option_table, &args}, {NULL, NULL}},
    .examples = "  forerun perf -m models/target.gguf --rows 1,2,4,8,16 --ctx 128\n"
                "  forerun perf -m models/target.gguf --threads 1,2,4,8\n",
    .defaults = set_defaults,
    .run = run,
};

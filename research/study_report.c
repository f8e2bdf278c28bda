/* study_report.c - the results of an experiment as a table and as JSON. */
#include "cli/json_memory.h"
#include "cli/plot.h"
#include "research/study.h"

#include <math.h>
#include <stdio.h>

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

static double metric_of(const StudyResult *r, const StudyRow *row, StudyMetric metric, int run) {
    double efficiency = ratio((double)row->n_tokens[run], (double)row->n_steps[run]);
    if (metric == STUDY_EFFICIENCY) return efficiency;
    if (metric == STUDY_MBSU)
        return row->tree ? efficiency / (study_tree_depth(row->tree) * r->size_ratio + 1) : efficiency;
    const StudyRow *plain = &r->rows[0];
    return ratio(ratio((double)row->n_tokens[run], row->decode_s[run]),
                 ratio((double)plain->n_tokens[run], plain->decode_s[run]));
}

/* Block efficiency, MBSU = efficiency / (depth * size_ratio + 1), or token rate over that of the same run's plain
 * decoding: all normalised by plain decoding, as the paper prints them. */
static StudyFigure study_figure(const StudyResult *r, const StudyRow *row, StudyMetric metric) {
    double sum = 0, squares = 0;
    for (int run = 0; run < r->n_runs; run++) sum += metric_of(r, row, metric, run);
    double mean = sum / r->n_runs;
    for (int run = 0; run < r->n_runs; run++) {
        double d = metric_of(r, row, metric, run) - mean;
        squares += d * d;
    }
    return (StudyFigure){mean, r->n_runs > 1 ? sqrt(squares / (r->n_runs - 1) / r->n_runs) : 0};
}

/* Returns whether the row is the best of its method and group in this metric. */
static bool is_best(const StudyResult *r, const StudyRow *row, StudyMetric metric) {
    double mine = study_figure(r, row, metric).mean;
    for (int i = 1; i < r->n_rows; i++) {
        const StudyRow *other = &r->rows[i];
        if (other->tree->group == row->tree->group && other->tree->method == row->tree->method &&
            study_figure(r, other, metric).mean > mine)
            return false;
    }
    return true;
}

static void print_figure(const StudyResult *r, const StudyRow *row, StudyMetric metric) {
    StudyFigure f = study_figure(r, row, metric);
    int decimals = metric == STUDY_RATE ? 2 : 3;
    printf(" %6.*f ±%.*f%c", decimals, f.mean, decimals, f.error, row->tree && is_best(r, row, metric) ? '*' : ' ');
}

void study_print(const StudyResult *r) {
    printf("\ntemperature %g, top-p %g; draft model / target: %.3f of the bytes; %d seed%s;\n"
           "all relative to plain decoding, mean ± standard error over seeds;\n"
           "* best tree of the method in its group\n",
           r->temperature, r->top_p, r->size_ratio, r->n_runs, r->n_runs == 1 ? "" : "s");
    printf("  %-15s %-12s%5s %14s %14s %14s\n", "method", "tree", "nodes", "efficiency", "MBSU", "token rate");
    for (int i = 1; i < r->n_rows; i++) {
        const StudyRow *row = &r->rows[i];
        if (i == 1 || row->tree->group != r->rows[i - 1].tree->group)
            printf("%s %d:\n", r->plan->group_name, row->tree->group);
        printf("  %-15s %-12s %4d", study_method_name(row->tree->method), row->tree->shape,
               study_tree_nodes(row->tree));
        for (StudyMetric m = 0; m < STUDY_N_METRICS; m++) print_figure(r, row, m);
        putchar('\n');
    }
}

static json_t *row_json(const StudyResult *r, const StudyRow *row) {
    static const char *const names[STUDY_N_METRICS] = {"block_efficiency", "mbsu", "token_rate"};
    json_t *j = row->tree ? json_pack("{s:i, s:s, s:s, s:s, s:i, s:i}", "group", row->tree->group, "method",
                                      study_method_name(row->tree->method), "verify",
                                      study_method_rule(row->tree->method), "tree", row->tree->shape, "nodes",
                                      study_tree_nodes(row->tree), "depth", study_tree_depth(row->tree))
                          : json_pack("{s:s}", "method", "plain");
    json_t *tokens = json_array(), *steps = json_array(), *seconds = json_array();
    for (int run = 0; run < r->n_runs; run++) {
        json_array_append_new(tokens, json_integer(row->n_tokens[run]));
        json_array_append_new(steps, json_integer(row->n_steps[run]));
        json_array_append_new(seconds, json_real_or_null(row->decode_s[run]));
    }
    for (StudyMetric m = 0; m < STUDY_N_METRICS; m++) {
        StudyFigure f = study_figure(r, row, m);
        json_object_set_new(
            j, names[m],
            json_pack("{s:o, s:o}", "mean", json_real_or_null(f.mean), "standard_error", json_real_or_null(f.error)));
    }
    json_object_set_new(j, "tokens", tokens);
    json_object_set_new(j, "steps", steps);
    json_object_set_new(j, "decode_s", seconds);
    return j;
}

json_t *study_json(const StudyResult *r) {
    json_t *rows = json_array();
    for (int i = 0; i < r->n_rows; i++) json_array_append_new(rows, row_json(r, &r->rows[i]));
    return json_pack("{s:s, s:f, s:f, s:f, s:o}", "experiment", r->plan->name, "temperature", r->temperature, "top_p",
                     r->top_p, "size_ratio", r->size_ratio, "rows", rows);
}

/* Plots an experiment: the best tree of each method in each group, as in the paper. */

enum { MAX_GROUPS = 8 };

typedef struct Curve {
    int n;
    double x[MAX_GROUPS], y[MAX_GROUPS], dy[MAX_GROUPS];
} Curve;

/* The plan lists groups in rising order, and the trees of a group together. */
static void best_of(const StudyResult *r, StudyMethod method, StudyMetric metric, Curve *c) {
    c->n = 0;
    for (int i = 1; i < r->n_rows; i++) {
        const StudyRow *row = &r->rows[i];
        if (row->tree->method != method) continue;
        StudyFigure f = study_figure(r, row, metric);
        bool is_new = c->n == 0 || c->x[c->n - 1] != (double)row->tree->group;
        if (is_new) fr_assert(c->n < MAX_GROUPS), c->n++;
        else if (f.mean <= c->y[c->n - 1]) continue;
        c->x[c->n - 1] = row->tree->group;
        c->y[c->n - 1] = f.mean;
        c->dy[c->n - 1] = f.error;
    }
}

static int plot_metric(const StudyResult *r, StudyMetric metric, const char *path, fr_error *err) {
    static const char *const labels[STUDY_N_METRICS] = {"block efficiency", "MBSU", "token rate"};
    Curve curves[STUDY_N_METHODS];
    PlotSeries series[STUDY_N_METHODS];
    char title[128], y_label[64];
    for (StudyMethod m = 0; m < STUDY_N_METHODS; m++) {
        best_of(r, m, metric, &curves[m]);
        series[m] = (PlotSeries){.name = study_method_name(m),
                                 .n = curves[m].n,
                                 .x = curves[m].x,
                                 .y = curves[m].y,
                                 .dy = curves[m].dy};
    }
    snprintf(title, sizeof title, "%s by %s, temperature %g, top-p %g", labels[metric], r->plan->group_name,
             r->temperature, r->top_p);
    snprintf(y_label, sizeof y_label, "%s / plain decoding", labels[metric]);
    Plot plot = {.kind = PLOT_LINES,
                 .title = title,
                 .x_label = r->plan->group_name,
                 .y_label = y_label,
                 .series = series,
                 .n_series = STUDY_N_METHODS,
                 .reference = 1,
                 .y_from_zero = metric == STUDY_RATE};
    return plot_write_svg(&plot, path, err);
}

void study_plot_path(const char *prefix, double temperature, StudyMetric metric, char out[STUDY_MAX_PATH]) {
    static const char *const names[STUDY_N_METRICS] = {"efficiency", "mbsu", "rate"};
    snprintf(out, STUDY_MAX_PATH, "%.*s-t%g-%s.svg", STUDY_MAX_PREFIX, prefix, temperature, names[metric]);
}

int study_plot(const StudyResult *r, const char *prefix, fr_error *err) {
    int status = FR_OK;
    for (StudyMetric m = 0; m < STUDY_N_METRICS && !status; m++) {
        char path[STUDY_MAX_PATH];
        study_plot_path(prefix, r->temperature, m, path);
        status = plot_metric(r, m, path, err);
    }
    return status;
}

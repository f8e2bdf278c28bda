/* study_plot.c - the figures of an experiment: the best tree of each method in each group, as in the paper. */
#include "cli/plot.h"
#include "research/study.h"

#include <stdio.h>

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

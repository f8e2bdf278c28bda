/* study_toy.c - Fig. 1 of Recursive Speculative Decoding: how often one of two drafts from Ber(p) is accepted where the
 * target is Ber(q), by four rules of verification. Nothing is sampled: the rules themselves run once for every possible
 * outcome of drafts and random source (acceptance.h), and the optimum is a maximum flow (acceptance.c). */
#include "cli/json_file.h"
#include "cli/plot.h"
#include "research/study.h"

#include "research/acceptance.h"

#include <stdio.h>

enum { N_POINTS = 19, N_RULES = 4, N_DRAFTS = 2 };

static const char *const names[N_RULES] = {"multi-round", "k-seq", "optimum with replacement", "recursive"};

static const char *const headings[N_RULES] = {"multi-round", "k-seq", "optimum", "recursive"};

typedef struct Toy {
    double target, draft[N_POINTS], accepted[N_RULES][N_POINTS];
} Toy;

static void compute(Toy *t, double target) {
    const double p[2] = {1 - target, target}; /* the paper calls the target q; here it is p, as everywhere */
    t->target = target;
    for (int i = 0; i < N_POINTS; i++) {
        t->draft[i] = (i + 1) / (double)(N_POINTS + 1);
        const float q[2] = {(float)(1 - t->draft[i]), (float)t->draft[i]};
        t->accepted[0][i] = acceptance_multi_round(p, q, 2, N_DRAFTS);
        t->accepted[1][i] = acceptance_k_seq(p, q, 2, N_DRAFTS, 0);
        t->accepted[2][i] = acceptance_optimum(p, q, 2, N_DRAFTS);
        t->accepted[3][i] = acceptance_recursive(p, q, 2, N_DRAFTS);
    }
}

static void print(const Toy *t) {
    printf("target Ber(%g), two drafts from Ber(p): how often one of them is accepted\n"
           "optimum: of rules whose drafts are drawn with replacement\n%-6s",
           t->target, "p");
    for (int r = 0; r < N_RULES; r++) printf("  %-16s", headings[r]);
    putchar('\n');
    for (int i = 0; i < N_POINTS; i++) {
        printf("%-6.2f", t->draft[i]);
        for (int r = 0; r < N_RULES; r++) printf("  %-16.6f", t->accepted[r][i]);
        putchar('\n');
    }
}

static int write_json(const Toy *t, const char *path, fr_error *err) {
    json_t *j = json_pack("{s:f}", "target", t->target), *draft = json_array();
    for (int i = 0; i < N_POINTS; i++) json_array_append_new(draft, json_real(t->draft[i]));
    json_object_set_new(j, "draft", draft);
    for (int r = 0; r < N_RULES; r++) {
        json_t *values = json_array();
        for (int i = 0; i < N_POINTS; i++) json_array_append_new(values, json_real(t->accepted[r][i]));
        json_object_set_new(j, names[r], values);
    }
    int status = json_file_write(j, path, JSON_INDENT(1), err);
    json_decref(j);
    return status;
}

static int draw(const Toy *t, const char *prefix, fr_error *err) {
    char path[STUDY_MAX_PATH], title[128];
    snprintf(path, sizeof path, "%.*s.svg", STUDY_MAX_PREFIX, prefix);
    snprintf(title, sizeof title, "Two drafts from Ber(p), target Ber(%g)", t->target);
    PlotSeries series[N_RULES];
    for (int r = 0; r < N_RULES; r++)
        series[r] = (PlotSeries){.name = names[r], .n = N_POINTS, .x = t->draft, .y = t->accepted[r]};
    Plot plot = {.kind = PLOT_LINES,
                 .title = title,
                 .x_label = "p of the draft",
                 .y_label = "probability that a draft is accepted",
                 .series = series,
                 .n_series = N_RULES};
    return plot_write_svg(&plot, path, err);
}

int study_toy(double target, const char *json, const char *prefix, fr_error *err) {
    Toy t;
    int status = prefix ? plot_check(err) : FR_OK;
    if (status) return status;
    compute(&t, target);
    print(&t);
    if (json) status = write_json(&t, json, err);
    return status || !prefix ? status : draw(&t, prefix, err);
}

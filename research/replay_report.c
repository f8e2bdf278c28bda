/* replay_report.c - counting what `forerun replay` measures, by category, and printing it. */
#include "research/replay_report.h"

#include "cli/safe_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting ----------------------------------------------------------------------------------- */

static void add_bins(ReplayBin *to, const ReplayBin *bins) {
    for (int i = 0; i < REPLAY_N_BINS; i++) {
        to[i].n += bins[i].n;
        to[i].n_right += bins[i].n_right;
        to[i].sum_p_accept += bins[i].sum_p_accept;
    }
}

int replay_add(ReplayCategory *c, const ReplayStats *s, const double *step_s, fr_error *err) {
    int64_t n = c->stats.n_steps + s->n_steps;
    if (n > c->capacity) {
        double *times = realloc(c->step_s, (size_t)(2 * n) * sizeof *times);
        if (!times) return error_memory(err, "the times of the steps", (size_t)(2 * n) * sizeof *times);
        c->step_s = times;
        c->capacity = 2 * n;
    }
    if (s->n_steps) memcpy(c->step_s + c->stats.n_steps, step_s, (size_t)s->n_steps * sizeof *step_s);
    c->n_records++;
    c->stats.n_tokens += s->n_tokens;
    c->stats.n_steps = n;
    c->stats.n_drafted += s->n_drafted;
    c->stats.propose_s += s->propose_s;
    c->stats.build_s += s->build_s;
    for (int i = 0; i < REPLAY_N_LENGTHS; i++) c->stats.n_of_length[i] += s->n_of_length[i];
    add_bins(c->stats.bins, s->bins);
    add_bins(c->stats.calibrated, s->calibrated);
    return FR_OK;
}

ReplayCategory *replay_category(ReplayReport *r, const char *name, fr_error *err) {
    for (int i = 0; i < r->n_categories; i++)
        if (strcmp(r->categories[i].name, name) == 0) return &r->categories[i];
    ReplayCategory *c = &r->categories[r->n_categories];
    if (strcmp(name, "all") == 0)
        error_set(err, FR_ERR_FORMAT,
                  "has the category \"all\", which is the name of the sum over all categories; rename it");
    else if (r->n_categories == REPLAY_MAX_CATEGORIES)
        error_set(err, FR_ERR_FORMAT, "is of one category too many: at most %d are supported", REPLAY_MAX_CATEGORIES);
    else if (strlen(name) >= sizeof c->name)
        error_set(err, FR_ERR_FORMAT, "has a category of more than %zu bytes", sizeof c->name - 1);
    else {
        strcpy(c->name, name);
        r->n_categories++;
        return c;
    }
    return NULL;
}

/* ---- printing ----------------------------------------------------------------------------------- */

static double ratio(double a, int64_t b) { return b ? a / (double)b : 0; }

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_us(ReplayCategory *c) {
    int64_t n = c->stats.n_steps;
    if (n == 0) return 0;
    qsort(c->step_s, (size_t)n, sizeof *c->step_s, compare_times);
    return 1e6 * c->step_s[n / 2];
}

static void print_row(ReplayCategory *c, const char *name) {
    const ReplayStats *s = &c->stats;
    SafeText safe;
    printf("%-16s %8lld %8lld %10.3f %10.1f %10.1f %10.1f\n", safe_text(&safe, name), (long long)s->n_tokens,
           (long long)s->n_steps, ratio((double)s->n_tokens, s->n_steps), ratio((double)s->n_drafted, s->n_steps),
           1e6 * ratio(s->propose_s, s->n_steps), median_us(c));
}

static void print_calibration(const ReplayBin *bins, const char *name) {
    printf("\n%-16s %8s %10s %10s\n", name, "nodes", "mean p", "right");
    for (int i = 0; i < REPLAY_N_BINS; i++) {
        const ReplayBin *b = &bins[i];
        if (b->n)
            printf("%.1f to %.1f       %8lld %10.3f %10.3f\n", i / (double)REPLAY_N_BINS,
                   (i + 1) / (double)REPLAY_N_BINS, (long long)b->n, ratio(b->sum_p_accept, b->n),
                   ratio((double)b->n_right, b->n));
    }
}

void replay_print_table(ReplayReport *r, bool calibration) {
    printf("%-16s %8s %8s %10s %10s %10s %10s\n", "category", "tokens", "steps", "acceptance", "drafted", "propose us",
           "median us");
    for (int i = 0; i < r->n_categories; i++) print_row(&r->categories[i], r->categories[i].name);
    print_row(&r->all, "all");
    if (!calibration) return;
    print_calibration(r->all.stats.bins, "own estimate");
    print_calibration(r->all.stats.calibrated, "calibrated");
}

static json_t *calibration_json(const ReplayBin *b) {
    json_t *bins = json_array();
    for (int i = 0; i < REPLAY_N_BINS; i++)
        json_array_append_new(bins, json_pack("{s:I, s:f, s:f}", "nodes", (json_int_t)b[i].n, "mean_p_accept",
                                              ratio(b[i].sum_p_accept, b[i].n), "right",
                                              ratio((double)b[i].n_right, b[i].n)));
    return bins;
}

static json_t *lengths_json(const ReplayStats *s) {
    json_t *lengths = json_array();
    for (int i = 0; i < REPLAY_N_LENGTHS; i++) json_array_append_new(lengths, json_integer(s->n_of_length[i]));
    return lengths;
}

static json_t *category_json(ReplayCategory *c) {
    const ReplayStats *s = &c->stats;
    return json_pack("{s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "records", (json_int_t)c->n_records,
                     "tokens", (json_int_t)s->n_tokens, "steps", (json_int_t)s->n_steps, "steps_by_length",
                     lengths_json(s), "acceptance_length", ratio((double)s->n_tokens, s->n_steps), "drafted_per_step",
                     ratio((double)s->n_drafted, s->n_steps), "propose_us", 1e6 * ratio(s->propose_s, s->n_steps),
                     "propose_us_median", median_us(c), "build_us", 1e6 * ratio(s->build_s, c->n_records),
                     "calibration", calibration_json(s->bins), "calibrated", calibration_json(s->calibrated));
}

int replay_print_json(ReplayReport *r, fr_error *err) {
    json_t *root = json_object();
    int status = json_object_set_new(root, "all", category_json(&r->all));
    for (int i = 0; i < r->n_categories && status == 0; i++)
        status = json_object_set_new(root, r->categories[i].name, category_json(&r->categories[i]));
    char *text = status == 0 ? json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(8)) : NULL;
    json_decref(root);
    if (!text) return error_set(err, FR_ERR_MEMORY, "out of memory while writing JSON");
    puts(text);
    free(text);
    return FR_OK;
}

void replay_report_free(ReplayReport *r) {
    free(r->all.step_s);
    for (int i = 0; i < r->n_categories; i++) free(r->categories[i].step_s);
}

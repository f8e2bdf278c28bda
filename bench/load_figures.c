/* load_figures.c - what bench_serve counts and measures, and its report as text and JSON. */
#include "load_figures.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

void series_add(Series *s, double value) {
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 1024;
        s->values = realloc(s->values, s->capacity * sizeof *s->values);
        if (!s->values) abort();
    }
    s->values[s->n++] = value;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the series. */
static double percentile(Series *s, double part) {
    if (s->n == 0) return NAN;
    qsort(s->values, s->n, sizeof *s->values, by_value);
    size_t i = (size_t)ceil(part * (double)s->n);
    return s->values[i > 0 ? i - 1 : 0];
}

/* Returns the mean of a tenth of the samples. The first fifth is the warm-up and does not count. */
static double tenth(const Series *rss, size_t from, size_t n) {
    double sum = 0;
    for (size_t i = from; i < from + n; i++) sum += rss->values[i];
    return sum / (double)n;
}

static json_t *percentiles(Series *s) {
    return json_pack("{s:f, s:f, s:f, s:f}", "p50_ms", percentile(s, 0.5) * 1e3, "p90_ms", percentile(s, 0.9) * 1e3,
                     "p99_ms", percentile(s, 0.99) * 1e3, "max_ms", percentile(s, 1) * 1e3);
}

static void print_times(const char *name, Series *s) {
    if (s->n)
        printf("%-22s p50 %8.1f  p90 %8.1f  p99 %8.1f  max %8.1f ms  (%zu)\n", name, percentile(s, 0.5) * 1e3,
               percentile(s, 0.9) * 1e3, percentile(s, 0.99) * 1e3, percentile(s, 1) * 1e3, s->n);
}

/* Memory in MiB, after the warm-up and at the end. False: there are too few samples. */
static bool memory_of(const Series *rss, double *early, double *late) {
    size_t n = rss->n / 10;
    if (n == 0) return false;
    *early = tenth(rss, rss->n / 5, n);
    *late = tenth(rss, rss->n - n, n);
    return true;
}

static void print_report(LoadFigures *f, int n_clients) {
    double s = f->end_s - f->begin_s;
    double early, late;
    printf("%d clients, %.1f s: %lld answered (%.1f/s), %lld wrong, %lld failed, %lld sent again; %lld hung up; "
           "%lld malformed refused, %lld not; %lld times status 429\n",
           n_clients, s, (long long)f->n_answered, (double)f->n_answered / s, (long long)f->n_wrong,
           (long long)f->n_failed, (long long)f->n_retried, (long long)f->n_hung_up, (long long)f->n_refused,
           (long long)f->n_not_refused, (long long)f->n_busy);
    printf("%-22s %.1f of complete answers\n", "tokens/s", (double)f->n_tokens / s);
    print_times("time to first token", &f->first_s);
    print_times("between two events", &f->gap_s);
    print_times("  beside long prompts", &f->beside_s);
    print_times("a long prompt", &f->prompt_s);
    print_times("  by itself", &f->by_itself_s);
    print_times("from token to event", &f->added_s);
    print_times("whole answer", &f->whole_s);
    print_times("/health meanwhile", &f->health_s);
    if (memory_of(&f->rss_mib, &early, &late))
        printf("%-22s %.1f MiB after a fifth of the time, %.1f MiB at the end: %+.2f %%\n", "memory (VmRSS)", early,
               late, 100 * (late / early - 1));
}

static void write_json(LoadFigures *f, int n_clients, const char *path) {
    double s = f->end_s - f->begin_s, early, late;
    json_t *j = json_pack("{s:i, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "clients", n_clients, "seconds", s,
                          "answered", (json_int_t)f->n_answered, "wrong", (json_int_t)f->n_wrong, "failed",
                          (json_int_t)f->n_failed, "retried", (json_int_t)f->n_retried, "hung_up",
                          (json_int_t)f->n_hung_up, "malformed_refused", (json_int_t)f->n_refused,
                          "malformed_not_refused", (json_int_t)f->n_not_refused, "status_429", (json_int_t)f->n_busy,
                          "tokens_per_s", (double)f->n_tokens / s);
    json_object_set_new(j, "first_token", percentiles(&f->first_s));
    json_object_set_new(j, "between_events", percentiles(&f->gap_s));
    if (f->added_s.n) json_object_set_new(j, "token_to_event", percentiles(&f->added_s));
    if (f->beside_s.n) json_object_set_new(j, "between_events_beside_prompts", percentiles(&f->beside_s));
    if (f->prompt_s.n) json_object_set_new(j, "long_prompt", percentiles(&f->prompt_s));
    if (f->by_itself_s.n) json_object_set_new(j, "long_prompt_by_itself", percentiles(&f->by_itself_s));
    json_object_set_new(j, "whole_answer", percentiles(&f->whole_s));
    json_object_set_new(j, "health", percentiles(&f->health_s));
    if (memory_of(&f->rss_mib, &early, &late)) json_object_set_new(j, "rss_mib", json_pack("[f, f]", early, late));
    if (json_dump_file(j, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)))
        fprintf(stderr, "bench_serve: %s cannot be written\n", path);
    json_decref(j);
}

void load_report(LoadFigures *f, int n_clients, const char *json) {
    print_report(f, n_clients);
    if (json) write_json(f, n_clients, json);
}

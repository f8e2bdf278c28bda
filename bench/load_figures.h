/* load_figures.h - what bench_serve counts and measures, and its report. */
#ifndef BENCH_LOAD_FIGURES_H
#define BENCH_LOAD_FIGURES_H

#include <stddef.h>
#include <stdint.h>

typedef struct Series {
    double *values; /* [n] */
    size_t n, capacity;
} Series;

typedef struct LoadFigures {
    int64_t n_answered, n_wrong, n_failed, n_retried, n_hung_up, n_refused, n_not_refused, n_busy, n_tokens;
    double begin_s, end_s;
    Series first_s, gap_s, added_s, whole_s, health_s; /* seconds; added_s: from a token to its event */
    /* With --prompt: between two events while a long prompt is read; a long prompt; one without other requests. */
    Series beside_s, prompt_s, by_itself_s;
    Series rss_mib; /* resident memory of the server, at even intervals */
} LoadFigures;

/* Ends the program where memory runs out. */
void series_add(Series *s, double value);
/* Prints the figures, and writes them to the file `json`, unless that is NULL. Sorts the times. */
void load_report(LoadFigures *f, int n_clients, const char *json);

#endif

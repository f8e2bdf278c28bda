/* metrics.c - the state of the server in the text format of Prometheus.
 *
 * Names, labels and meanings are those of vLLM if it has the metric, so that dashboards for vLLM need only another
 * prefix. */
#include "server/api/api.h"

#include "cli/command.h"

#include <inttypes.h>
#include <string.h>

enum { N_TIMES = 20, N_COUNTS = 16 };
/* The upper bounds of the buckets: times in seconds, and numbers of tokens. */
static const double short_times[N_TIMES] = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25,
                                            0.5,   0.75,   1,     2.5,  5,    7.5,  10,   20,   40,  80};
static const double long_times[N_TIMES] = {0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,
                                           10,   15,  20,  30,  40,  50, 60,  120, 240, 480};
static const double token_counts[N_COUNTS] = {1,   2,    5,    10,   20,    50,    100,   200,
                                              500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

static void observe(Histogram *h, const double *bounds, int n_bounds, double value) {
    int i = 0;
    while (i < n_bounds && value > bounds[i]) i++;
    h->counts[i]++;
    h->sum += value;
}

static void observe_time(Histogram *h, bool is_long, double from_s, double to_s) {
    if (from_s <= 0 || to_s <= 0) return;
    if (is_long) observe(h, long_times, N_TIMES, to_s - from_s);
    else observe(h, short_times, N_TIMES, to_s - from_s);
}

void metrics_add_generation(ModelMetrics *m, const GenerationResult *g, bool is_constrained) {
    const fr_stats *s = &g->stats;
    if ((unsigned)g->finish < sizeof m->finished / sizeof *m->finished) m->finished[g->finish]++;
    m->prompt_tokens += s->n_prompt;
    m->cached_tokens += s->n_prompt_shared;
    m->preemptions += s->n_preempted;
    m->constrained += is_constrained;
    m->drafts += s->n_steps - g->drafts.n_undrafted_steps;
    m->draft_tokens += s->drafted;
    m->accepted_tokens += s->accepted;
    for (int d = 1; d <= METRICS_DEPTHS; d++) m->accepted_at[d - 1] += g->drafts.accepted_at[d];
    observe_time(&m->first_token_s, false, g->submitted_s, g->first_token_s);
    observe_time(&m->queue_s, true, g->submitted_s, g->opened_s);
    observe_time(&m->prefill_s, true, g->opened_s, g->first_token_s);
    observe_time(&m->decode_s, true, g->first_token_s, g->ended_s);
    observe_time(&m->whole_s, true, g->submitted_s, g->ended_s);
    observe(&m->n_prompt, token_counts, N_COUNTS, (double)s->n_prompt);
    observe(&m->n_generated, token_counts, N_COUNTS, (double)s->n_generated);
}

void metrics_add_tokens(ModelMetrics *m, int64_t n, double since_last_s) {
    m->generation_tokens += n;
    for (int64_t i = since_last_s < 0; i < n; i++) /* tokens of one step share the time */
        observe(&m->between_tokens_s, short_times, N_TIMES, since_last_s < 0 ? 0 : since_last_s / (double)n);
}

/* ---- the text ---------------------------------------------------------------------------------------- */

typedef struct Writer {
    Buf *out;
    const ServedModel *models;
    int n_models;
    const char *prefix; /* of the names of metrics that vLLM has */
    bool fits;
} Writer;

static void put(Writer *w, bool fits) { w->fits = w->fits && fits; }

static void put_head(Writer *w, const char *name, const char *type, const char *help) {
    put(w, buf_printf(w->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", w->prefix, name, help, w->prefix, name, type));
}

/* Writes `name{model_name="...",more} `, with the name of the model escaped. */
static void put_sample(Writer *w, const char *name, int i_model, const char *more) {
    put(w, buf_printf(w->out, "%s%s{model_name=\"", w->prefix, name));
    for (const char *c = w->models[i_model].name; *c; c++) {
        if (*c == '\n') put(w, buf_append(w->out, "\\n", 2));
        else {
            if (*c == '"' || *c == '\\') put(w, buf_append(w->out, "\\", 1));
            put(w, buf_append(w->out, c, 1));
        }
    }
    put(w, buf_printf(w->out, "\"%s%s} ", *more ? "," : "", more));
}

/* Writes a counter or gauge of all models. `values` points to that of the first model, and the others follow every
 * `stride` bytes. */
static void put_family(Writer *w, const char *name, const char *type, const char *help, const void *values,
                       size_t stride, bool is_int) {
    put_head(w, name, type, help);
    for (int i = 0; i < w->n_models; i++) {
        const char *at = (const char *)values + (size_t)i * stride;
        put_sample(w, name, i, "");
        if (is_int) put(w, buf_printf(w->out, "%d\n", *(const int *)(const void *)at));
        else put(w, buf_printf(w->out, "%" PRId64 "\n", *(const int64_t *)(const void *)at));
    }
}

static void put_histogram(Writer *w, const char *name, const char *help, const Histogram *first, const double *bounds,
                          int n_bounds) {
    char more[48], part[96];
    put_head(w, name, "histogram", help);
    for (int i = 0; i < w->n_models; i++) {
        const Histogram *h = (const Histogram *)(const void *)((const char *)first + (size_t)i * sizeof(ModelMetrics));
        int64_t n = 0;
        snprintf(part, sizeof part, "%s_bucket", name);
        for (int b = 0; b <= n_bounds; b++) {
            n += h->counts[b];
            if (b < n_bounds) snprintf(more, sizeof more, "le=\"%g\"", bounds[b]);
            else snprintf(more, sizeof more, "le=\"+Inf\"");
            put_sample(w, part, i, more);
            put(w, buf_printf(w->out, "%" PRId64 "\n", n));
        }
        snprintf(part, sizeof part, "%s_sum", name);
        put_sample(w, part, i, "");
        put(w, buf_printf(w->out, "%.9g\n", h->sum));
        snprintf(part, sizeof part, "%s_count", name);
        put_sample(w, part, i, "");
        put(w, buf_printf(w->out, "%" PRId64 "\n", n));
    }
}

static void put_finished(Writer *w, const Metrics *m) {
    /* indexed by fr_finish */
    static const char *const reasons[] = {NULL, "stop", "stop", "length", "length", "abort", "error"};
    put_head(w, "request_success_total", "counter", "Requests that ended, by the reason.");
    for (int i = 0; i < w->n_models; i++)
        for (int r = 1; r < 7; r++) {
            bool is_first = strcmp(reasons[r], reasons[r - 1] ? reasons[r - 1] : "") != 0;
            char more[48];
            if (!is_first) continue;
            bool has_pair = r < 6 && strcmp(reasons[r], reasons[r + 1]) == 0;
            int64_t n = m->models[i].finished[r] + (has_pair ? m->models[i].finished[r + 1] : 0);
            snprintf(more, sizeof more, "finished_reason=\"%s\"", reasons[r]);
            put_sample(w, "request_success_total", i, more);
            put(w, buf_printf(w->out, "%" PRId64 "\n", n));
        }
}

static void put_positions(Writer *w, const Metrics *m) {
    static const char name[] = "spec_decode_num_accepted_tokens_per_pos_total";
    put_head(w, name, "counter", "Accepted draft tokens by their position in the draft.");
    for (int i = 0; i < w->n_models; i++)
        for (int d = 0; d < METRICS_DEPTHS; d++) {
            char more[32];
            snprintf(more, sizeof more, "position=\"%d\"", d);
            put_sample(w, name, i, more);
            put(w, buf_printf(w->out, "%" PRId64 "\n", m->models[i].accepted_at[d]));
        }
}

static void put_counters(Writer *w, const ModelMetrics *m) {
    const struct {
        const char *name, *help;
        const int64_t *value;
    } rows[] = {
        {"prompt_tokens_total", "Prompt tokens of requests that ended.", &m->prompt_tokens},
        {"generation_tokens_total", "Generated tokens.", &m->generation_tokens},
        {"prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.", &m->prompt_tokens},
        {"prefix_cache_hits_total", "Prompt tokens that the prefix cache had.", &m->cached_tokens},
        {"num_preemptions_total", "How often a request gave its KV pages back to an older one.", &m->preemptions},
        {"spec_decode_num_drafts_total", "Steps in which tokens were drafted.", &m->drafts},
        {"spec_decode_num_draft_tokens_total", "Drafted tokens.", &m->draft_tokens},
        {"spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.", &m->accepted_tokens},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put_family(w, rows[i].name, "counter", rows[i].help, rows[i].value, sizeof *m, false);
}

static void put_histograms(Writer *w, const ModelMetrics *m) {
    put_histogram(w, "time_to_first_token_seconds", "Time from the request to its first token.", &m->first_token_s,
                  short_times, N_TIMES);
    put_histogram(w, "inter_token_latency_seconds", "Time between tokens; those of one step share it.",
                  &m->between_tokens_s, short_times, N_TIMES);
    put_histogram(w, "request_queue_time_seconds", "Time that requests waited for a place.", &m->queue_s, long_times,
                  N_TIMES);
    put_histogram(w, "request_prefill_time_seconds", "Time from the place to the first token.", &m->prefill_s,
                  long_times, N_TIMES);
    put_histogram(w, "request_decode_time_seconds", "Time from the first token to the last.", &m->decode_s, long_times,
                  N_TIMES);
    put_histogram(w, "e2e_request_latency_seconds", "Time from the request to its last token.", &m->whole_s, long_times,
                  N_TIMES);
    put_histogram(w, "request_prompt_tokens", "Prompt tokens of a request.", &m->n_prompt, token_counts, N_COUNTS);
    put_histogram(w, "request_generation_tokens", "Generated tokens of a request.", &m->n_generated, token_counts,
                  N_COUNTS);
}

/* Writes what the processes of divided models have exchanged. For other models the numbers are 0. */
static void put_ranks(Writer *w, const MetricsGauges *g) {
    put_family(w, "ranks", "gauge", "Processes among which the model is divided; 0: it is whole.", g->n_ranks,
               sizeof *g->n_ranks, false);
    put_family(w, "rank_divided_drafts", "gauge", "Draft models and layers of drafters that are divided, too.",
               g->n_divided_drafts, sizeof *g->n_divided_drafts, false);
    put_family(w, "rank_exchanges_total", "counter", "Exchanges between the processes of a divided model.",
               g->n_exchanges, sizeof *g->n_exchanges, false);
    put_family(w, "rank_exchanged_bytes_total", "counter", "Bytes that all processes contributed to exchanges.",
               g->exchanged_bytes, sizeof *g->exchanged_bytes, false);
    put_head(w, "rank_exchange_seconds_total", "counter",
             "Time of the first process in exchanges, where it also waits for processes that still compute.");
    for (int i = 0; i < w->n_models; i++) {
        put_sample(w, "rank_exchange_seconds_total", i, "");
        put(w, buf_printf(w->out, "%.9g\n", g->exchange_s[i]));
    }
}

static void put_grammars(Writer *w, const GrammarCacheStats *s) {
    put_head(w, "grammar_cache_queries_total", "counter", "Schemas and grammars of requests.");
    put(w, buf_printf(w->out, "forerun_grammar_cache_queries_total %" PRId64 "\n", s->n_queries));
    put_head(w, "grammar_cache_hits_total", "counter", "Those of them that had been compiled already.");
    put(w, buf_printf(w->out, "forerun_grammar_cache_hits_total %" PRId64 "\n", s->n_hits));
    put_head(w, "grammar_cache_entries", "gauge", "Compiled grammars.");
    put(w, buf_printf(w->out, "forerun_grammar_cache_entries %d\n", s->n_grammars));
    put_head(w, "grammar_cache_bytes", "gauge", "Memory of compiled grammars, with their states and masks.");
    put(w, buf_printf(w->out, "forerun_grammar_cache_bytes %zu\n", s->n_bytes));
}

static void put_http(Writer *w, const Metrics *m, int n_connections) {
    put_head(w, "http_responses_total", "counter", "Answers by class of status.");
    for (int i = 2; i < 6; i++)
        put(w, i == 3 || buf_printf(w->out, "forerun_http_responses_total{status=\"%dxx\"} %" PRId64 "\n", i,
                                    m->responses[i]));
    put_head(w, "http_refused_full_total", "counter", "Requests refused because the queue was full.");
    put(w, buf_printf(w->out, "forerun_http_refused_full_total %" PRId64 "\n", m->refused_full));
    put_head(w, "http_hangups_total", "counter",
             "Clients that hung up or read too slowly before their answer was complete.");
    put(w, buf_printf(w->out, "forerun_http_hangups_total %" PRId64 "\n", m->hung_up));
    put_head(w, "http_connections", "gauge", "Open connections.");
    put(w, buf_printf(w->out, "forerun_http_connections %d\n", n_connections));
}

static void put_cache(Writer *w, const MetricsGauges *gauges) {
    char more[160];
    put_head(w, "kv_cache_usage_perc", "gauge", "The part of the KV cache that running requests hold, from 0 to 1.");
    for (int i = 0; i < w->n_models; i++) {
        put_sample(w, "kv_cache_usage_perc", i, "");
        put(w, buf_printf(w->out, "%.6g\n", gauges->kv_usage[i]));
    }
    put_head(w, "cache_config_info", "gauge", "The KV cache: its pages, and the tokens in each.");
    for (int i = 0; i < w->n_models; i++) {
        const ServedModel *m = &w->models[i];
        snprintf(more, sizeof more, "block_size=\"%d\",cache_dtype=\"%s\",num_gpu_blocks=\"%" PRId64 "\"",
                 m->kv_page_size, m->kv_type, m->kv_tokens / m->kv_page_size);
        put_sample(w, "cache_config_info", i, more);
        put(w, buf_printf(w->out, "1\n"));
    }
}

/* Writes the metrics that vLLM has, by the names with the writer's prefix. */
static void put_shared(Writer *w, const Metrics *m, const MetricsGauges *gauges) {
    put_family(w, "num_requests_running", "gauge", "Requests that hold a place in the engine.", gauges->n_running,
               sizeof(int), true);
    put_family(w, "num_requests_waiting", "gauge", "Requests that wait for a place.", gauges->n_waiting, sizeof(int),
               true);
    put_cache(w, gauges);
    put_counters(w, m->models);
    put_finished(w, m);
    put_positions(w, m);
    put_histograms(w, m->models);
}

bool metrics_write(const Metrics *m, const ServedModel *models, int n_models, const MetricsGauges *gauges,
                   MetricsNames names, Buf *out) {
    Writer w = {.out = out, .models = models, .n_models = n_models, .fits = true, .prefix = "vllm:"};
    if (names != METRICS_FORERUN) put_shared(&w, m, gauges);
    w.prefix = "forerun_";
    if (names != METRICS_VLLM) put_shared(&w, m, gauges);
    put_family(&w, "constrained_requests_total", "counter",
               "Requests that ended whose text was constrained by a schema or grammar.", &m->models->constrained,
               sizeof *m->models, false);
    put_ranks(&w, gauges);
    put_grammars(&w, &gauges->grammars);
    put_http(&w, m, gauges->n_connections);
    return w.fits;
}

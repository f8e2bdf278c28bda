/* metrics.h - counters and histograms of the server, in the vocabulary of vLLM with the prefix "forerun_". */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include "server/engine/generation.h"
#include "server/engine/grammar_cache.h"
#include "server/engine/served_model.h"
#include "base/mem.h"

enum { METRICS_MAX_BUCKETS = 20, METRICS_DEPTHS = 16 };

typedef struct Histogram {
    int64_t counts[METRICS_MAX_BUCKETS + 1]; /* the last: above all bounds */
    double sum;
} Histogram;

/* Of one model. All belong to the event loop. */
typedef struct ModelMetrics {
    int64_t finished[7]; /* by fr_finish */
    int64_t prompt_tokens, generation_tokens, cached_tokens, preemptions;
    int64_t constrained; /* requests whose text was held to a grammar */
    int64_t drafts, draft_tokens, accepted_tokens, accepted_at[METRICS_DEPTHS];
    Histogram first_token_s, between_tokens_s, queue_s, prefill_s, decode_s, whole_s, n_prompt, n_generated;
} ModelMetrics;

typedef struct Metrics {
    ModelMetrics models[SERVED_MAX_MODELS];
    int64_t responses[6]; /* by the first digit of the status */
    int64_t refused_full, hung_up;
} Metrics;

/* Bounds of times in seconds, and of numbers of tokens. */
extern const double metrics_short_times[], metrics_long_times[], metrics_token_counts[];
extern const int metrics_n_short_times, metrics_n_long_times, metrics_n_token_counts;

/* A generation has ended. is_constrained: its text was held to a grammar. */
void metrics_add_generation(ModelMetrics *m, const GenerationResult *g, bool is_constrained);
/* n tokens came, this long after those before; below 0: they were the first. */
void metrics_add_tokens(ModelMetrics *m, int64_t n, double since_last_s);

typedef struct MetricsGauges {
    int n_running[SERVED_MAX_MODELS], n_waiting[SERVED_MAX_MODELS], n_connections;
    GrammarCacheStats grammars;
} MetricsGauges;
/* The text format of Prometheus. False: no memory. */
bool metrics_write(const Metrics *m, const ServedModel *models, int n_models, const MetricsGauges *gauges, Buf *out);

#endif

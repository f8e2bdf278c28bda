/* sampler.h - from a row of logits to the target's token, as a pure function.
 *
 * token = argmax over the remaining tokens of (log p + G), G being Gumbel noise keyed by (seed, output position,
 * token id). This is a draw from p that depends only on the seed and the position, so that the text is the same with
 * and without speculation. Temperature 0 is the case G = 0. Ties go to the lowest id.
 *
 * Order: biases and penalties on the logits, then temperature, top-k, top-p, min-p; then the draw.
 */
#ifndef SAMPLING_SAMPLER_H
#define SAMPLING_SAMPLER_H

#include "base/error.h"
#include "base/row_kernels.h"

typedef struct LogitBias {
    int32_t token;
    float bias; /* added to its logit; -inf: the token is never chosen */
} LogitBias;

typedef struct SamplingOptions {
    float temperature;       /* 0: greedy */
    int32_t top_k;           /* keeps the k most probable tokens; 0: all */
    float top_p;             /* keeps the smallest set of most probable tokens whose mass reaches it; 1: all */
    float min_p;             /* removes tokens below min_p times the largest probability; 0: none */
    float repeat_penalty;    /* logits of seen tokens are divided by it if positive, else multiplied; 1: none */
    float frequency_penalty; /* subtracted once per occurrence; 0: none */
    float presence_penalty;  /* subtracted once per seen token; 0: none */
    int32_t penalty_last_n;  /* how many last tokens of the context are penalised; -1: all; 0: none */
    uint64_t seed;
    const LogitBias *bias; /* [n_bias] borrowed; several biases for one token add up */
    int32_t n_bias;
} SamplingOptions;

extern const SamplingOptions SAMPLING_DEFAULT;               /* greedy, without penalties; penalty_last_n is 64 */
int sampling_check(const SamplingOptions *o, fr_error *err); /* all but the tokens of the biases */
/* Returns whether the token is the argmax of logit / temperature + G over the whole row, or of the logits if the
 * temperature is 0: no bias, penalty or filter has a part in it. */
bool sampling_takes_best(const SamplingOptions *o);
void sampling_add_bias(const SamplingOptions *o, float *row, int32_t n_vocab);

typedef struct Sampler Sampler;        /* working memory, for one caller at a time */
Sampler *sampler_new(int32_t n_vocab); /* NULL: no memory */
void sampler_free(Sampler *s);
/* From now on uses these kernels (Device.rows) instead of plain C: faster, with the same results. */
void sampler_use_kernels(Sampler *s, const RowKernels *rows);

/* Returns the target's token at output position `position` (0 for the first generated token), given the row of logits
 * [n_vocab], which stays as it is, and the whole context so far ([n_context], prompt and output). */
int32_t sampler_choose(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context,
                       int64_t n_context, uint64_t position);

/* Writes the distribution that sampler_choose draws from, with the same arguments: dist[n_vocab] sums to 1 and is 0 for
 * every token that a filter removed; temperature 0 puts all of it on one token. Code that draws from q and later
 * divides by it must use one such array for both. */
void sampler_dist(Sampler *s, const SamplingOptions *o, const float *logits, const int32_t *context, int64_t n_context,
                  float *dist);

/* log softmax(logits) as a function of a logit: natural log-probabilities before biases, penalties and filters. All
 * kernels give the same bits. */
typedef struct LogSoftmax {
    double max, log_sum; /* log p = logit - max - log_sum */
} LogSoftmax;
LogSoftmax sampler_log_softmax(const Sampler *s, const float *logits);
double log_softmax_of(const LogSoftmax *l, float logit);

/* ---- filters (sampler_filter.c) -----------------------------------------------------------------------------------
 *
 * Temperature, top-k, top-p and min-p. Only sampler.c uses them. */

typedef struct FilterCandidate {
    float logit;
    int32_t id;
} FilterCandidate;

/* Working memory of the filters. */
typedef struct FilterScratch {
    int32_t n_vocab;
    const RowKernels *rows;
    FilterCandidate *candidates;   /* [n_vocab + 1] the candidates that remain */
    FilterCandidate *near, *spare; /* [n_vocab] tokens near the end of the top-p set, while they are sorted */
    int32_t *ids;                  /* [n_vocab] tokens that can be in the top-p set */
} FilterScratch;

/* What temperature, top-k and top-p leave of a row: a run of candidates, or the whole row (NULL). In both cases
 * min-p removes the tokens below min_logit. */
typedef struct FilterKept {
    const FilterCandidate *candidates;
    int32_t n;
    double min_logit;
} FilterKept;

/* Returns whether a comes before b in falling order of probability: of equal logits the lowest id comes first. */
bool filter_before(FilterCandidate a, FilterCandidate b);
/* Returns the unnormalised probability of a logit. */
double filter_weight(float logit, float max, float temperature);
/* Returns whether one token is certain, whatever the noise. */
bool filter_is_certain(const SamplingOptions *o, float max);
/* Filters a row [n_vocab] whose greatest logit is `max`; the temperature is above 0. The candidates are in
 * s->candidates. */
FilterKept filter_row(const FilterScratch *s, const SamplingOptions *o, const float *row, float max);

#endif

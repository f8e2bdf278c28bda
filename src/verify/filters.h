/* filters.h - temperature, top-k, top-p and min-p over a row of logits; used by sampler.c. */
#ifndef SAMPLING_FILTERS_H
#define SAMPLING_FILTERS_H

#include "base/row_kernels.h"
#include "verify/sampler.h"

#include <math.h>
#include <stdbool.h>

typedef struct Candidate {
    float logit;
    int32_t id;
} Candidate;

/* Whether a comes before b in falling order of probability: of equal logits the lowest id comes first. */
static inline bool filter_before(Candidate a, Candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

typedef struct FilterScratch { /* working memory, owned by the sampler */
    int32_t n_vocab;
    const RowKernels *rows;
    Candidate *candidates;   /* [n_vocab + 1] what remains */
    Candidate *near, *spare; /* [n_vocab] tokens near the end of the top-p set, while they are sorted */
    int32_t *ids;            /* [n_vocab] tokens that can be in the top-p set */
} FilterScratch;

/* What temperature, top-k and top-p leave of a row: a run of candidates, or the whole row (NULL). Of either, min-p
 * removes the tokens below min_logit. */
typedef struct Kept {
    const Candidate *candidates;
    int32_t n;
    double min_logit;
} Kept;

/* Filters a row [n_vocab] whose greatest logit is `max`; the temperature is above 0. The candidates are in
 * s->candidates. */
Kept filter_row(const FilterScratch *s, const SamplingOptions *o, const float *row, float max);

/* The unnormalised probability of a logit. */
static inline double filter_weight(float logit, float max, float temperature) {
    return (double)expf((float)(((double)logit - (double)max) / (double)temperature));
}

/* Whether one token is certain, whatever the noise. */
static inline bool filter_is_certain(const SamplingOptions *o, float max) {
    return o->temperature == 0 || o->top_k == 1 || max == INFINITY;
}

#endif

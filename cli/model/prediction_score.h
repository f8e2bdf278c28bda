/* prediction_score.h - what predictions of tokens are worth: perplexity, and the distance from another model. */
#ifndef APP_PREDICTION_SCORE_H
#define APP_PREDICTION_SCORE_H

#include "base/error.h"

#include <stdint.h>

/* A mean with its standard error. */
typedef struct Mean {
    double sum, squares;
} Mean;

typedef struct PredictionScore {
    int32_t n_vocab;
    int64_t n, n_max;
    Mean nll, base_nll, nll_difference, kl; /* of each prediction, in nats */
    int64_t n_same_top;
    double *kls; /* [n_max]; NULL: there is no base */
} PredictionScore;

/* n_max: predictions that will be compared with a base; 0: there is no base. */
int prediction_score_begin(PredictionScore *s, int32_t n_vocab, int64_t n_max, fr_error *err);
void prediction_score_end(PredictionScore *s);
/* Logits [n_vocab] of the model and of the base (NULL: none), and the token that came. Refuses NaN and infinity. */
int prediction_score_add(PredictionScore *s, const float *logits, const float *base, int32_t token, fr_error *err);
double prediction_score_perplexity(const PredictionScore *s);
void prediction_score_print(PredictionScore *s, int64_t n_windows, int32_t n_ctx);

/* Mean and standard error of n values; and the q-quantile of sorted values. */
double mean_of(Mean m, int64_t n);
double mean_error(Mean m, int64_t n);
double quantile_of(const double *sorted, int64_t n, double q);

#endif

/* text_windows.h - cuts a text into windows of tokens, for imatrix and perplexity, and scores predictions. */
#ifndef CLI_MODEL_TEXT_WINDOWS_H
#define CLI_MODEL_TEXT_WINDOWS_H

#include "base/error.h"
#include "cli/cli.h"

#include <stdint.h>

/* A text as tokens, cut into windows of n_ctx. The rest after the last whole window is not used. If the vocabulary
 * begins texts with BOS, the text begins with it, and the first token of every window is replaced by BOS. */
typedef struct TextWindows {
    int32_t *tokens; /* [n] */
    int64_t n;
    int32_t n_ctx, bos; /* bos -1: none */
    int64_t n_windows;
} TextWindows;

/* Returns the number of tokens in a window: `wanted`; or if that is 0, 512, or n_ctx_train if it is less. */
int32_t text_windows_ctx(int32_t wanted, int32_t n_ctx_train);
/* Reads and tokenizes a file ("-": standard input). max_windows 0: all. Refuses a text that is shorter than one
 * window. */
int text_windows_open(TextWindows *t, const Gguf *g, const char *path, int32_t n_ctx, int64_t max_windows,
                      fr_error *err);
void text_windows_close(TextWindows *t);
/* Token i of a window, after its first one was replaced by BOS. */
int32_t text_windows_token(const TextWindows *t, int64_t window, int32_t i);

/* ---- the score of predictions: perplexity, and the distance from another model ---------------------------- */

/* Sums from which a mean and its standard error are computed. */
typedef struct Mean {
    double sum, squares;
} Mean;

typedef struct PredictionScore {
    int32_t n_vocab;
    int64_t n, n_max;
    Mean nll, base_nll, nll_difference, kl; /* over the predictions, in nats */
    int64_t n_same_top;
    double *kls; /* [n_max]; NULL: there is no base */
} PredictionScore;

/* n_max: the number of predictions that will be compared with a base; 0: there is no base. */
int prediction_score_begin(PredictionScore *s, int32_t n_vocab, int64_t n_max, fr_error *err);
void prediction_score_end(PredictionScore *s);
/* Adds a prediction: logits [n_vocab] of the model and of the base (NULL: none), and the true token. Refuses NaN and
 * infinity. */
int prediction_score_add(PredictionScore *s, const float *logits, const float *base, int32_t token, fr_error *err);
double prediction_score_perplexity(const PredictionScore *s);
void prediction_score_print(PredictionScore *s, int64_t n_windows, int32_t n_ctx);

#endif

/* text_windows.h - a text as windows of tokens, which imatrix and perplexity run a model over. */
#ifndef CLI_MODEL_TEXT_WINDOWS_H
#define CLI_MODEL_TEXT_WINDOWS_H

#include "base/error.h"
#include "cli/cli.h"

#include <stdint.h>

/* A text as tokens, cut into windows of n_ctx. What is left over behind the last whole window is not used. Where the vocabulary
 * begins texts with BOS, the text does, and the first token of each window is BOS instead when it is run. */
typedef struct TextWindows {
    int32_t *tokens; /* [n] */
    int64_t n;
    int32_t n_ctx, bos; /* bos -1: none */
    int64_t n_windows;
} TextWindows;

/* Tokens of a window: what the user wants, or with 0 512, or what the model was trained for if that is less. */
int32_t text_windows_ctx(int32_t wanted, int32_t n_ctx_train);
/* Reads and tokenizes a file ("-": standard input). max_windows 0: all. Refuses a text that is shorter than one window. */
int text_windows_open(TextWindows *t, const Gguf *g, const char *path, int32_t n_ctx, int64_t max_windows,
                      fr_error *err);
void text_windows_close(TextWindows *t);
/* The token at place i of a window, as it is run. */
int32_t text_windows_token(const TextWindows *t, int64_t window, int32_t i);

/* What predictions of tokens are worth: perplexity, and the distance from another model. */

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

#endif

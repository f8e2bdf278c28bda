/* text_windows.h - a text as windows of tokens, which imatrix and perplexity run a model over. */
#ifndef APP_TEXT_WINDOWS_H
#define APP_TEXT_WINDOWS_H

#include "cli/cli.h"

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

#endif

/* text_windows.c - a text as windows of tokens, as perplexity has been measured since llama.cpp: windows of n_ctx tokens
 * that do not overlap, each run by itself from an empty context. */
#include "cli/model/text_windows.h"

#include "cli/cli.h"
#include "text/tokenizer.h"

#include <stdlib.h>

enum { DEFAULT_CTX = 512, MAX_TEXT = 1 << 30 };

int32_t text_windows_ctx(int32_t wanted, int32_t n_ctx_train) {
    int32_t usual = n_ctx_train < DEFAULT_CTX ? n_ctx_train : DEFAULT_CTX;
    return wanted ? wanted : usual < 8 ? 8 : usual;
}

/* Tokens of the whole text; *bos: the token that begins each window, or -1. */
static int tokenize(TextWindows *t, const Gguf *g, const char *path, fr_error *err) {
    Tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t n_text = 0;
    int status = tokenizer_open(&tokenizer, g, err);
    if (!status) status = cli_read_file(path, MAX_TEXT, &text, &n_text, err);
    if (!status) {
        bool adds_bos = tokenizer_adds_bos(tokenizer);
        t->bos = adds_bos ? tokenizer_bos(tokenizer) : -1;
        status = tokenizer_encode(tokenizer, text, n_text, adds_bos ? TOKENIZE_BOS : 0, &t->tokens, &t->n, err);
    }
    free(text);
    tokenizer_close(tokenizer);
    return status;
}

int text_windows_open(TextWindows *t, const Gguf *g, const char *path, int32_t n_ctx, int64_t max_windows,
                      fr_error *err) {
    *t = (TextWindows){.n_ctx = n_ctx, .bos = -1};
    int status = tokenize(t, g, path, err);
    if (!status && t->n < t->n_ctx)
        status = error_set(err, FR_ERR_ARGUMENT,
                           "%s: has %lld token%s, but one window has %d: give a longer text, or a smaller --ctx", path,
                           (long long)t->n, cli_plural(t->n), t->n_ctx);
    if (status) {
        text_windows_close(t);
        return status;
    }
    t->n_windows = t->n / t->n_ctx;
    if (max_windows > 0 && max_windows < t->n_windows) t->n_windows = max_windows;
    return FR_OK;
}

void text_windows_close(TextWindows *t) {
    free(t->tokens);
    *t = (TextWindows){.tokens = NULL};
}

int32_t text_windows_token(const TextWindows *t, int64_t window, int32_t i) {
    return i == 0 && t->bos >= 0 ? t->bos : t->tokens[window * t->n_ctx + i];
}

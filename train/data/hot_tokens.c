/* hot_tokens.c - counts tokens and keeps the most frequent ones: the rows and columns of a token-info table
 * (token_info.h) that is restricted to part of a large vocabulary. */
#include "train/data/hot_tokens.h"

#include "base/mem.h"

#include <stdlib.h>

typedef struct Counted {
    int64_t count;
    int32_t token;
} Counted;

static int more_frequent_first(const void *a, const void *b) {
    const Counted *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int hot_tokens_choose(const Sequences *s, int32_t n_vocab, int32_t n, int32_t **out, fr_error *err) {
    Counted *all = mem_calloc((size_t)n_vocab, sizeof *all);
    *out = mem_calloc((size_t)n, sizeof **out);
    if (!all || !*out) {
        mem_free(all);
        return error_memory(err, "the frequencies of tokens", (size_t)n_vocab * sizeof *all);
    }
    for (int32_t k = 0; k < n_vocab; k++) all[k].token = k;
    for (int64_t i = 0; i < s->n_tokens; i++) {
        int32_t token = sequences_token(s, i);
        if (token < n_vocab) all[token].count++; /* a vocabulary may list more tokens than the model has rows */
    }
    qsort(all, (size_t)n_vocab, sizeof *all, more_frequent_first);
    for (int32_t k = 0; k < n; k++) (*out)[k] = all[k].token;
    qsort(*out, (size_t)n, sizeof **out, ascending);
    mem_free(all);
    return FR_OK;
}

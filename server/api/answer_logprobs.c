/* answer_logprobs.c - sorts tokens into the items that have their text.
 *
 * The reader of an answer holds text back until it knows what it is, so a token waits until an item grows, and then the item
 * gets the tokens at the end of what waits that have as many bytes as it grew by. Tokens before them were white space
 * that the form drops. */
#include "server/api/answer_logprobs.h"

#include <stdlib.h>

void answer_logprobs_free(AnswerLogprobs *l) {
    for (int i = 0; i < l->n_items; i++) token_batch_free(&l->of_item[i]);
    free(l->of_item);
    token_batch_free(&l->pending);
    *l = (AnswerLogprobs){.n_items = 0};
}

bool answer_logprobs_add(AnswerLogprobs *l, const ServedModel *m, const TokenRecord *t, const char *text,
                         const fr_top_logprob *top) {
    size_t n;
    (void)fr_token_piece(m->model, t->token, false, &n);
    return n == 0 || token_batch_append(&l->pending, t, text, top);
}

void answer_logprobs_drop(AnswerLogprobs *l) {
    token_batch_clear(&l->pending);
    l->fresh = (TokenBatch){.n = 0};
}

/* The end of `pending` that has n bytes. */
static TokenBatch last_bytes(const TokenBatch *pending, size_t n) {
    TokenBatch last = *pending;
    size_t n_text = 0;
    for (size_t i = 0; i < last.n; i++) n_text += last.tokens[i].n_text;
    while (last.n > 0 && last.tokens->n_text > 0 && n_text - last.tokens->n_text >= n) {
        n_text -= last.tokens->n_text;
        if (last.top.data) last.top.data += last.tokens->n_top * sizeof(fr_top_logprob);
        last.tokens++;
        last.n--;
    }
    return last;
}

static bool make_items(AnswerLogprobs *l, int n) {
    if (n <= l->n_items) return true;
    TokenBatch *grown = realloc(l->of_item, (size_t)n * sizeof *grown);
    if (!grown) return false;
    l->of_item = grown;
    while (l->n_items < n) l->of_item[l->n_items++] = (TokenBatch){.n = 0};
    return true;
}

bool answer_logprobs_take(AnswerLogprobs *l, int item, size_t n_bytes) {
    l->fresh = last_bytes(&l->pending, n_bytes);
    return make_items(l, item + 1) && token_batch_copy(&l->of_item[item], &l->fresh);
}

const TokenBatch *answer_logprobs_of(const AnswerLogprobs *l, int item) {
    return item < l->n_items && l->of_item[item].n > 0 ? &l->of_item[item] : NULL;
}

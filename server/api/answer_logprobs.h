/* answer_logprobs.h - log-probabilities of the tokens of an answer, told apart by item.
 *
 * An item has those of the tokens whose text is in it. Tokens of marks, control tokens, white space that belongs to the form,
 * and what a stop string cut off have none. */
#ifndef SERVE_ANSWER_LOGPROBS_H
#define SERVE_ANSWER_LOGPROBS_H

#include "server/engine/generation.h"

typedef struct AnswerLogprobs {
    TokenBatch pending;  /* read, and not yet known where they belong */
    TokenBatch fresh;    /* those of the last growth; part of `pending` */
    TokenBatch *of_item; /* [n_items] */
    int n_items;
} AnswerLogprobs;

void answer_logprobs_free(AnswerLogprobs *l);
/* A token whose text is going to be read; text: [t->n_text], top: [t->n_top]. False: no memory. */
bool answer_logprobs_add(AnswerLogprobs *l, const ServedModel *m, const TokenRecord *t, const char *text,
                         const fr_top_logprob *top);
/* An item of text grew by n bytes: the last tokens that have so many are its own. False: no memory. */
bool answer_logprobs_take(AnswerLogprobs *l, int item, size_t n_bytes);
/* What is pending belongs to no item of text. */
void answer_logprobs_drop(AnswerLogprobs *l);
/* NULL: there are none. */
const TokenBatch *answer_logprobs_of(const AnswerLogprobs *l, int item);

#endif

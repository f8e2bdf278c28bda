/* results.h - what a step works out about the tokens that it decided, besides their text: log-probabilities, the
 * hash of the logits, and the embedding of a prompt. */
#ifndef ENGINE_RESULTS_H
#define ENGINE_RESULTS_H

#include "base/error.h"
#include "forerun.h"
#include "verify/sampler.h"

#include <stdbool.h>

typedef struct TokenScore {
    double logprob;       /* NaN: not wanted */
    uint64_t logits_hash; /* of all rows up to this one */
} TokenScore;

/* Refuses biases of unknown tokens, and numbers out of range. */
int check_scores(const fr_request_options *o, int32_t n_vocab, fr_error *err);
/* Copies the biases, and takes memory for the most probable tokens; the tree budget is known. */
int open_scores(fr_request *r, const fr_request_options *o, fr_error *err);
/* Fills r->verdict.scores and r->top_logprobs for the tokens of the verdict. May run beside other requests. */
void score_tokens(fr_request *r, const Sampler *sampler);

/* The mean of the final hidden states over a prompt (fr_request_options.want_embedding). */

typedef struct RequestEmbedding {
    double *sum; /* [n_embd] over the first n positions of the prompt, in their order; NULL: not wanted */
    int64_t n;
} RequestEmbedding;

int request_embedding_begin(fr_request *r, const fr_request_options *o, fr_error *err);
void request_embedding_end(fr_request *r);
/* The hidden state [n_embd] of the prompt's next position. What comes behind the prompt is left out. */
void request_embedding_add(fr_request *r, const float *hidden);

#endif

/* token_scores.h - what a token event says about a token besides its text: its log-probability, the most probable tokens
 * beside it, and the hash of the logits that decided it; and the biases of a request. */
#ifndef ENGINE_TOKEN_SCORES_H
#define ENGINE_TOKEN_SCORES_H

#include "base/error.h"
#include "verify/sampler.h"

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

#endif

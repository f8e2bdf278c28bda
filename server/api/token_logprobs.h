/* token_logprobs.h - log-probabilities of tokens in the forms of the APIs. */
#ifndef SERVE_TOKEN_LOGPROBS_H
#define SERVE_TOKEN_LOGPROBS_H

#include "server/api/api.h"

/* The plan returns log-probabilities, of each token and of the n_top most probable ones. */
void logprobs_want(Plan *plan, int64_t n_top);
/* {"token", "logprob", "bytes", "top_logprobs": [...]} of each token, as OpenAI's chats and llama.cpp have it, within a list.
 * tokens NULL: none. with_ids: each with its "id", as in /completion. */
void logprobs_write_list(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, bool with_ids);
/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of /v1/completions. *offset: characters of the tokens before,
 * which those of these are added to. */
void logprobs_write_columns(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, int64_t *offset);

#endif

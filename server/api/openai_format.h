/* openai_format.h - what the answers of the OpenAI endpoints have in common, and those of llama.cpp borrow. */
#ifndef SERVER_API_OPENAI_FORMAT_H
#define SERVER_API_OPENAI_FORMAT_H

#include "server/api/api.h"
#include "server/http/json_out.h"

/* {"error": {"message": ..., "type": ..., "param": ..., "code": ...}} */
void openai_write_error(JsonOut *out, const ApiError *e);
/* The same as an event, and the end of the stream. */
void openai_stream_error(Buf *out, const ApiError *e);

/* What all answers begin with: {"id": ..., "object": object, ... */
void openai_write_head(JsonOut *out, const ApiCall *call, const char *object);
/* ApiFormat.end_stream: usage, where it was asked for, and "data: [DONE]". */
void openai_end_stream(Buf *out, const ApiCall *call);
/* "stop", "length", ... */
const char *openai_finish_reason(fr_finish finish);
/* "usage": {...}, of all choices together. */
void openai_write_usage(JsonOut *out, const ApiCall *call);
/* Tokens of all choices that are reasoning. */
int64_t openai_count_reasoning(const ApiCall *call);
/* "timings": {...}, as llama.cpp has them, of all choices together. */
void openai_write_timings(JsonOut *out, const ApiCall *call);
/* What OpenAI's API does not have: timings, and the seed. */
void openai_write_warnings(JsonOut *out, const ApiCall *call);
void openai_write_extras(JsonOut *out, const ApiCall *call);
/* "tokens": [ids], where they were asked for. */
void openai_write_tokens(JsonOut *out, const ApiCall *call, const TokenBatch *tokens);
/* The statistics of all choices together. A prompt that several choices share counts once. */
fr_stats openai_sum(const ApiCall *call);

/* "data: " before an event, and the empty line behind it. */
JsonOut sse_begin(Buf *out);
void sse_end(JsonOut *j);

/* Log-probabilities of tokens in the forms of the APIs. */

/* The plan returns log-probabilities, of each token and of the n_top most probable ones. */
void logprobs_want(Plan *plan, int64_t n_top);
/* {"token", "logprob", "bytes", "top_logprobs": [...]} of each token, as OpenAI's chats and llama.cpp have it, within a
 * list. tokens NULL: none. with_ids: each with its "id", as in /completion. */
void logprobs_write_list(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, bool with_ids);
/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of /v1/completions. *offset: characters of the tokens
 * before, which those of these are added to. */
void logprobs_write_columns(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, int64_t *offset);

/* The field "forerun" of requests and of the events of a stream: which drafter proposed what. */

/* "forerun": {"tokens": true, "trees": true} of a request; NULL: absent. */
int token_pieces_read(Plan *plan, const json_t *value, ApiError *error);
/* The key "forerun" of an event with the fresh tokens of a choice; nothing unless they were asked for. */
void token_pieces_write(JsonOut *out, const Choice *c, const TokenBatch *fresh);

#endif

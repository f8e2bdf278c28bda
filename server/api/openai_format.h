/* openai_format.h - the parts of answers that the OpenAI endpoints share, some of which llama.cpp's endpoints have,
 * too. */
#ifndef SERVER_API_OPENAI_FORMAT_H
#define SERVER_API_OPENAI_FORMAT_H

#include "server/api/api.h"
#include "server/http/json_out.h"

/* {"error": {"message": ..., "type": ..., "param": ..., "code": ...}} */
void openai_write_error(JsonOut *out, const ApiError *e);
/* The same as the last event of a stream. */
void openai_stream_error(Buf *out, const ApiError *e);

/* Writes the beginning of each answer: {"id": ..., "object": object, ... */
void openai_write_head(JsonOut *out, const ApiCall *call, const char *object);
/* ApiFormat.end_stream: writes the usage if the client asks for it, and "data: [DONE]". */
void openai_end_stream(Buf *out, const ApiCall *call);
/* "stop", "length", ... */
const char *openai_finish_reason(fr_finish finish);
/* Writes "usage": {...} for all choices together. */
void openai_write_usage(JsonOut *out, const ApiCall *call);
/* Writes the usage into an event of a stream: that so far, or null, if the client asks for usage. */
void openai_write_event_usage(JsonOut *out, const ApiCall *call);
/* Counts the tokens of all choices that are reasoning. */
int64_t openai_count_reasoning(const ApiCall *call);
/* Writes "timings": {...} in llama.cpp's form, for all choices together. */
void openai_write_timings(JsonOut *out, const ApiCall *call);
/* Writes "prompt_progress": {...} in llama.cpp's form, and the timings so far if the client asks for them. */
void openai_write_progress(JsonOut *out, const Choice *c);
/* Writes "warnings": [...] if there are any. */
void openai_write_warnings(JsonOut *out, const ApiCall *call);
/* Writes the timings, the seed and the warnings, which OpenAI's API does not have. */
void openai_write_extras(JsonOut *out, const ApiCall *call);
/* Writes "tokens": [ids] if the client asks for them. */
void openai_write_tokens(JsonOut *out, const ApiCall *call, const TokenBatch *tokens);
/* Ends `prepare` of an endpoint of vLLM that renders: the reply is what a request would generate from, as an object or,
 * for each prompt, in a list. */
int openai_render(ApiCall *call, bool in_list);
/* The same for an endpoint that counts the tokens of the prompt. */
int openai_count_tokens(ApiCall *call);
/* Writes an answer as /completion writes it, with this text (native_completions.c). */
void native_write_answer(JsonOut *out, const ApiCall *call, const Choice *c, const char *text, size_t n);
/* Returns the statistics of all choices together. A prompt that several choices share counts once. */
fr_stats openai_sum(const ApiCall *call);

/* Write "data: " before an event, and the empty line after it. */
JsonOut sse_begin(Buf *out);
void sse_end(JsonOut *j);

/* ---- single tokens (openai_tokens.c) --------------------------------------------------------------------------- */

/* Makes the plan return log-probabilities of each token and of the n_top most probable ones. */
void logprobs_want(Plan *plan, int64_t n_top);
/* Writes {"token", "logprob", "bytes", "top_logprobs": [...]} for each token into a list, in the form of OpenAI's chats
 * and llama.cpp. tokens may be NULL. with_ids: each token has its "id", as in /completion. */
void logprobs_write_list(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, bool with_ids);
/* Writes {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of /v1/completions. *offset is the number of
 * characters of all earlier tokens; those of these tokens are added to it. */
void logprobs_write_columns(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, int64_t *offset);

/* Reads the field "forerun" of a request, such as {"tokens": true, "trees": true}, by which a client asks which drafter
 * proposed what. value may be NULL. */
int token_pieces_read(Plan *plan, const json_t *value, ApiError *error);
/* Writes the key "forerun" of an event with the fresh tokens of a choice, if the client asks for it. */
void token_pieces_write(JsonOut *out, const Choice *c, const TokenBatch *fresh);

#endif

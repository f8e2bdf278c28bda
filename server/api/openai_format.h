/* openai_format.h - what the answers of the OpenAI endpoints have in common, and those of llama.cpp borrow. */
#ifndef SERVE_OPENAI_FORMAT_H
#define SERVE_OPENAI_FORMAT_H

#include "server/api/api.h"

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
void sse_done(Buf *out); /* "data: [DONE]" */

#endif

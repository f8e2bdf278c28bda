/* openai_format.c - errors, usage, timings and events in the form of the OpenAI API.
 *
 * "accepted_prediction_tokens" and "rejected_prediction_tokens" count what all drafters of the request proposed, the
 * client's own `prediction` among them. */
#include "server/api/openai_format.h"

#include "cli/command.h"

#include <string.h>

static const char *error_type(const ApiError *e) {
    if (e->status == 401) return "authentication_error";
    if (e->status == 403) return "permission_error";
    if (e->status == 404) return "not_found_error";
    if (e->status == 429) return "rate_limit_error";
    return e->status >= 500 ? "server_error" : "invalid_request_error";
}

void openai_write_error(JsonOut *out, const ApiError *e) {
    json_out_mark(out, '{');
    json_out_open(out, "error", '{');
    json_out_key_text(out, "message", e->message);
    json_out_key_text(out, "type", error_type(e));
    json_out_key_text(out, "param", e->param[0] ? e->param : NULL);
    json_out_key_text(out, "code", e->code);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

JsonOut sse_begin(Buf *out) {
    bool fits = buf_puts(out, "data: ");
    JsonOut j = json_out_begin(out);
    j.failed = !fits;
    return j;
}

void sse_end(JsonOut *j) { (void)buf_puts(j->to, "\n\n"); }
void sse_done(Buf *out) { (void)buf_puts(out, "data: [DONE]\n\n"); }

void openai_stream_error(Buf *out, const ApiError *e) {
    JsonOut j = sse_begin(out);
    openai_write_error(&j, e);
    sse_end(&j);
}

void openai_write_head(JsonOut *out, const ApiCall *call, const char *object) {
    json_out_mark(out, '{');
    json_out_key_text(out, "id", call->id);
    json_out_key_text(out, "object", object);
    json_out_key_int(out, "created", call->created_s);
    json_out_key_text(out, "model", call->plan.model->name);
    json_out_key_text(out, "system_fingerprint", "forerun-" FORERUN_VERSION);
}

/* Usage comes in an event without choices, for those who asked for it: others may not expect one. */
void openai_end_stream(Buf *out, const ApiCall *call) {
    if (call->plan.wants_usage) {
        JsonOut j = sse_begin(out);
        openai_write_head(&j, call, call->endpoint->format->event_object);
        json_out_open(&j, "choices", '[');
        json_out_mark(&j, ']');
        openai_write_usage(&j, call);
        json_out_mark(&j, '}');
        sse_end(&j);
    }
    sse_done(out);
}

const char *openai_finish_reason(fr_finish finish) {
    return finish == FR_FINISH_LENGTH || finish == FR_FINISH_CONTEXT ? "length" : "stop";
}

fr_stats openai_sum(const ApiCall *call) {
    fr_stats sum = {.struct_size = sizeof sum};
    for (int i = 0; i < call->n_choices; i++) {
        if (!call->choices[i].result) continue;
        const fr_stats *s = &call->choices[i].result->stats;
        if (i % call->plan.n == 0) {
            sum.n_prompt += s->n_prompt;
            sum.n_prompt_shared += s->n_prompt_shared;
        }
        sum.n_generated += s->n_generated;
        sum.drafted += s->drafted;
        sum.accepted += s->accepted;
        sum.n_steps += s->n_steps;
        sum.prefill_s += s->prefill_s;
        sum.decode_s += s->decode_s;
    }
    return sum;
}

int64_t openai_count_reasoning(const ApiCall *call) {
    const ApiFormat *format = call->endpoint->format;
    return format->count_reasoning ? format->count_reasoning(call) : 0;
}

void openai_write_usage(JsonOut *out, const ApiCall *call) {
    fr_stats s = openai_sum(call);
    json_out_open(out, "usage", '{');
    json_out_key_int(out, "prompt_tokens", s.n_prompt);
    json_out_key_int(out, "completion_tokens", s.n_generated);
    json_out_key_int(out, "total_tokens", s.n_prompt + s.n_generated);
    json_out_open(out, "prompt_tokens_details", '{');
    json_out_key_int(out, "cached_tokens", s.n_prompt_shared);
    json_out_mark(out, '}');
    json_out_open(out, "completion_tokens_details", '{');
    json_out_key_int(out, "accepted_prediction_tokens", s.accepted);
    json_out_key_int(out, "rejected_prediction_tokens", s.drafted - s.accepted);
    json_out_key_int(out, "reasoning_tokens", openai_count_reasoning(call));
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

/* Milliseconds in all, for each token, and tokens per second. */
static void write_rates(JsonOut *out, const char *part, int64_t n, double seconds) {
    char key[48];
    snprintf(key, sizeof key, "%s_n", part);
    json_out_key_int(out, key, n);
    snprintf(key, sizeof key, "%s_ms", part);
    json_out_key_real(out, key, seconds * 1e3);
    snprintf(key, sizeof key, "%s_per_token_ms", part);
    json_out_key_real(out, key, n ? seconds * 1e3 / (double)n : 0);
    snprintf(key, sizeof key, "%s_per_second", part);
    json_out_key_real(out, key, seconds > 0 ? (double)n / seconds : 0);
}

void openai_write_timings(JsonOut *out, const ApiCall *call) {
    fr_stats s = openai_sum(call);
    json_out_open(out, "timings", '{');
    json_out_key_int(out, "cache_n", s.n_prompt_shared);
    write_rates(out, "prompt", s.n_prompt - s.n_prompt_shared, s.prefill_s);
    write_rates(out, "predicted", s.n_generated, s.decode_s);
    json_out_key_int(out, "draft_n", s.drafted);
    json_out_key_int(out, "draft_n_accepted", s.accepted);
    json_out_key_int(out, "n_steps", s.n_steps);
    double plain_s = 0;
    for (int i = 0; i < call->n_choices; i++) plain_s += call->choices[i].result->plain_s / call->n_choices;
    json_out_key_real(out, "plain_per_token_ms", plain_s * 1e3);
    json_out_mark(out, '}');
}

/* What was asked for and is not quite so; nothing where all is. */
void openai_write_warnings(JsonOut *out, const ApiCall *call) {
    const char *notice = fr_grammar_notice(cached_grammar(call->plan.grammar));
    if (!*notice && call->plan.n_warnings == 0) return;
    json_out_open(out, "warnings", '[');
    if (*notice) json_out_text(out, notice);
    for (int i = 0; i < call->plan.n_warnings; i++) json_out_text(out, call->plan.warnings[i]);
    json_out_mark(out, ']');
}

void openai_write_extras(JsonOut *out, const ApiCall *call) {
    openai_write_timings(out, call);
    openai_write_warnings(out, call);
    json_out_key(out, "seed");
    json_out_uint(out, call->plan.sampling.seed);
}

void openai_write_tokens(JsonOut *out, const ApiCall *call, const TokenBatch *tokens) {
    if (!call->plan.returns_tokens) return;
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; i < tokens->n; i++) json_out_int(out, tokens->tokens[i].token);
    json_out_mark(out, ']');
}

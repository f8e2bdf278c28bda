/* openai_format.c - errors, usage, timings and events in the form of the OpenAI API.
 *
 * "accepted_prediction_tokens" and "rejected_prediction_tokens" count what all drafters of the request proposed,
 * including the client's own `prediction`. */
#include "cli/command.h"
#include "server/api/openai_format.h"

#include <stdio.h>
#include <string.h>

static const char *error_type(const ApiError *e) {
    if (e->n_ctx) return "exceed_context_size_error"; /* llama.cpp's */
    if (e->status == 401) return "authentication_error";
    if (e->status == 403) return "permission_error";
    if (e->status == 404) return "not_found_error";
    if (e->status == 429) return "rate_limit_error";
    if (e->status == 501) return "not_supported_error";
    return e->status >= 500 ? "server_error" : "invalid_request_error";
}

void openai_write_error(JsonOut *out, const ApiError *e) {
    json_out_mark(out, '{');
    json_out_open(out, "error", '{');
    json_out_key_text(out, "message", e->message);
    json_out_key_text(out, "type", error_type(e));
    json_out_key_text(out, "param", e->param[0] ? e->param : NULL);
    json_out_key_text(out, "code", e->code);
    if (e->n_ctx) json_out_key_int(out, "n_prompt_tokens", e->n_prompt_tokens);
    if (e->n_ctx) json_out_key_int(out, "n_ctx", e->n_ctx);
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
static void sse_done(Buf *out) { (void)buf_puts(out, "data: [DONE]\n\n"); }

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

/* Usage is in an event without choices, which only clients that ask for it get: others may not expect such an event. */
void openai_end_stream(Buf *out, const ApiCall *call) {
    if (call->plan.wants_usage) {
        JsonOut j = sse_begin(out);
        openai_write_head(&j, call, call->endpoint->format->event_object);
        json_out_open(&j, "choices", '[');
        json_out_mark(&j, ']');
        openai_write_usage(&j, call);
        openai_write_timings(&j, call);
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
        const Choice *c = &call->choices[i];
        const fr_stats *s = c->result ? &c->result->stats : &c->stats;
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

int openai_count_tokens(ApiCall *call) {
    int64_t n = 0;
    for (int i = 0; i < call->plan.n_prompts; i++) n += call->plan.prompts[i].n;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_text(&out, "object", "response.input_tokens");
    json_out_key_int(&out, "input_tokens", n);
    json_out_mark(&out, '}');
    call->plan.renders = true;
    return api_end_reply(call, out.failed);
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

void openai_write_event_usage(JsonOut *out, const ApiCall *call) {
    if (call->plan.shows_usage) openai_write_usage(out, call);
    else if (call->plan.wants_usage) json_out_key_null(out, "usage");
}

/* Writes the milliseconds of n tokens, the milliseconds per token, and the tokens per second. */
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

/* Returns the estimated time of a token of plain decoding, from the choices for which something was drafted; 0: there
 * are none, or the costs of forwards are not known. */
static double plain_per_token_s(const ApiCall *call) {
    double plain_s = 0;
    int64_t n = 0;
    for (int i = 0; i < call->n_choices; i++) {
        const GenerationResult *r = call->choices[i].result;
        if (!r || r->stats.plain_s <= 0) continue;
        plain_s += r->stats.plain_s;
        n += r->stats.n_generated;
    }
    return n > 0 ? plain_s / (double)n : 0;
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
    json_out_key_real(out, "plain_per_token_ms", plain_per_token_s(call) * 1e3);
    json_out_mark(out, '}');
}

void openai_write_progress(JsonOut *out, const Choice *c) {
    json_out_open(out, "prompt_progress", '{');
    json_out_key_int(out, "total", c->stats.n_prompt);
    json_out_key_int(out, "cache", c->stats.n_prompt_shared);
    json_out_key_int(out, "processed", c->stats.n_prompt_read);
    json_out_key_real(out, "time_ms", c->stats.prefill_s * 1e3);
    json_out_mark(out, '}');
    if (c->call->plan.shows_timings) openai_write_timings(out, c->call);
}

/* Writes how the answer differs from what the client asked for, if it does. */
void openai_write_warnings(JsonOut *out, const ApiCall *call) {
    const char *notice = fr_grammar_notice(cached_grammar(call->plan.grammar));
    if (!*notice && call->plan.n_warnings == 0) return;
    json_out_open(out, "warnings", '[');
    if (*notice) json_out_text(out, notice);
    for (int i = 0; i < call->plan.n_warnings; i++) json_out_text(out, call->plan.warnings[i]);
    json_out_mark(out, ']');
}

/* Writes "metrics": {"speculative_decoding": {...}} for all choices together. */
static void write_metrics(JsonOut *out, const ApiCall *call) {
    fr_stats s = openai_sum(call);
    int64_t n_drafts = 0, n_offered[METRICS_DEPTHS] = {0}, n_accepted[METRICS_DEPTHS] = {0};
    int n = 0;
    for (int i = 0; i < call->n_choices; i++) {
        const GenerationResult *r = call->choices[i].result;
        if (!r) continue;
        n_drafts += r->stats.n_steps - r->drafts.n_undrafted_steps;
        for (int d = 0; d < METRICS_DEPTHS; d++) {
            n_offered[d] += r->drafts.offered_at[d + 1];
            n_accepted[d] += r->drafts.accepted_at[d + 1];
            if (n_offered[d] > 0 && d >= n) n = d + 1;
        }
    }
    json_out_open(out, "metrics", '{');
    json_out_open(out, "speculative_decoding", '{');
    json_out_key_int(out, "num_drafts", n_drafts);
    json_out_key_int(out, "num_draft_tokens", s.drafted);
    json_out_key_int(out, "num_accepted_tokens", s.accepted);
    json_out_key_real(out, "acceptance_rate", s.drafted ? (double)s.accepted / (double)s.drafted : 0);
    json_out_key_real(out, "mean_acceptance_length", s.n_steps ? (double)s.n_generated / (double)s.n_steps : 0);
    json_out_open(out, "acceptance_rate_per_position", '[');
    for (int d = 0; d < n; d++) json_out_real(out, n_offered[d] ? (double)n_accepted[d] / (double)n_offered[d] : 0);
    json_out_mark(out, ']');
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

void openai_write_extras(JsonOut *out, const ApiCall *call) {
    openai_write_timings(out, call);
    write_metrics(out, call);
    openai_write_warnings(out, call);
    json_out_key(out, "seed");
    json_out_uint(out, call->plan.sampling.seed);
    if (!call->plan.is_verbose) return;
    json_out_key(out, "__verbose"); /* llama.cpp's */
    native_write_answer(out, call, &call->choices[0], call->choices[0].text.data, call->choices[0].text.n);
}

void openai_write_tokens(JsonOut *out, const ApiCall *call, const TokenBatch *tokens) {
    if (!call->plan.returns_tokens) return;
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; i < tokens->n; i++) json_out_int(out, tokens->tokens[i].token);
    json_out_mark(out, ']');
}

static void write_rendered(JsonOut *out, const ApiCall *call, const Prompt *prompt) {
    const Plan *plan = &call->plan;
    json_out_mark(out, '{');
    json_out_key_text(out, "request_id", call->id);
    json_out_key_text(out, "model", plan->model->name);
    json_out_open(out, "token_ids", '[');
    for (int64_t i = 0; i < prompt->n; i++) json_out_int(out, prompt->tokens[i]);
    json_out_mark(out, ']');
    json_out_open(out, "sampling_params", '{');
    json_out_key_int(out, "n", plan->n);
    json_out_key_real(out, "temperature", (double)plan->sampling.temperature);
    json_out_key_real(out, "top_p", (double)plan->sampling.top_p);
    json_out_key_int(out, "top_k", plan->sampling.top_k);
    json_out_key_real(out, "min_p", (double)plan->sampling.min_p);
    if (plan->max_tokens) json_out_key_int(out, "max_tokens", plan->max_tokens);
    json_out_mark(out, '}');
    json_out_key_bool(out, "stream", plan->streams);
    json_out_mark(out, '}');
}

int openai_render(ApiCall *call, bool in_list) {
    JsonOut out = json_out_begin(&call->reply);
    if (in_list) json_out_mark(&out, '[');
    for (int i = 0; i < (in_list ? call->plan.n_prompts : 1); i++) write_rendered(&out, call, &call->plan.prompts[i]);
    if (in_list) json_out_mark(&out, ']');
    call->plan.renders = true;
    return api_end_reply(call, out.failed);
}

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

/* ---- log-probabilities -----------------------------------------------------------------------------------------
 *
 * Log-probabilities are those of the model's own distribution, before sampling options. They are written with 17
 * digits, so that a client reads the double that the engine computed. The text of a token need not be whole characters:
 * "bytes" has it exactly, and "token" has U+FFFD in place of incomplete characters. A control token has its name as
 * "token", and no bytes. */

void logprobs_want(Plan *plan, int64_t n_top) {
    plan->wants_logprobs = true;
    plan->n_top_logprobs = (int)n_top;
}

/* Returns the name of a token. */
static const char *name_of(const ServedModel *m, int32_t token, size_t *n) {
    return fr_token_piece(m->model, token, true, n);
}

static const fr_top_logprob *top_of(const TokenBatch *tokens) {
    return (const fr_top_logprob *)(const void *)tokens->top.data;
}

/* ---- one object for each token ----------------------------------------------------------------------------- */

static void write_bytes(JsonOut *out, const ServedModel *m, int32_t token, size_t n_skip) {
    size_t n;
    const char *bytes = fr_token_piece(m->model, token, false, &n);
    if (n_skip > n) n_skip = n;
    bytes += n_skip;
    n -= n_skip;
    json_out_key(out, "bytes");
    if (n == 0) {
        json_out_null(out);
        return;
    }
    json_out_mark(out, '[');
    for (size_t i = 0; i < n; i++) json_out_int(out, (unsigned char)bytes[i]);
    json_out_mark(out, ']');
}

/* Begins the object of a token, which the caller closes. The first n_skip bytes of the token are left out. */
static void open_token(JsonOut *out, const ServedModel *m, int32_t token, double logprob, size_t n_skip, bool with_id) {
    size_t n;
    const char *name = name_of(m, token, &n);
    if (n_skip > n) n_skip = n;
    name += n_skip;
    n -= n_skip;
    json_out_mark(out, '{');
    if (with_id) json_out_key_int(out, "id", token);
    json_out_key(out, "token");
    json_out_bytes(out, name, n);
    json_out_key(out, "logprob");
    json_out_exact(out, logprob);
    write_bytes(out, m, token, n_skip);
}

void logprobs_write_list(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, bool with_ids) {
    const fr_top_logprob *top = tokens ? top_of(tokens) : NULL;
    for (size_t i = 0; tokens && i < tokens->n; i++) {
        const TokenRecord *t = &tokens->tokens[i];
        open_token(out, m, t->token, t->logprob, t->n_skip, with_ids);
        json_out_open(out, "top_logprobs", '[');
        for (uint32_t k = 0; k < t->n_top; k++, top++) {
            open_token(out, m, top->token, top->logprob, 0, with_ids);
            json_out_mark(out, '}');
        }
        json_out_mark(out, ']');
        json_out_mark(out, '}');
    }
}

/* ---- columns ----------------------------------------------------------------------------------------------- */

typedef struct Name {
    char text[4 * 1024 + 16];
    size_t n;
} Name;

/* Finds the name of a token. OpenAI's API writes "bytes:\xe2\x82" if the bytes are not UTF-8, so that all names
 * differ. */
static void find_name(const ServedModel *m, int32_t token, Name *name) {
    size_t n;
    const char *bytes = name_of(m, token, &n);
    if (n > 1024) n = 1024;
    name->n = n;
    memcpy(name->text, bytes, n);
    if (json_out_is_text(bytes, n)) return;
    name->n = (size_t)snprintf(name->text, sizeof name->text, "bytes:");
    for (size_t i = 0; i < n; i++, name->n += 4)
        snprintf(name->text + name->n, sizeof name->text - name->n, "\\x%02x", (unsigned char)bytes[i]);
}

static void write_name(JsonOut *out, const ServedModel *m, int32_t token) {
    Name name;
    find_name(m, token, &name);
    json_out_bytes(out, name.text, name.n);
}

static void write_member(JsonOut *out, const ServedModel *m, int32_t token, double logprob) {
    Name name;
    find_name(m, token, &name);
    json_out_key_bytes(out, name.text, name.n);
    json_out_exact(out, logprob);
}

static bool have_one_name(const ServedModel *m, int32_t a, int32_t b) {
    size_t n_a, n_b;
    const char *name_a = name_of(m, a, &n_a), *name_b = name_of(m, b, &n_b);
    return n_a == n_b && memcmp(name_a, name_b, n_a) == 0;
}

/* Writes the most probable tokens and, as in OpenAI's API, the chosen token if it is not among them. Each name is
 * written once, with its greatest log-probability. */
static void write_map(JsonOut *out, const ServedModel *m, const TokenRecord *t, const fr_top_logprob *top) {
    bool has_chosen = false;
    json_out_mark(out, '{');
    for (uint32_t i = 0; i < t->n_top; i++) {
        bool is_new = true;
        for (uint32_t k = 0; k < i && is_new; k++) is_new = !have_one_name(m, top[k].token, top[i].token);
        has_chosen = has_chosen || have_one_name(m, top[i].token, t->token);
        if (is_new) write_member(out, m, top[i].token, top[i].logprob);
    }
    if (!has_chosen) write_member(out, m, t->token, t->logprob);
    json_out_mark(out, '}');
}

/* Returns how many characters begin in the bytes of a token. */
static int64_t count_characters(const ServedModel *m, int32_t token) {
    size_t n;
    const char *bytes = fr_token_piece(m->model, token, false, &n);
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return count;
}

void logprobs_write_columns(JsonOut *out, const ServedModel *m, const TokenBatch *tokens, int64_t *offset) {
    json_out_mark(out, '{');
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; i < tokens->n; i++) write_name(out, m, tokens->tokens[i].token);
    json_out_mark(out, ']');
    json_out_open(out, "token_logprobs", '[');
    for (size_t i = 0; i < tokens->n; i++) json_out_exact(out, tokens->tokens[i].logprob);
    json_out_mark(out, ']');
    json_out_open(out, "top_logprobs", '[');
    const fr_top_logprob *top = top_of(tokens);
    for (size_t i = 0; i < tokens->n; i++) {
        write_map(out, m, &tokens->tokens[i], top);
        if (top) top += tokens->tokens[i].n_top;
    }
    json_out_mark(out, ']');
    json_out_open(out, "text_offset", '[');
    for (size_t i = 0; i < tokens->n; i++) {
        json_out_int(out, *offset);
        *offset += count_characters(m, tokens->tokens[i].token);
    }
    json_out_mark(out, ']');
    json_out_mark(out, '}');
}

/* ---- the field "forerun" of streams: which drafter proposed each token, and what else was proposed -----------
 *
 *     "forerun": {"tokens": [{"text": " the", "source": "suffix", "ms": 31.2}, {"text": " cat", "source": null, ...}],
 *                 "steps": [{"n": 2, "tree": [{"parent": -1, "text": "sat", "p": 1, "source": null, "accepted": true},
 *                                             ...]}]}
 *
 * An event has the tokens and the steps that ended since the event before. A step comes after its n tokens, perhaps in
 * a later event. Steps are in the order of the text, so a reader that counts tokens knows which of them each step
 * added. If the source of a token is null, it is the target's own. "ms" is the time from the first byte of the request
 * until the engine chose the token; the rest of the time until the event arrives is what the server adds
 * (bench/bench_serve.c). */

int token_pieces_read(Plan *plan, const json_t *value, ApiError *error) {
    const char *name;
    json_t *wanted;
    if (!value) return 0;
    if (!json_is_object(value)) return api_refuse(error, 400, "invalid_type", "forerun", "'forerun' must be an object");
    json_object_foreach((json_t *)(uintptr_t)value, name, wanted) {
        bool *to = strcmp(name, "tokens") == 0  ? &plan->shows_sources
                   : strcmp(name, "trees") == 0 ? &plan->shows_trees
                                                : NULL;
        if (!to || !json_is_boolean(wanted))
            return api_refuse(error, 400, "unsupported_parameter", "forerun",
                              "'forerun.%.40s' is not supported, or has a value of the wrong type", name);
        *to = json_is_true(wanted);
    }
    if (plan->shows_trees) plan->shows_sources = true;
    if (plan->shows_sources && !plan->streams)
        return api_refuse(error, 400, "invalid_value", "forerun", "'forerun' needs 'stream': true");
    return 0;
}

static const char *source_name(const Choice *c, int32_t source) {
    const int n = sizeof c->sources.names / sizeof *c->sources.names;
    return source >= 0 && source < n && c->sources.names[source][0] ? c->sources.names[source] : NULL;
}

static void write_token_text(JsonOut *out, const ServedModel *m, int32_t token) {
    size_t n;
    const char *text = fr_token_piece(m->model, token, false, &n);
    json_out_key(out, "text");
    json_out_bytes(out, text, n);
}

static void write_tree(JsonOut *out, const Choice *c, const StepNode *nodes, int32_t n) {
    json_out_open(out, "tree", '[');
    for (int32_t i = 0; i < n; i++) {
        const fr_tree_node *node = &nodes[i].node;
        json_out_mark(out, '{');
        json_out_key_int(out, "parent", node->parent);
        write_token_text(out, c->call->plan.model, node->token);
        json_out_key_real(out, "p", (double)node->p_accept);
        json_out_key_text(out, "source", source_name(c, node->source));
        json_out_key_bool(out, "accepted", i == 0 || nodes[i].is_accepted);
        json_out_mark(out, '}');
    }
    json_out_mark(out, ']');
}

static void write_steps(JsonOut *out, const Choice *c, const Buf *steps) {
    json_out_open(out, "steps", '[');
    for (size_t at = 0; at < steps->n;) {
        StepRecord record;
        StepNode nodes[FR_TREE_BUDGET_MAX + 1];
        memcpy(&record, steps->data + at, sizeof record);
        at += sizeof record;
        memcpy(nodes, steps->data + at, (size_t)record.n_nodes * sizeof *nodes);
        at += (size_t)record.n_nodes * sizeof *nodes;
        json_out_mark(out, '{');
        json_out_key_int(out, "n", record.n_tokens);
        write_tree(out, c, nodes, record.n_nodes);
        json_out_mark(out, '}');
    }
    json_out_mark(out, ']');
}

void token_pieces_write(JsonOut *out, const Choice *c, const TokenBatch *fresh) {
    const Plan *plan = &c->call->plan;
    size_t at = 0;
    if (!plan->shows_sources) return;
    json_out_open(out, "forerun", '{');
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; i < fresh->n; i++) {
        const TokenRecord *t = &fresh->tokens[i];
        json_out_mark(out, '{');
        json_out_key(out, "text");
        json_out_bytes(out, t->n_text ? fresh->text.data + at : "", t->n_text);
        json_out_key_text(out, "source", source_name(c, t->source));
        json_out_key_real(out, "ms", (t->made_s - c->call->started_s) * 1e3);
        json_out_mark(out, '}');
        at += t->n_text;
    }
    json_out_mark(out, ']');
    if (plan->shows_trees) write_steps(out, c, &fresh->steps);
    json_out_mark(out, '}');
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

/* text_completions.c - texts after raw prompts, several at once: POST /v1/completions. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct TextFields {
    PlanFields plan;
    const json_t *prompt;
    bool echo, adds_special;
    const json_t *logprobs;
} TextFields;

#define T(kind, field, ...) FIELD(TextFields, kind, field, __VA_ARGS__)
static const Field text_fields[] = {
    {.name = "prompt", T(ANY, prompt)},
    {.name = "echo", T(BOOL, echo)},
    {.name = "add_special_tokens", T(BOOL, adds_special)}, /* vLLM's: a text begins with BOS */
    {.name = "logprobs", T(ANY, logprobs)},
    {.name = "max_tokens", T(INT, plan.max_tokens, .min = 1, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = "reasoning_format", .kind = FIELD_IGNORED}, /* a text has neither reasoning nor calls */
    {.name = "parse_tool_calls", .kind = FIELD_IGNORED},
    {.name = "reasoning_effort", .kind = FIELD_NOTED},
    {.name = "tool_choice", .kind = FIELD_NEUTRAL, .neutral = "auto none"},
    {.name = "add_generation_prompt", .kind = FIELD_NEUTRAL, .min = 0, .max = 1},
    {.name = NULL},
};
static const Field *const tables[] = {plan_fields, text_fields, plan_other_fields, NULL};

/* Allocates the counts of the characters of each choice so far. */
static int open_offsets(ApiCall *call) {
    call->own = calloc((size_t)(call->plan.n_prompts * call->plan.n), sizeof(int64_t));
    call->free_own = free;
    return call->own ? 0 : api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
}

static int read_logprobs(ApiCall *call, const TextFields *f) {
    json_int_t n = json_integer_value(f->logprobs);
    if (!f->logprobs || json_is_false(f->logprobs)) return 0;
    if (!json_is_integer(f->logprobs) || n < 0 || n > FR_MAX_TOP_LOGPROBS)
        return api_refuse(&call->error, 400, "invalid_value", "logprobs",
                          "'logprobs' must be an integer from 0 to %d: how many tokens to show at each place",
                          FR_MAX_TOP_LOGPROBS);
    if (f->echo)
        return api_refuse(&call->error, 400, "unsupported_parameter", "logprobs",
                          "'logprobs' are not supported together with 'echo': those of the prompt are not computed");
    logprobs_want(&call->plan, n);
    return open_offsets(call);
}

static int prepare(ApiCall *call, const json_t *body) {
    TextFields f = {.adds_special = true};
    plan_fields_default(&f.plan);
    f.plan.max_tokens = 16; /* the default of OpenAI's API */
    int status = fields_read(tables, body, &f, call);
    unsigned flags = FR_TOKENIZE_SPECIAL | (f.adds_special ? FR_TOKENIZE_PROMPT : 0);
    if (!status) status = plan_begin(&call->plan, call->service, &f.plan, f.plan.max_tokens, &call->error);
    if (!status) status = plan_add_prompts(&call->plan, f.prompt, "prompt", f.echo, flags, &call->error);
    if (!status) status = read_logprobs(call, &f);
    api_call_name(call, "cmpl-");
    return status;
}

static void write_logprobs(JsonOut *out, const ApiCall *call, int index, const TokenBatch *tokens) {
    int64_t *offsets = call->own;
    json_out_key(out, "logprobs");
    if (tokens && offsets) logprobs_write_columns(out, call->plan.model, tokens, &offsets[index]);
    else json_out_null(out);
}

/* Writes a choice with some text. finish is NULL if the choice goes on. */
static void write_choice(JsonOut *out, const ApiCall *call, int index, const char *before, const char *text, size_t n,
                         const TokenBatch *tokens, const char *finish) {
    Buf all = {.max_bytes = 128 << 20};
    json_out_mark(out, '{');
    json_out_key_int(out, "index", index);
    json_out_key(out, "text");
    if (before && !(buf_append(&all, before, strlen(before)) && buf_append(&all, text, n))) out->failed = true;
    if (before) json_out_bytes(out, all.data, all.n);
    else json_out_bytes(out, text, n);
    write_logprobs(out, call, index, tokens);
    json_out_key_text(out, "finish_reason", finish);
    if (tokens) openai_write_tokens(out, call, tokens);
    json_out_mark(out, '}');
    buf_free(&all);
}

/* Returns the prompt of a choice, if the client asks to echo it; NULL otherwise. */
static const char *echoed(const ApiCall *call, int index) { return call->plan.prompts[index / call->plan.n].text; }

static void write_answer(JsonOut *out, const ApiCall *call) {
    openai_write_head(out, call, "text_completion");
    json_out_open(out, "choices", '[');
    for (int i = 0; i < call->n_choices; i++) {
        const Choice *c = &call->choices[i];
        write_choice(out, call, i, echoed(call, i), c->text.data, c->text.n, &c->tokens,
                     openai_finish_reason(choice_finish(c)));
    }
    json_out_mark(out, ']');
    openai_write_usage(out, call);
    openai_write_extras(out, call);
    json_out_mark(out, '}');
}

static void stream_piece(Buf *out, const ApiCall *call, int index, const char *text, size_t n, const TokenBatch *tokens,
                         const char *finish) {
    JsonOut j = sse_begin(out);
    openai_write_head(&j, call, "text_completion");
    json_out_open(&j, "choices", '[');
    write_choice(&j, call, index, NULL, text, n, tokens, finish);
    json_out_mark(&j, ']');
    openai_write_event_usage(&j, call);
    if (finish && call->n_running == 0) openai_write_extras(&j, call);
    else if (!finish && call->plan.shows_timings) openai_write_timings(&j, call);
    json_out_mark(&j, '}');
    sse_end(&j);
}

static void begin_stream(Buf *out, const ApiCall *call) {
    for (int i = 0; i < call->n_choices && echoed(call, i); i++)
        stream_piece(out, call, i, echoed(call, i), strlen(echoed(call, i)), NULL, NULL);
}

/* Each token is an event of its own, although a step may add several: benchmarks count events. */
static void stream_text(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    TokenCursor at = {.i = 0};
    for (TokenBatch one; token_batch_next(fresh, &at, &one);)
        if (one.text.n > 0 || call->plan.returns_tokens || call->plan.wants_logprobs)
            stream_piece(out, call, c->index, one.text.data ? one.text.data : "", one.text.n, &one, NULL);
}

static void end_choice(Buf *out, const ApiCall *call, const Choice *c) {
    stream_piece(out, call, c->index, "", 0, NULL, openai_finish_reason(choice_finish(c)));
}

static const ApiFormat format = {
    .write_error = openai_write_error,
    .write_answer = write_answer,
    .begin_stream = begin_stream,
    .stream_text = stream_text,
    .end_choice = end_choice,
    .end_stream = openai_end_stream,
    .event_object = "text_completion",
    .stream_error = openai_stream_error,
};

static int prepare_render(ApiCall *call, const json_t *body) {
    return prepare(call, body) ? -1 : openai_render(call, true);
}

const Endpoint text_completions_endpoints[] = {
    {.method = "POST", .path = "/v1/completions", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/v1/completions/render", .format = &format, .prepare = prepare_render},
    {.path = NULL},
};

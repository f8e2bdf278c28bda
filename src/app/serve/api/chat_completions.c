/* chat_completions.c - POST /v1/chat/completions. */
#include "app/serve/api/chat_messages.h"
#include "app/serve/api/openai_format.h"
#include "app/serve/api/token_pieces.h"

#include <string.h>

typedef struct ChatFields {
    PlanFields plan;
    ChatMessages chat;
} ChatFields;

#define C(kind, field, ...) FIELD(ChatFields, kind, field, __VA_ARGS__)
static const Field chat_fields[] = {
    {.name = "messages", C(ANY, chat.messages)},
    {.name = "chat_template_kwargs", C(ANY, chat.variables)},
    {.name = "add_generation_prompt", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "continue_final_message", .kind = FIELD_NEUTRAL, .min = 0},
    {.name = "max_tokens", C(INT, plan.max_tokens, .min = 1, .max = INT32_MAX)},
    {.name = "max_completion_tokens", C(INT, plan.max_completion_tokens, .min = 1, .max = INT32_MAX)},
    {.name = "modalities", C(ANY, chat.modalities)},
    {.name = "response_format", C(ANY, chat.response_format)},
    {.name = "tool_choice", C(ANY, chat.tool_choice)},
    {.name = "reasoning_effort", C(TEXT, chat.reasoning_effort)},
    {.name = NULL},
};
static const Field *const tables[] = {plan_fields, chat_fields, plan_ignored_fields, plan_neutral_fields, NULL};

static int prepare(ApiCall *call, const json_t *body) {
    ChatFields f = {.chat.messages = NULL};
    plan_fields_default(&f.plan);
    int status = fields_read(tables, body, &f, &call->error);
    int64_t most = f.plan.max_completion_tokens ? f.plan.max_completion_tokens : f.plan.max_tokens;
    if (!status) status = plan_begin(&call->plan, call->service, &f.plan, most, &call->error);
    if (!status) status = chat_messages_add(&call->plan, &f.chat, &call->error);
    api_call_name(call, "chatcmpl-");
    return status;
}

/* ---- answers --------------------------------------------------------------------------------------------- */

static void write_head(JsonOut *out, const ApiCall *call, const char *object) {
    json_out_mark(out, '{');
    json_out_key_text(out, "id", call->id);
    json_out_key_text(out, "object", object);
    json_out_key_int(out, "created", call->created_s);
    json_out_key_text(out, "model", call->plan.model->name);
    json_out_key_text(out, "system_fingerprint", "forerun-" FORERUN_VERSION);
}

static void write_choice(JsonOut *out, const ApiCall *call, const Choice *c) {
    json_out_mark(out, '{');
    json_out_key_int(out, "index", c->index);
    json_out_open(out, "message", '{');
    json_out_key_text(out, "role", "assistant");
    json_out_key(out, "content");
    json_out_bytes(out, c->text.data, c->text.n);
    json_out_key_null(out, "refusal");
    json_out_mark(out, '}');
    json_out_key_null(out, "logprobs");
    json_out_key_text(out, "finish_reason", openai_finish_reason(c->finish));
    openai_write_tokens(out, call, &c->tokens);
    json_out_mark(out, '}');
}

static void write_answer(JsonOut *out, const ApiCall *call) {
    write_head(out, call, "chat.completion");
    json_out_open(out, "choices", '[');
    for (int i = 0; i < call->n_choices; i++) write_choice(out, call, &call->choices[i]);
    json_out_mark(out, ']');
    openai_write_usage(out, call);
    openai_write_extras(out, call);
    json_out_mark(out, '}');
}

/* ---- events ---------------------------------------------------------------------------------------------- */

/* An event up to its "delta": {, and from there to its end. finish NULL: not the last of its choice. */
static JsonOut begin_event(Buf *out, const ApiCall *call, int index) {
    JsonOut j = sse_begin(out);
    write_head(&j, call, "chat.completion.chunk");
    json_out_open(&j, "choices", '[');
    json_out_mark(&j, '{');
    json_out_key_int(&j, "index", index);
    json_out_open(&j, "delta", '{');
    return j;
}

static void end_event(JsonOut *j, const ApiCall *call, const Choice *c, const TokenBatch *fresh, const char *finish) {
    json_out_mark(j, '}');
    json_out_key_null(j, "logprobs");
    json_out_key_text(j, "finish_reason", finish);
    if (fresh) openai_write_tokens(j, call, fresh);
    if (fresh) token_pieces_write(j, c, fresh);
    json_out_mark(j, '}');
    json_out_mark(j, ']');
    if (call->plan.wants_usage) json_out_key_null(j, "usage");
    if (finish && call->n_running == 0) openai_write_extras(j, call);
    json_out_mark(j, '}');
    sse_end(j);
}

static void begin_stream(Buf *out, const ApiCall *call) {
    for (int i = 0; i < call->n_choices; i++) {
        JsonOut j = begin_event(out, call, i);
        json_out_key_text(&j, "role", "assistant");
        json_out_key_text(&j, "content", "");
        end_event(&j, call, NULL, NULL, NULL);
    }
}

static void stream_text(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    if (fresh->text.n == 0 && !call->plan.returns_tokens && !call->plan.shows_sources) return;
    JsonOut j = begin_event(out, call, c->index);
    json_out_key(&j, "content");
    json_out_bytes(&j, fresh->text.data ? fresh->text.data : "", fresh->text.n);
    end_event(&j, call, c, fresh, NULL);
}

static void end_choice(Buf *out, const ApiCall *call, const Choice *c) {
    JsonOut j = begin_event(out, call, c->index);
    end_event(&j, call, c, NULL, openai_finish_reason(c->finish));
}

/* Usage comes in an event without choices, for those who asked for it: others may not expect one. */
static void end_stream(Buf *out, const ApiCall *call) {
    if (call->plan.wants_usage) {
        JsonOut j = sse_begin(out);
        write_head(&j, call, "chat.completion.chunk");
        json_out_open(&j, "choices", '[');
        json_out_mark(&j, ']');
        openai_write_usage(&j, call);
        json_out_mark(&j, '}');
        sse_end(&j);
    }
    sse_done(out);
}

static const ApiFormat format = {
    .write_error = openai_write_error,
    .write_answer = write_answer,
    .begin_stream = begin_stream,
    .stream_text = stream_text,
    .end_choice = end_choice,
    .end_stream = end_stream,
    .stream_error = openai_stream_error,
};

const Endpoint chat_completions_endpoints[] = {
    {.method = "POST", .path = "/v1/chat/completions", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/chat/completions", .format = &format, .prepare = prepare},
    {.path = NULL},
};

/* chat_completions.c - POST /v1/chat/completions. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"
#include "server/api/token_logprobs.h"
#include "server/api/token_pieces.h"

#include <string.h>

typedef struct ChatFields {
    PlanFields plan;
    ChatMessages chat;
    bool logprobs, parallel_calls;
    int64_t top_logprobs;
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
    {.name = "tools", C(ANY, chat.tools)},
    {.name = "tool_choice", C(ANY, chat.tool_choice)},
    {.name = "parallel_tool_calls", C(BOOL, parallel_calls)},
    {.name = "logprobs", C(BOOL, logprobs)},
    {.name = "top_logprobs", C(INT, top_logprobs, .min = 0, .max = FR_MAX_TOP_LOGPROBS)},
    {.name = "reasoning_effort", C(TEXT, chat.reasoning_effort)},
    {.name = NULL},
};
static const Field *const tables[] = {plan_fields, chat_fields, plan_ignored_fields, plan_neutral_fields, NULL};

static int read_logprobs(Plan *plan, const ChatFields *f, ApiError *error) {
    if (f->top_logprobs && !f->logprobs)
        return api_refuse(error, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (f->logprobs) logprobs_want(plan, f->top_logprobs);
    return 0;
}

static int prepare(ApiCall *call, const json_t *body) {
    ChatFields f = {.parallel_calls = true};
    plan_fields_default(&f.plan);
    int status = fields_read(tables, body, &f, &call->error);
    int64_t most = f.plan.max_completion_tokens ? f.plan.max_completion_tokens : f.plan.max_tokens;
    if (!status) status = plan_begin(&call->plan, call->service, &f.plan, most, &call->error);
    if (!status) status = read_logprobs(&call->plan, &f, &call->error);
    f.chat.has_one_call = !f.parallel_calls;
    if (!status) status = answers_prepare(call, &f.chat);
    api_call_name(call, "chatcmpl-");
    return status;
}

/* ---- answers --------------------------------------------------------------------------------------------- */

static const char *finish_reason(const Choice *c) {
    bool has_ended = c->result->finish == FR_FINISH_EOS || c->result->finish == FR_FINISH_STOP;
    return has_ended && answers_of(c)->n_calls > 0 ? "tool_calls" : openai_finish_reason(c->result->finish);
}

/* {"index": ..., "id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}, as far as it is known:
 * bytes NULL: none; further pieces of a stream have no name. */
static void write_call(JsonOut *out, const Choice *c, const AnswerItem *item, bool is_piece, const char *bytes,
                       size_t n) {
    char id[ANSWERS_ID_SIZE];
    bool is_begin = !is_piece || !bytes;
    answers_call_id(c, item, id);
    json_out_mark(out, '{');
    if (is_piece) json_out_key_int(out, "index", item->i_call);
    if (is_begin) json_out_key_text(out, "id", id);
    if (is_begin) json_out_key_text(out, "type", "function");
    json_out_open(out, "function", '{');
    if (is_begin) json_out_key_text(out, "name", item->name);
    json_out_key(out, "arguments");
    json_out_bytes(out, bytes ? bytes : "", n);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

/* The texts of all items of a kind as one. False: there is none. */
static bool write_texts(JsonOut *out, const AnswerReader *r, AnswerKind kind, const char *key) {
    Buf text = {.max_bytes = 64 << 20};
    int n = 0;
    for (int i = 0; i < r->n_items; i++) {
        if (r->items[i].kind != kind) continue;
        if (!buf_append(&text, r->items[i].text.data, r->items[i].text.n)) out->failed = true;
        n++;
    }
    if (n > 0) {
        json_out_key(out, key);
        json_out_bytes(out, text.data ? text.data : "", text.n);
    }
    buf_free(&text);
    return n > 0;
}

static void write_message(JsonOut *out, const Choice *c) {
    const AnswerReader *r = answers_of(c);
    json_out_open(out, "message", '{');
    json_out_key_text(out, "role", "assistant");
    if (!write_texts(out, r, ANSWER_TEXT, "content")) json_out_key_text(out, "content", r->n_calls ? NULL : "");
    (void)write_texts(out, r, ANSWER_REASONING, "reasoning_content");
    json_out_key_null(out, "refusal");
    if (r->n_calls > 0) json_out_open(out, "tool_calls", '[');
    for (int i = 0; i < r->n_items; i++)
        if (r->items[i].kind == ANSWER_CALL)
            write_call(out, c, &r->items[i], false, r->items[i].text.data, r->items[i].text.n);
    if (r->n_calls > 0) json_out_mark(out, ']');
    json_out_mark(out, '}');
}

/* Of all items of text. */
static void write_logprobs(JsonOut *out, const Choice *c) {
    const AnswerReader *r = answers_of(c);
    for (int i = 0; i < r->n_items; i++)
        logprobs_write_list(out, c->call->plan.model, answers_logprobs(c, &r->items[i]), false);
}

/* tokens NULL: of the whole choice. */
static void write_logprobs_field(JsonOut *out, const Choice *c, const TokenBatch *tokens) {
    if (!c->call->plan.wants_logprobs) {
        json_out_key_null(out, "logprobs");
        return;
    }
    json_out_open(out, "logprobs", '{');
    json_out_open(out, "content", '[');
    if (tokens) logprobs_write_list(out, c->call->plan.model, tokens, false);
    else write_logprobs(out, c);
    json_out_mark(out, ']');
    json_out_key_null(out, "refusal");
    json_out_mark(out, '}');
}

static void write_choice(JsonOut *out, const ApiCall *call, const Choice *c) {
    if (!answers_end(c, NULL, NULL)) out->failed = true;
    json_out_mark(out, '{');
    json_out_key_int(out, "index", c->index);
    write_message(out, c);
    write_logprobs_field(out, c, NULL);
    json_out_key_text(out, "finish_reason", finish_reason(c));
    openai_write_tokens(out, call, &c->tokens);
    json_out_mark(out, '}');
}

static void write_answer(JsonOut *out, const ApiCall *call) {
    openai_write_head(out, call, "chat.completion");
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
    openai_write_head(&j, call, "chat.completion.chunk");
    json_out_open(&j, "choices", '[');
    json_out_mark(&j, '{');
    json_out_key_int(&j, "index", index);
    json_out_open(&j, "delta", '{');
    return j;
}

/* logprobs NULL: none. */
static void end_event(JsonOut *j, const ApiCall *call, const Choice *c, const TokenBatch *fresh,
                      const TokenBatch *logprobs, const char *finish) {
    json_out_mark(j, '}');
    if (logprobs) write_logprobs_field(j, c, logprobs);
    else json_out_key_null(j, "logprobs");
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
        end_event(&j, call, NULL, NULL, NULL, NULL);
    }
}

/* For stream_item. */
typedef struct ItemStream {
    Buf *out;
    const Choice *choice;
    const TokenBatch *fresh; /* for the next event; NULL: an event has them */
} ItemStream;

static void stream_item(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    ItemStream *s = user;
    bool is_call = item->kind == ANSWER_CALL;
    if (event == ANSWER_ENDS || (event == ANSWER_BEGINS && !is_call)) return;
    JsonOut j = begin_event(s->out, s->choice->call, s->choice->index);
    if (is_call) {
        json_out_open(&j, "tool_calls", '[');
        write_call(&j, s->choice, item, true, bytes, n);
        json_out_mark(&j, ']');
    } else {
        json_out_key(&j, item->kind == ANSWER_TEXT ? "content" : "reasoning_content");
        json_out_bytes(&j, bytes, n);
    }
    bool is_text = item->kind == ANSWER_TEXT;
    end_event(&j, s->choice->call, s->choice, s->fresh, is_text ? answers_fresh_logprobs(s->choice) : NULL, NULL);
    s->fresh = NULL;
}

static void stream_text(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    ItemStream s = {.out = out, .choice = c, .fresh = fresh};
    (void)answers_feed(c, fresh, stream_item, &s); /* without memory the reader stays silent */
    if (!s.fresh || !(call->plan.returns_tokens || call->plan.shows_sources)) return;
    JsonOut j = begin_event(out, call, c->index);
    json_out_key_text(&j, "content", "");
    end_event(&j, call, c, fresh, NULL, NULL);
}

static void end_choice(Buf *out, const ApiCall *call, const Choice *c) {
    ItemStream s = {.out = out, .choice = c};
    (void)answers_end(c, stream_item, &s);
    JsonOut j = begin_event(out, call, c->index);
    end_event(&j, call, c, NULL, NULL, finish_reason(c));
}

static const ApiFormat format = {
    .write_error = openai_write_error,
    .write_answer = write_answer,
    .keep = answers_keep,
    .begin_stream = begin_stream,
    .stream_text = stream_text,
    .end_choice = end_choice,
    .end_stream = openai_end_stream,
    .event_object = "chat.completion.chunk",
    .count_reasoning = answers_count_reasoning,
    .stream_error = openai_stream_error,
};

const Endpoint chat_completions_endpoints[] = {
    {.method = "POST", .path = "/v1/chat/completions", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/chat/completions", .format = &format, .prepare = prepare},
    {.path = NULL},
};

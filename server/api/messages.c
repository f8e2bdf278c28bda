/* messages.c - POST /v1/messages and /v1/messages/count_tokens, the Messages API of Anthropic.
 *
 * As in that API, usage counts the prompt tokens that the cache had in cache_read_input_tokens, and the others in
 * input_tokens. The beginning of a stream is written before the cache is searched, so "message_delta" corrects the
 * numbers. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"

#include <string.h>

typedef struct MessagesFields {
    PlanFields plan;
    MessagesInput input;
    const json_t *variables, *stops, *output_config, *output_format;
    const char *effort;
} MessagesFields;

#define M(kind, field, ...) FIELD(MessagesFields, kind, field, __VA_ARGS__)
static const Field messages_fields[] = {
    {.name = "messages", M(ANY, input.messages)},
    {.name = "system", M(ANY, input.system)},
    {.name = "tools", M(ANY, input.tools)},
    {.name = "tool_choice", M(ANY, input.tool_choice)},
    {.name = "thinking", M(ANY, input.thinking)},
    {.name = "max_tokens", M(INT, plan.max_tokens, .min = 1, .max = INT32_MAX)},
    {.name = "stop_sequences", M(ANY, stops)},
    {.name = "output_config", M(ANY, output_config)},
    {.name = "output_format", M(ANY, output_format)}, /* the older name of output_config.format */
    {.name = "chat_template_kwargs", M(ANY, variables)},
    {.name = "n", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "stream_options", .kind = FIELD_IGNORED}, /* usage is always sent */
    {.name = "cache_control", .kind = FIELD_IGNORED},  /* prompts are cached in any case */
    {.name = "inference_geo", .kind = FIELD_IGNORED},
    {.name = NULL},
};
static const Field *const tables[] = {messages_fields, plan_fields, plan_other_fields, NULL};

/* Reads {"type": "enabled", "budget_tokens": N}, or the type "adaptive" or "disabled". Many templates have a variable
 * for it. With {"display": "omitted"} the client gets the block of the reasoning without its text. */
static int read_thinking(const MessagesInput *in, ChatMessages *chat, Plan *plan, ApiError *error) {
    const json_t *type = json_object_get(in->thinking, "type"),
                 *budget = json_object_get(in->thinking, "budget_tokens");
    const json_t *display = json_object_get(in->thinking, "display");
    bool is_enabled = field_is_text(type, "enabled"), is_off = field_is_text(type, "disabled");
    if (!in->thinking) return 0;
    if (!is_enabled && !is_off && !field_is_text(type, "adaptive"))
        return api_refuse(error, 400, "invalid_value", "thinking",
                          "'thinking.type' must be \"enabled\", \"adaptive\" or \"disabled\"");
    if ((is_enabled || budget) && !is_off && !(json_integer_value(budget) >= 1))
        return api_refuse(error, 400, "invalid_value", "thinking", "'thinking.budget_tokens' must be 1 or more");
    if (display && !json_is_null(display) && !field_is_text(display, "summarized") &&
        !field_is_text(display, "omitted"))
        return api_refuse(error, 400, "invalid_value", "thinking",
                          "'thinking.display' must be \"summarized\" or \"omitted\"");
    plan->hides_reasoning = field_is_text(display, "omitted");
    chat->has_budget = budget && !is_off;
    chat->max_reasoning = json_integer_value(budget);
    chat->thinks = is_off ? -1 : 1;
    return 0;
}

static int check_stops(const MessagesFields *f, ApiError *error) {
    size_t n = json_array_size(f->stops);
    bool fits = !f->stops || (json_is_array(f->stops) && n <= API_MAX_STOPS);
    for (size_t i = 0; i < n && fits; i++) fits = json_string_length(json_array_get(f->stops, i)) > 0;
    return fits ? 0
                : api_refuse(error, 400, "invalid_value", "stop_sequences",
                             "'stop_sequences' must be a list of at most %d strings that are not empty", API_MAX_STOPS);
}

/* Reads {"format": {"type": "json_schema", "schema": {...}}, "effort": "low"}. */
static int read_output_config(ApiCall *call, MessagesFields *f) {
    const char *name;
    json_t *value;
    if (f->output_config && !json_is_object(f->output_config))
        return api_refuse(&call->error, 400, "invalid_type", "output_config", "'output_config' must be an object");
    json_object_foreach((json_t *)(uintptr_t)f->output_config, name, value) {
        if (strcmp(name, "effort") == 0 && json_is_string(value)) {
            f->effort = json_string_value(value);
            continue;
        }
        if (strcmp(name, "task_budget") == 0) {
            if (!json_is_null(value))
                (void)plan_warn(&call->plan, "the field 'output_config.task_budget' has no effect");
            continue;
        }
        if (strcmp(name, "format") != 0 && !json_is_null(value))
            return api_refuse(&call->error, 400, "unsupported_parameter", "output_config",
                              "'output_config.%.40s' is not supported", name);
        if (json_is_null(value)) continue;
        f->plan.constraint.format = value;
        f->plan.constraint.format_name = "output_config.format";
    }
    if (!f->output_format || f->plan.constraint.format) return 0;
    f->plan.constraint.format = f->output_format;
    f->plan.constraint.format_name = "output_format";
    return 0;
}

static int read_body(ApiCall *call, const json_t *body, MessagesFields *f, ChatMessages *chat) {
    *f = (MessagesFields){.variables = NULL};
    *chat = (ChatMessages){.messages = NULL};
    plan_fields_default(&f->plan);
    if (fields_read(tables, body, f, call) || check_stops(f, &call->error)) return -1;
    if (read_output_config(call, f)) return -1;
    if (f->stops) f->plan.stop = f->stops;
    if (read_thinking(&f->input, chat, &call->plan, &call->error)) return -1;
    chat->variables = f->variables;
    chat->reasoning_effort = f->effort;
    return messages_convert(&f->input, chat, &call->error);
}

static int prepare(ApiCall *call, const json_t *body) {
    MessagesFields f;
    ChatMessages chat;
    api_call_name(call, "msg_");
    if (read_body(call, body, &f, &chat)) return -1;
    if (!f.plan.max_tokens)
        return api_refuse(&call->error, 400, "missing_field", "max_tokens", "'max_tokens' is missing");
    if (plan_begin(&call->plan, call->service, &f.plan, f.plan.max_tokens, &call->error)) return -1;
    call->plan.tells_stop = true;
    return answers_prepare(call, &chat);
}

static int count_tokens(ApiCall *call, const json_t *body) {
    MessagesFields f;
    ChatMessages chat;
    fr_chat_result prompt = {.struct_size = sizeof prompt};
    if (read_body(call, body, &f, &chat)) return -1;
    const ServedModel *m = plan_find_model(call->service, f.plan.model, &call->error);
    if (!m || chat_messages_apply(m, &chat, &prompt, &call->error)) return -1;
    JsonOut j = json_out_begin(&call->reply);
    json_out_mark(&j, '{');
    json_out_key_int(&j, "input_tokens", prompt.n_tokens);
    json_out_mark(&j, '}');
    fr_chat_result_free(&prompt);
    return j.failed ? api_refuse(&call->error, 500, NULL, NULL, "memory for the answer ran out") : 0;
}

/* ---- errors ---------------------------------------------------------------------------------------------- */

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void write_error(JsonOut *out, const ApiError *e) {
    json_out_mark(out, '{');
    json_out_key_text(out, "type", "error");
    json_out_open(out, "error", '{');
    json_out_key_text(out, "type", error_type(e->status));
    json_out_key_text(out, "message", e->message);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

/* ---- answers --------------------------------------------------------------------------------------------- */

static const char *stop_reason(const Choice *c) {
    if (choice_finish(c) == FR_FINISH_LENGTH) return "max_tokens";
    if (choice_finish(c) == FR_FINISH_CONTEXT) return "model_context_window_exceeded";
    if (answers_of(c)->n_calls > 0) return "tool_use";
    return choice_finish(c) == FR_FINISH_STOP ? "stop_sequence" : "end_turn";
}

/* choice is NULL at the beginning of a stream. */
static void write_usage(JsonOut *out, const ApiCall *call, const Choice *c) {
    int64_t n_cached = c && c->result ? c->result->stats.n_prompt_shared : 0;
    json_out_open(out, "usage", '{');
    json_out_key_int(out, "input_tokens", call->plan.prompts[0].n - n_cached);
    json_out_key_int(out, "cache_creation_input_tokens", 0);
    json_out_key_int(out, "cache_read_input_tokens", n_cached);
    json_out_key_int(out, "output_tokens", c && c->result ? c->result->stats.n_generated : 0);
    json_out_mark(out, '}');
}

static bool is_hidden(const Choice *c, const AnswerItem *item) {
    return item->kind == ANSWER_REASONING && c->call->plan.hides_reasoning;
}

/* Writes a block: all of it if is_whole, and otherwise what is known when it begins. */
static void write_block(JsonOut *out, const Choice *c, const AnswerItem *item, bool is_whole) {
    static const char *const types[] =
        {[ANSWER_TEXT] = "text", [ANSWER_REASONING] = "thinking", [ANSWER_CALL] = "tool_use"};
    char id[ANSWERS_ID_SIZE];
    const char *type = types[item->kind];
    json_out_mark(out, '{');
    json_out_key_text(out, "type", type);
    if (item->kind == ANSWER_CALL) {
        answers_call_id(c, item, id);
        json_out_key_text(out, "id", id);
        json_out_key_text(out, "name", item->name);
        json_error_t why;
        json_t *input = is_whole ? json_loadb(item->text.data, item->text.n, 0, &why) : NULL;
        json_out_key(out, "input");
        if (json_is_object(input)) json_out_raw(out, item->text.data, item->text.n);
        else json_out_raw(out, "{}", 2); /* the arguments are cut short or are no JSON, but "input" must be an object */
        json_decref(input);
    } else {
        bool has_text = is_whole && !is_hidden(c, item);
        json_out_key(out, type);
        json_out_bytes(out, has_text ? item->text.data : "", has_text ? item->text.n : 0);
        if (item->kind == ANSWER_REASONING) json_out_key_text(out, "signature", "");
    }
    json_out_mark(out, '}');
}

static void write_head(JsonOut *out, const ApiCall *call) {
    json_out_mark(out, '{');
    json_out_key_text(out, "id", call->id);
    json_out_key_text(out, "type", "message");
    json_out_key_text(out, "role", "assistant");
    json_out_key_text(out, "model", call->plan.model->name);
    json_out_open(out, "content", '[');
}

static void write_stop(JsonOut *out, const Choice *c) {
    const char *reason = c ? stop_reason(c) : NULL;
    bool is_sequence = reason && strcmp(reason, "stop_sequence") == 0;
    json_out_key_text(out, "stop_reason", reason);
    json_out_key_text(out, "stop_sequence", is_sequence ? stop_string_of(c) : NULL);
}

static void write_answer(JsonOut *out, const ApiCall *call) {
    const Choice *c = &call->choices[0];
    if (!answers_end(c, NULL, NULL)) out->failed = true;
    write_head(out, call);
    for (int i = 0; i < answers_of(c)->n_items; i++) write_block(out, c, &answers_of(c)->items[i], true);
    json_out_mark(out, ']');
    write_stop(out, c);
    write_usage(out, call, c);
    openai_write_extras(out, call);
    json_out_mark(out, '}');
}

/* ---- events ---------------------------------------------------------------------------------------------- */

static void begin_stream(Buf *out, const ApiCall *call) {
    JsonOut j = answers_begin_event(out, "message_start");
    json_out_key(&j, "message");
    write_head(&j, call);
    json_out_mark(&j, ']');
    write_stop(&j, NULL);
    write_usage(&j, call, NULL);
    json_out_mark(&j, '}');
    answers_end_event(&j);
    j = answers_begin_event(out, "ping");
    answers_end_event(&j);
}

typedef struct BlockStream {
    Buf *out;
    const Choice *choice;
} BlockStream;

static void stream_block(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    static const char *const names[] = {[ANSWER_BEGINS] = "content_block_start",
                                        [ANSWER_GROWS] = "content_block_delta",
                                        [ANSWER_ENDS] = "content_block_stop"};
    static const char *const deltas[][2] = {[ANSWER_TEXT] = {"text_delta", "text"},
                                            [ANSWER_REASONING] = {"thinking_delta", "thinking"},
                                            [ANSWER_CALL] = {"input_json_delta", "partial_json"}};
    const BlockStream *s = user;
    if (event == ANSWER_GROWS && is_hidden(s->choice, item)) return;
    JsonOut j = answers_begin_event(s->out, names[event]);
    json_out_key_int(&j, "index", item->index);
    if (event == ANSWER_BEGINS) {
        json_out_key(&j, "content_block");
        write_block(&j, s->choice, item, false);
    } else if (event == ANSWER_GROWS) {
        json_out_open(&j, "delta", '{');
        json_out_key_text(&j, "type", deltas[item->kind][0]);
        json_out_key(&j, deltas[item->kind][1]);
        json_out_bytes(&j, bytes, n);
        json_out_mark(&j, '}');
    }
    answers_end_event(&j);
}

static void stream_text(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    BlockStream s = {out, c};
    (void)call;
    (void)answers_feed(c, fresh, stream_block, &s); /* if memory runs out, the reader reports nothing more */
}

static void end_choice(Buf *out, const ApiCall *call, const Choice *c) {
    BlockStream s = {out, c};
    (void)answers_end(c, stream_block, &s);
    JsonOut j = answers_begin_event(out, "message_delta");
    json_out_open(&j, "delta", '{');
    write_stop(&j, c);
    json_out_mark(&j, '}');
    write_usage(&j, call, c);
    openai_write_extras(&j, call);
    answers_end_event(&j);
}

static void end_stream(Buf *out, const ApiCall *call) {
    (void)call;
    JsonOut j = answers_begin_event(out, "message_stop");
    answers_end_event(&j);
}

static void stream_error(Buf *out, const ApiError *e) {
    (void)buf_append(out, "event: error\n", 13);
    JsonOut j = sse_begin(out);
    write_error(&j, e);
    sse_end(&j);
}

static const ApiFormat format = {
    .write_error = write_error,
    .write_answer = write_answer,
    .keep = answers_keep,
    .begin_stream = begin_stream,
    .stream_text = stream_text,
    .end_choice = end_choice,
    .end_stream = end_stream,
    .stream_error = stream_error,
};

const Endpoint messages_endpoints[] = {
    {.method = "POST", .path = "/v1/messages", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/v1/messages/count_tokens", .format = &format, .prepare = count_tokens},
    {.path = NULL},
};

/* messages.c - POST /v1/messages and /v1/messages/count_tokens, the Messages API of Anthropic.
 *
 * As in that API, usage counts the prompt tokens that the cache had in cache_read_input_tokens, and the others in
 * input_tokens. The beginning of a stream is written before the cache is searched, so "message_delta" corrects the
 * numbers. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"

#include <string.h>

/* The fields of a body that describe the conversation; borrowed. */
typedef struct MessagesInput {
    const json_t *messages, *system, *tools, *tool_choice, *thinking;
} MessagesInput;

typedef struct MessagesFields {
    PlanFields plan;
    MessagesInput input;
    const json_t *variables, *stops, *output_config;
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
    {.name = "chat_template_kwargs", M(ANY, variables)},
    {.name = "n", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "stream_options", .kind = FIELD_NEUTRAL},
    {.name = "cache_control", .kind = FIELD_IGNORED}, /* prompts are cached in any case */
    {.name = "inference_geo", .kind = FIELD_IGNORED},
    {.name = NULL},
};
static const Field *const tables[] = {messages_fields, plan_fields, plan_other_fields, NULL};

/* ---- the prompt: from content blocks to the messages of chat templates ----------------------------------------
 *
 * Text blocks are joined. "tool_use" becomes "tool_calls" of the assistant, "tool_result" becomes a message of role
 * "tool" before the text of its turn, and "thinking" becomes "reasoning_content". A block that the model cannot read is
 * refused by name. */

enum { MAX_MESSAGES = 10000 };

static int check_blocks(const json_t *blocks, const char *where, ApiError *error) {
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const json_t *block = json_array_get(blocks, i);
        if (!field_is_text(json_object_get(block, "type"), "text") || !json_is_string(json_object_get(block, "text")))
            return api_refuse(error, 400, "unsupported_content", where,
                              "'%s': block %zu must be of type 'text'; this model reads text", where, i);
    }
    return 0;
}

/* Joins a string, or the texts of blocks, to one JSON string. NULL: the content is refused. */
static json_t *join(const json_t *content, const char *where, ApiError *error) {
    if (json_is_string(content)) return json_stringn(json_string_value(content), json_string_length(content));
    if (!json_is_array(content)) {
        api_refuse(error, 400, "invalid_type", where, "'%s' must be a string or a list of blocks", where);
        return NULL;
    }
    return check_blocks(content, where, error) ? NULL : chat_messages_join(content);
}

static void add_message(json_t *to, const char *role, json_t *content) {
    json_array_append_new(to, json_pack("{s:s, s:o}", "role", role, "content", content));
}

/* A turn of the conversation while its blocks are read. */
typedef struct Turn {
    json_t *out;   /* the messages of the turn */
    json_t *texts; /* blocks of type text */
    json_t *calls, *thinking;
    bool is_assistant;
} Turn;

static int add_block(Turn *t, const json_t *block, size_t i, ApiError *error) {
    const char *type = json_string_value(json_object_get(block, "type"));
    json_t *id = json_object_get(block, t->is_assistant ? "id" : "tool_use_id");
    json_t *content = json_object_get(block, "content"), *input = json_object_get(block, "input");
    if (type && strcmp(type, "text") == 0) {
        json_array_append(t->texts, (json_t *)(uintptr_t)block);
        return 0;
    }
    if (type && t->is_assistant && strcmp(type, "thinking") == 0) {
        t->thinking = json_object_get(block, "thinking");
        return 0;
    }
    if (type && t->is_assistant && strcmp(type, "redacted_thinking") == 0) return 0;
    if (type && t->is_assistant && strcmp(type, "tool_use") == 0 && json_is_string(id) && json_is_object(input)) {
        json_array_append_new(t->calls, json_pack("{s:O, s:s, s:{s:O*, s:O}}", "id", id, "type", "function", "function",
                                                  "name", json_object_get(block, "name"), "arguments", input));
        return 0;
    }
    if (type && !t->is_assistant && strcmp(type, "tool_result") == 0 && json_is_string(id)) {
        json_t *text = content ? join(content, "messages", error) : json_string("");
        if (!text) return -1;
        json_array_append_new(t->out,
                              json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text));
        return 0;
    }
    return api_refuse(error, 400, "unsupported_content", "messages",
                      "messages: content block %zu of type '%.40s' is not supported for this role, or is incomplete", i,
                      type ? type : "?");
}

static int add_turn(json_t *out, const json_t *message, size_t i_message, ApiError *error) {
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    Turn t = {.out = out,
              .texts = json_array(),
              .calls = json_array(),
              .is_assistant = field_is_text(role, "assistant")};
    if (!t.is_assistant && !field_is_text(role, "user"))
        return api_refuse(error, 400, "invalid_value", "messages",
                          "messages[%zu].role must be 'user' or 'assistant'; instructions go into 'system'", i_message);
    int status = 0;
    for (size_t i = 0; i < json_array_size(content) && !status; i++)
        status = add_block(&t, json_array_get(content, i), i, error);
    if (status) return status;
    bool has_others = json_array_size(content) > 0 && json_array_size(t.texts) == 0;
    if (has_others && !t.is_assistant) return 0; /* the turn has only results of tools */
    json_t *text = join(json_is_array(content) ? t.texts : content, "messages", error);
    if (!text) return -1;
    add_message(out, json_string_value(role), text);
    json_t *added = json_array_get(out, json_array_size(out) - 1);
    if (json_array_size(t.calls) > 0) json_object_set_new(added, "tool_calls", t.calls);
    if (t.thinking) json_object_set(added, "reasoning_content", t.thinking);
    return 0;
}

/* The last message is the beginning of the answer, which the model continues. */
static int take_prefill(json_t *out, ChatMessages *chat, ApiError *error) {
    size_t n = json_array_size(out);
    const json_t *last = json_array_get(out, n - 1);
    const char *text = json_string_value(json_object_get(last, "content"));
    if (json_object_get(last, "tool_calls") || !text || n < 2)
        return api_refuse(error, 400, "invalid_value", "messages",
                          "a last message of the role 'assistant' must be text, which the answer continues");
    if (*text && strchr(" \t\r\n", text[strlen(text) - 1]))
        return api_refuse(error, 400, "invalid_value", "messages",
                          "messages: final assistant content cannot end with trailing whitespace");
    chat->prefill = text;
    json_incref((json_t *)(uintptr_t)last); /* the memory of all values is freed with that of the body */
    return json_array_remove(out, n - 1);
}

static int convert_messages(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array();
    size_t n = json_array_size(in->messages);
    int status = 0;
    if (!json_is_array(in->messages) || n == 0 || n > MAX_MESSAGES)
        return api_refuse(error, 400, "invalid_type", "messages", "'messages' must be a list of 1 to %d messages",
                          MAX_MESSAGES);
    if (in->system) {
        json_t *text = join(in->system, "system", error);
        if (!text) return -1;
        add_message(out, "system", text);
    }
    for (size_t i = 0; i < n && !status; i++) status = add_turn(out, json_array_get(in->messages, i), i, error);
    if (!status && field_is_text(json_object_get(json_array_get(in->messages, n - 1), "role"), "assistant"))
        status = take_prefill(out, chat, error);
    chat->messages = out;
    return status;
}

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

/* Turns {"name", "description", "input_schema"} into {"type": "function", "function": {..., "parameters"}}. */
static int convert_tools(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array(), *strict = json_array();
    if (in->tools && !json_is_array(in->tools))
        return api_refuse(error, 400, "invalid_type", "tools", "'tools' must be a list");
    for (size_t i = 0; i < json_array_size(in->tools); i++) {
        const json_t *tool = json_array_get(in->tools, i), *type = json_object_get(tool, "type");
        json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
        if ((type && !field_is_text(type, "custom")) || !json_is_string(name) || !json_is_object(schema))
            return api_refuse(error, 400, "invalid_value", "tools",
                              "tools[%zu] must have 'name' and 'input_schema'; tools that the server would run are not "
                              "supported",
                              i);
        json_array_append_new(out,
                              json_pack("{s:s, s:{s:O, s:O*, s:O}}", "type", "function", "function", "name", name,
                                        "description", json_object_get(tool, "description"), "parameters", schema));
        json_array_append_new(strict, json_boolean(json_is_true(json_object_get(tool, "strict"))));
    }
    chat->tools = out;
    chat->strict_tools = strict; /* not in the tools themselves, which the template may write out */
    return 0;
}

static int convert_choices(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    const json_t *choice = json_object_get(in->tool_choice, "type");
    json_t *name = json_object_get(in->tool_choice, "name");
    bool is_named = field_is_text(choice, "tool") && json_is_string(name);
    if (in->tool_choice && !field_is_text(choice, "auto") && !field_is_text(choice, "none") &&
        !field_is_text(choice, "any") && !is_named)
        return api_refuse(error, 400, "invalid_value", "tool_choice",
                          "'tool_choice' must be of type 'auto', 'none' or 'any', or 'tool' with a name");
    chat->has_one_call = json_is_true(json_object_get(in->tool_choice, "disable_parallel_tool_use"));
    chat->tool_choice = is_named                       ? json_pack("{s:s, s:O}", "type", "function", "name", name)
                        : field_is_text(choice, "any") ? json_string("required")
                                                       : choice;
    return 0;
}

/* Fills in messages, tools and tool_choice of *chat. It runs within json_memory_limit, which owns what it makes. */
static int convert_input(const MessagesInput *in, ChatMessages *chat, ApiError *error) {
    if (convert_messages(in, chat, error) || convert_tools(in, chat, error)) return -1;
    return convert_choices(in, chat, error);
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
        if (!json_is_null(value)) f->plan.constraint.format = value;
    }
    if (f->plan.constraint.format) f->plan.constraint.format_name = f->output_config ? "output_config.format" : NULL;
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
    return convert_input(&f->input, chat, &call->error);
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

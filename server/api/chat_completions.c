/* chat_completions.c - POST /v1/chat/completions. */
#include "server/answer/answer_reader.h"
#include "server/api/answers.h"
#include "server/api/openai_format.h"

#include <stdlib.h>
#include <string.h>

typedef struct ChatFields {
    PlanFields plan;
    ChatMessages chat;
    bool logprobs, parallel_calls, begins_answer, continues;
    int64_t top_logprobs, max_reasoning; /* max_reasoning: -1: no budget */
    const char *reasoning_format;
} ChatFields;

#define C(kind, field, ...) FIELD(ChatFields, kind, field, __VA_ARGS__)
static const Field chat_fields[] = {
    {.name = "messages", C(ANY, chat.messages)},
    {.name = "chat_template_kwargs", C(ANY, chat.variables)},
    {.name = "add_generation_prompt", C(BOOL, begins_answer)},
    {.name = "continue_final_message", C(BOOL, continues)},
    {.name = "reasoning_budget", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "reasoning_budget_tokens", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "thinking_budget_tokens", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "thinking_token_budget", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "max_tokens", C(INT, plan.max_tokens, .min = 1, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = "max_completion_tokens",
     C(INT, plan.max_completion_tokens, .min = 1, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = "n_predict", C(INT, plan.max_tokens, .min = 1, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = "modalities", C(ANY, chat.modalities)},
    {.name = "tools", C(ANY, chat.tools)},
    {.name = "tool_choice", C(ANY, chat.tool_choice)},
    {.name = "parallel_tool_calls", C(BOOL, parallel_calls)},
    {.name = "logprobs", C(BOOL, logprobs)},
    {.name = "top_logprobs", C(INT, top_logprobs, .min = 0, .max = FR_MAX_TOP_LOGPROBS)},
    {.name = "reasoning_format", C(TEXT, reasoning_format)},
    {.name = "reasoning_effort", C(TEXT, chat.reasoning_effort)},
    {.name = NULL},
};
static const Field *const tables[] = {plan_fields, chat_fields, plan_other_fields, NULL};

static int read_logprobs(Plan *plan, const ChatFields *f, ApiError *error) {
    if (f->top_logprobs && !f->logprobs)
        return api_refuse(error, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (f->logprobs) logprobs_want(plan, f->top_logprobs);
    return 0;
}

/* llama.cpp's field: "none" leaves reasoning in the text, with its marks; all other values separate it. */
static int read_reasoning_format(ChatFields *f, ApiError *error) {
    static const char *const names[] = {"auto", "deepseek", "deepseek-legacy", "none"};
    for (int i = 0; i < 4; i++)
        if (!f->reasoning_format || strcmp(f->reasoning_format, names[i]) == 0) {
            f->chat.keeps_reasoning = f->reasoning_format && i == 3;
            return 0;
        }
    return api_refuse(error, 400, "invalid_value", "reasoning_format",
                      "'reasoning_format' must be \"none\", \"auto\", \"deepseek\" or \"deepseek-legacy\"");
}

/* continue_final_message: the last message is the beginning of the answer. */
static int read_continuation(ChatFields *f, ApiError *error) {
    size_t n = json_array_size(f->chat.messages);
    const json_t *last = n > 0 ? json_array_get(f->chat.messages, n - 1) : NULL,
                 *content = json_object_get(last, "content");
    if (!f->continues && f->begins_answer) return 0;
    if (!f->continues)
        return api_refuse(error, 400, "unsupported_parameter", "add_generation_prompt",
                          "'add_generation_prompt': false needs 'continue_final_message': true");
    if (n < 2 || !field_is_text(json_object_get(last, "role"), "assistant") || !json_is_string(content))
        return api_refuse(error, 400, "invalid_value", "continue_final_message",
                          "'continue_final_message' needs a last message of the role 'assistant' with a text, after "
                          "others");
    f->chat.prefill = json_string_value(content);
    json_incref((json_t *)(uintptr_t)last); /* the memory of all values is freed with that of the body */
    return json_array_remove((json_t *)(uintptr_t)f->chat.messages, n - 1);
}

static int prepare(ApiCall *call, const json_t *body) {
    ChatFields f = {.parallel_calls = true, .begins_answer = true, .max_reasoning = -1};
    plan_fields_default(&f.plan);
    int status = fields_read(tables, body, &f, call);
    int64_t most = f.plan.max_completion_tokens ? f.plan.max_completion_tokens : f.plan.max_tokens;
    if (!status) status = plan_begin(&call->plan, call->service, &f.plan, most, &call->error);
    if (!status) status = read_logprobs(&call->plan, &f, &call->error);
    if (!status) status = read_reasoning_format(&f, &call->error);
    if (!status) status = read_continuation(&f, &call->error);
    f.chat.has_budget = f.max_reasoning >= 0;
    f.chat.max_reasoning = f.max_reasoning;
    f.chat.has_one_call = !f.parallel_calls;
    if (!status) status = answers_prepare(call, &f.chat);
    api_call_name(call, "chatcmpl-");
    return status;
}

static int prepare_render(ApiCall *call, const json_t *body) {
    return prepare(call, body) ? -1 : openai_render(call, false);
}

/* ---- answers --------------------------------------------------------------------------------------------- */

static const char *finish_reason(const Choice *c) {
    bool has_ended = choice_finish(c) == FR_FINISH_EOS || choice_finish(c) == FR_FINISH_STOP;
    return has_ended && answers_of(c)->n_calls > 0 ? "tool_calls" : openai_finish_reason(choice_finish(c));
}

/* Writes {"index": ..., "id": ..., "type": "function", "function": {"name": ..., "arguments": ...}} as far as it is
 * known. bytes may be NULL. Later pieces of a stream have no name. */
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

static void write_message(JsonOut *out, const Choice *c) {
    const AnswerReader *r = answers_of(c);
    json_out_open(out, "message", '{');
    json_out_key_text(out, "role", "assistant");
    if (!answers_write_texts(out, r, ANSWER_TEXT, "content")) json_out_key_text(out, "content", r->n_calls ? NULL : "");
    (void)answers_write_texts(out, r, ANSWER_REASONING, "reasoning_content");
    json_out_key_null(out, "refusal");
    if (r->n_calls > 0) json_out_open(out, "tool_calls", '[');
    for (int i = 0; i < r->n_items; i++)
        if (r->items[i].kind == ANSWER_CALL)
            write_call(out, c, &r->items[i], false, r->items[i].text.data, r->items[i].text.n);
    if (r->n_calls > 0) json_out_mark(out, ']');
    json_out_mark(out, '}');
}

/* Writes the log-probabilities of all items of text. */
static void write_logprobs(JsonOut *out, const Choice *c) {
    const AnswerReader *r = answers_of(c);
    for (int i = 0; i < r->n_items; i++)
        logprobs_write_list(out, c->call->plan.model, answers_logprobs(c, &r->items[i]), false);
}

/* Writes the field for the given tokens; NULL: for the whole choice. */
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

/* Writes an event up to its "delta": {. */
static JsonOut begin_event(Buf *out, const ApiCall *call, int index) {
    JsonOut j = sse_begin(out);
    openai_write_head(&j, call, "chat.completion.chunk");
    json_out_open(&j, "choices", '[');
    json_out_mark(&j, '{');
    json_out_key_int(&j, "index", index);
    json_out_open(&j, "delta", '{');
    return j;
}

/* Writes the rest of an event. finish is NULL if it is not the last of its choice. logprobs may be NULL. */
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
    else if (fresh && call->plan.shows_timings) openai_write_timings(j, call);
    json_out_mark(j, '}');
    sse_end(j);
}

static void stream_progress(Buf *out, const ApiCall *call, const Choice *c) {
    JsonOut j = sse_begin(out);
    openai_write_head(&j, call, "chat.completion.chunk");
    json_out_open(&j, "choices", '[');
    json_out_mark(&j, '{');
    json_out_key_int(&j, "index", c->index);
    json_out_open(&j, "delta", '{');
    json_out_mark(&j, '}');
    json_out_key_null(&j, "finish_reason");
    json_out_mark(&j, '}');
    json_out_mark(&j, ']');
    openai_write_progress(&j, c);
    json_out_mark(&j, '}');
    sse_end(&j);
}

static void begin_stream(Buf *out, const ApiCall *call) {
    for (int i = 0; i < call->n_choices; i++) {
        JsonOut j = begin_event(out, call, i);
        json_out_key_text(&j, "role", "assistant");
        json_out_key_text(&j, "content", "");
        end_event(&j, call, NULL, NULL, NULL, NULL);
    }
}

/* The `user` of stream_item. */
typedef struct ItemStream {
    Buf *out;
    const Choice *choice;
    const TokenBatch *fresh; /* the tokens for the next event; NULL: an event has them already */
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
    (void)answers_feed(c, fresh, stream_item, &s); /* if memory runs out, the reader reports nothing more */
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
    .stream_progress = stream_progress,
    .end_choice = end_choice,
    .end_stream = openai_end_stream,
    .event_object = "chat.completion.chunk",
    .count_reasoning = answers_count_reasoning,
    .stream_error = openai_stream_error,
};

const Endpoint chat_completions_endpoints[] = {
    {.method = "POST", .path = "/v1/chat/completions", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/chat/completions", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/v1/chat/completions/render", .format = &format, .prepare = prepare_render},
    {.path = NULL},
};

/* ---- the prompt ------------------------------------------------------------------------------------------
 *
 * The model's template turns the messages of a body into the tokens of a prompt. It receives the messages as they are,
 * so that it finds whatever it reads (tool calls, reasoning, names), with two changes: parts of text are joined,
 * because few templates know parts, and the role "developer" becomes "system", which older templates know. If the model
 * has no template that can be run, the built-in formats take only roles and texts. */

enum { MAX_MESSAGES = 10000 };

/* The text is copied to memory of jansson, which is freed with the rest of the body if that runs out of memory here. */
json_t *chat_messages_join(const json_t *parts) {
    json_malloc_t allocate;
    json_free_t release;
    size_t n = 0, i;
    json_t *part;
    json_array_foreach(parts, i, part) n += json_string_length(json_object_get(part, "text"));
    json_get_alloc_funcs(&allocate, &release);
    char *text = allocate(n + 1), *at = text;
    if (!text) return NULL;
    json_array_foreach(parts, i, part) {
        const json_t *piece = json_object_get(part, "text");
        memcpy(at, json_string_value(piece), json_string_length(piece));
        at += json_string_length(piece);
    }
    json_t *joined = json_stringn(text, n);
    release(text);
    return joined;
}

/* Replaces the content [{"type": "text", "text": ...}, ...] by one text. */
static int join_parts(json_t *message, const json_t *parts, size_t i_message, ApiError *error) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        bool is_text = type && (strcmp(type, "text") == 0 || strcmp(type, "refusal") == 0);
        if (is_text && !json_is_string(json_object_get(part, "text")))
            return api_refuse(error, 400, "invalid_type", "messages",
                              "messages[%zu].content[%zu] must have a 'text', which is a string", i_message, i);
        if (!is_text)
            return api_refuse(
                error, 400, "unsupported_content", "messages",
                "messages[%zu].content[%zu]: content of type '%.40s' is not supported; this model reads text",
                i_message, i, type ? type : "?");
    }
    json_object_set_new(message, "content", chat_messages_join(parts));
    return 0;
}

/* Turns the arguments of earlier calls into values: clients send them as text, but templates expect values. */
static void parse_arguments(const json_t *message) {
    size_t i;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        json_t *function = json_object_get(call, "function");
        const char *text = json_string_value(json_object_get(function, "arguments"));
        json_t *value = text ? json_loads(text, 0, NULL) : NULL;
        if (value) json_object_set_new(function, "arguments", value);
    }
}

/* Checks the calls of an earlier answer, which needs content if it has none. */
static int check_calls(const json_t *message, size_t i, ApiError *error) {
    const json_t *calls = json_object_get(message, "tool_calls");
    bool fits = !calls || json_is_null(calls) || json_is_array(calls);
    for (size_t k = 0; k < json_array_size(calls) && fits; k++)
        fits = json_is_string(json_object_get(json_object_get(json_array_get(calls, k), "function"), "name"));
    return fits ? 0
                : api_refuse(error, 400, "invalid_type", "messages",
                             "messages[%zu].tool_calls must be a list of calls, each with a 'function' that has a name",
                             i);
}

static int check_message(json_t *message, size_t i, ApiError *error) {
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    if (!json_is_object(message) || !role)
        return api_refuse(error, 400, "invalid_type", "messages", "messages[%zu] must be an object with a role", i);
    if (strcmp(role, "developer") == 0) json_object_set_new(message, "role", json_string("system"));
    if (check_calls(message, i, error)) return -1;
    parse_arguments(message);
    if (json_is_array(content)) return join_parts(message, content, i, error);
    if (json_is_string(content)) return 0;
    if ((!content || json_is_null(content)) && json_array_size(json_object_get(message, "tool_calls")) > 0) return 0;
    return api_refuse(error, 400, "invalid_type", "messages",
                      "messages[%zu].content must be a string or a list of parts of text", i);
}

bool chat_messages_has_tools(const ChatMessages *f) {
    return json_array_size(f->tools) > 0 && !field_is_text(f->tool_choice, "none");
}

/* tool_choice is "required", or {"type": "function"} with the name in "function", as in chats, or beside "type", as in
 * responses. */
bool chat_messages_forces_call(const ChatMessages *f, const char **name) {
    const json_t *function = json_object_get(f->tool_choice, "function");
    *name = json_string_value(json_object_get(function ? function : f->tool_choice, "name"));
    return *name || field_is_text(f->tool_choice, "required");
}

static int check_choice(const ChatMessages *f, ApiError *error) {
    const char *name;
    bool forces = chat_messages_forces_call(f, &name), is_known = !name;
    if (!f->tool_choice || field_is_text(f->tool_choice, "auto") || field_is_text(f->tool_choice, "none")) return 0;
    if (!forces || (name && !field_is_text(json_object_get(f->tool_choice, "type"), "function")))
        return api_refuse(error, 400, "invalid_value", "tool_choice",
                          "'tool_choice' must be \"auto\", \"none\", \"required\" or a function by its name");
    for (size_t i = 0; i < json_array_size(f->tools) && !is_known; i++)
        is_known = field_is_text(json_object_get(json_object_get(json_array_get(f->tools, i), "function"), "name"),
                                 name);
    if (json_array_size(f->tools) > 0 && is_known) return 0;
    return api_refuse(error, 400, "invalid_value", "tool_choice", "'tool_choice': there is no %s%.60s among 'tools'",
                      name ? "function " : "function", name ? name : "");
}

/* Returns whether a call can carry the name in the forms of all families, which have no escapes. */
static bool is_tool_name(const char *name) {
    size_t n = strlen(name);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\') return false;
    return n > 0 && n < CALL_NAME_MAX;
}

/* Returns whether a schema is that of an object, which the arguments of a call are. */
static bool is_schema_of_object(const json_t *parameters) {
    const json_t *type = json_object_get(parameters, "type");
    return !parameters || json_is_null(parameters) ||
           (json_is_object(parameters) && (!type || field_is_text(type, "object")));
}

static int check_tools(const ChatMessages *f, ApiError *error) {
    if (f->tools && !json_is_array(f->tools))
        return api_refuse(error, 400, "invalid_type", "tools", "'tools' must be a list");
    for (size_t i = 0; i < json_array_size(f->tools); i++) {
        const json_t *tool = json_array_get(f->tools, i), *function = json_object_get(tool, "function");
        if (!field_is_text(json_object_get(tool, "type"), "function") ||
            !json_is_string(json_object_get(function, "name")))
            return api_refuse(error, 400, "invalid_value", "tools",
                              "tools[%zu] must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
        if (!is_tool_name(json_string_value(json_object_get(function, "name"))))
            return api_refuse(error, 400, "invalid_value", "tools",
                              "tools[%zu]: the name must have 1 to %d bytes, and no quotes, backslashes or control "
                              "characters",
                              i, CALL_NAME_MAX - 1);
        if (!is_schema_of_object(json_object_get(function, "parameters")))
            return api_refuse(error, 400, "invalid_json_schema", "tools",
                              "tools[%zu]: the parameters must be a JSON schema of type \"object\"", i);
    }
    return 0;
}

/* Refuses answers other than text. */
static int check_output(const ChatMessages *f, ApiError *error) {
    if (f->modalities &&
        (json_array_size(f->modalities) != 1 || !field_is_text(json_array_get(f->modalities, 0), "text")))
        return api_refuse(error, 400, "unsupported_parameter", "modalities",
                          "'modalities' other than [\"text\"] are not supported");
    return check_tools(f, error) ? -1 : check_choice(f, error);
}

static int check_variables(const json_t *variables, ApiError *error) {
    static const char field[] = "chat_template_kwargs";
    if (variables && !json_is_object(variables))
        return api_refuse(error, 400, "invalid_type", field, "'%s' must be an object", field);
    if (!json_object_get(variables, "messages") && !json_object_get(variables, "tools")) return 0;
    return api_refuse(error, 400, "invalid_value", field,
                      "'%s' must not have 'messages' or 'tools', which are fields of the body", field);
}

static int check_messages(const ChatMessages *f, ApiError *error) {
    size_t n = json_array_size(f->messages);
    int status = 0;
    if (!json_is_array(f->messages) || n == 0 || n > MAX_MESSAGES)
        return api_refuse(error, 400, "invalid_type", "messages", "'messages' must be a list of 1 to %d messages",
                          MAX_MESSAGES);
    for (size_t i = 0; i < n && !status; i++) status = check_message(json_array_get(f->messages, i), i, error);
    if (!status) status = check_variables(f->variables, error);
    return status ? status : check_output(f, error);
}

/* Applies a built-in format. */
static int apply_plainly(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error) {
    size_t n = json_array_size(f->messages);
    fr_error why;
    fr_chat_message *messages = malloc(n * sizeof *messages);
    if (!messages) return api_refuse(error, 500, NULL, NULL, "memory ran out");
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(f->messages, i);
        const char *content = json_string_value(json_object_get(message, "content"));
        messages[i] = (fr_chat_message){json_string_value(json_object_get(message, "role")), content ? content : ""};
    }
    int status = fr_chat_apply(m->model, messages, (int)n, NULL, out, &why);
    free(messages);
    return status ? api_refuse_error(error, "messages", &why) : 0;
}

/* Replaces a content that is null, as it may be in messages with calls, by "": many templates join it to other text. */
static bool fill_contents(const json_t *messages) {
    size_t i;
    json_t *message;
    bool any = false;
    json_array_foreach(messages, i, message) {
        if (json_is_string(json_object_get(message, "content"))) continue;
        json_object_set_new(message, "content", json_string(""));
        any = true;
    }
    return any;
}

static int refuse_rendering(ApiError *error, const fr_error *why) {
    if (why->code != FR_ERR_FORMAT) return api_refuse_error(error, "messages", why);
    return api_refuse(error, 400, "invalid_value", "messages",
                      "the chat template of this model cannot render these messages: %s", why->message);
}

/* Runs the template. Tools are refused if the template ignores them, because the model would know nothing of them. */
static int apply_template(const ServedModel *m, const ChatMessages *f, fr_chat_options *options, fr_chat_result *out,
                          ApiError *error) {
    fr_error why;
    fr_chat_result without = {.struct_size = sizeof without};
    int status = fr_chat_apply(m->model, NULL, 0, options, out, &why);
    if (status == FR_ERR_FORMAT && fill_contents(f->messages)) {
        options->messages = json_dumps(f->messages, JSON_COMPACT);
        status = fr_chat_apply(m->model, NULL, 0, options, out, &why);
    }
    if (status) return refuse_rendering(error, &why);
    if (!options->tools) return 0;
    fr_chat_options no_tools = *options;
    no_tools.tools = NULL;
    bool is_same = !fr_chat_apply(m->model, NULL, 0, &no_tools, &without, &why) && strcmp(without.text, out->text) == 0;
    fr_chat_result_free(&without);
    if (!is_same) return 0;
    fr_chat_result_free(out);
    return api_refuse(error, 400, "unsupported_parameter", "tools",
                      "'tools' are not supported by the chat template of this model, which has no place for them");
}

/* Whether the tokenizer writes a space before the first word of a text. */
static bool adds_space(const ServedModel *m) {
    int32_t *ids;
    int64_t n;
    size_t n_bytes = 0;
    const char *piece = "";
    if (fr_tokenize(m->model, "x", 1, 0, &ids, &n, NULL)) return false;
    if (n > 0) piece = fr_token_piece(m->model, ids[0], false, &n_bytes);
    bool adds = n_bytes > 0 && piece[0] == ' ';
    fr_free(ids);
    return adds;
}

/* Appends the beginning of the answer to the prompt, after the space that belongs to the template. */
static int append_prefill(const ServedModel *m, const char *prefill, fr_chat_result *out, ApiError *error) {
    int32_t *ids = NULL;
    int64_t n;
    fr_error why;
    const char *space = m->writes_blank && prefill[0] != ' ' && !adds_space(m) ? " " : "";
    char *text = NULL, *all = NULL;
    bool fits = asprintf(&text, "%s%s", space, prefill) >= 0 && asprintf(&all, "%s%s", out->text, text) >= 0;
    int status = fits ? fr_tokenize(m->model, text, strlen(text), 0, &ids, &n, &why) : FR_OK;
    int32_t *tokens = fits && !status ? malloc((size_t)(out->n_tokens + n + 1) * sizeof *tokens) : NULL;
    free(text);
    if (!tokens) {
        free(all);
        fr_free(ids);
        return status ? api_refuse_error(error, "messages", &why)
                      : api_refuse(error, 500, NULL, NULL, "memory ran out");
    }
    memcpy(tokens, out->tokens, (size_t)out->n_tokens * sizeof *tokens);
    if (n > 0) memcpy(tokens + out->n_tokens, ids, (size_t)n * sizeof *tokens);
    n += out->n_tokens;
    fr_chat_result_free(out);
    *out = (fr_chat_result){.struct_size = sizeof *out,
                            .text = all,
                            .n_bytes = strlen(all),
                            .tokens = tokens,
                            .n_tokens = n};
    fr_free(ids);
    return 0;
}

static int apply(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error);

int chat_messages_apply(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error) {
    *out = (fr_chat_result){.struct_size = sizeof(fr_chat_result)};
    if (check_messages(f, error) || apply(m, f, out, error)) return -1;
    return f->prefill ? append_prefill(m, f->prefill, out, error) : 0;
}

static int apply(const ServedModel *m, const ChatMessages *f, fr_chat_result *out, ApiError *error) {
    json_t *variables = (json_t *)(uintptr_t)f->variables; /* the body belongs to the call */
    if ((f->reasoning_effort || f->thinks) && !variables) variables = json_object();
    if (f->thinks && !json_object_get(variables, "enable_thinking"))
        json_object_set_new(variables, "enable_thinking", json_boolean(f->thinks > 0));
    if (f->reasoning_effort) json_object_set_new(variables, "reasoning_effort", json_string(f->reasoning_effort));
    bool has_template = strcmp(m->info.chat_family, "none") != 0 && !m->info.chat_template_error;
    bool has_tools = chat_messages_has_tools(f);
    if (!has_template && !has_tools && !f->variables) return apply_plainly(m, f, out, error);
    fr_chat_options options = {
        .struct_size = sizeof options,
        .messages = json_dumps(f->messages, JSON_COMPACT),
        .tools = has_tools ? json_dumps(f->tools, JSON_COMPACT) : NULL,
        .variables = variables ? json_dumps(variables, JSON_COMPACT) : NULL,
    };
    return apply_template(m, f, &options, out, error);
}

/* responses.c - POST /v1/responses, OpenAI's newer API, but without its memory: nothing is stored, so each request has
 * the whole conversation, and previous_response_id is refused. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"

#include <stdio.h>
#include <string.h>

/* The fields of a body that describe the conversation; borrowed. */
typedef struct ResponsesInput {
    const json_t *input, *tools, *reasoning;
    const char *instructions;
} ResponsesInput;

typedef struct ResponsesFields {
    PlanFields plan;
    ResponsesInput input;
    const json_t *variables, *tool_choice, *include, *text;
    int64_t max_output_tokens, top_logprobs;
    bool parallel_calls;
} ResponsesFields;

#define R(kind, field, ...) FIELD(ResponsesFields, kind, field, __VA_ARGS__)
static const Field responses_fields[] = {
    {.name = "input", R(ANY, input.input)},
    {.name = "instructions", R(TEXT, input.instructions)},
    {.name = "tools", R(ANY, input.tools)},
    {.name = "tool_choice", R(ANY, tool_choice)},
    {.name = "parallel_tool_calls", R(BOOL, parallel_calls)},
    {.name = "text", R(ANY, text)},
    {.name = "reasoning", R(ANY, input.reasoning)},
    {.name = "max_output_tokens", R(INT, max_output_tokens, .min = 1, .max = INT32_MAX)},
    {.name = "chat_template_kwargs", R(ANY, variables)},
    {.name = "include", R(ANY, include)},
    {.name = "top_logprobs", R(INT, top_logprobs, .min = 0, .max = FR_MAX_TOP_LOGPROBS)},
    {.name = "n", .kind = FIELD_NEUTRAL, .min = 1},
    {.name = "stream_options",
     .kind = FIELD_IGNORED},                       /* padding against eavesdroppers, or usage, which is always sent */
    {.name = "truncation", .kind = FIELD_IGNORED}, /* a prompt that is too long is refused */
    {.name = NULL},
};
static const Field *const tables[] = {responses_fields, plan_fields, plan_other_fields, NULL};

/* ---- the prompt: from items to the messages of chat templates --------------------------------------------------
 *
 * Items of type "message" are messages. "function_call" becomes "tool_calls" of the assistant, and
 * "function_call_output" becomes a message of role "tool". The reasoning of earlier answers is left out, because
 * templates do so. Items that only a server with a memory knows ("item_reference") are refused. */

/* Renames parts of text to type "text", which chat_messages_apply joins; it refuses all other parts. */
static void name_parts(const json_t *content) {
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part) {
        const json_t *type = json_object_get(part, "type");
        if (field_is_text(type, "input_text") || field_is_text(type, "output_text"))
            json_object_set_new(part, "type", json_string("text"));
    }
}

static int add_call(json_t *out, const json_t *item, size_t i, ApiError *error) {
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    json_t *arguments = json_object_get(item, "arguments"), *last = json_array_get(out, json_array_size(out) - 1);
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return api_refuse(error, 400, "invalid_type", "input",
                          "input[%zu] must have 'call_id', 'name' and 'arguments', which are strings", i);
    if (!field_is_text(json_object_get(last, "role"), "assistant")) {
        last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
        json_array_append_new(out, last);
    }
    if (!json_object_get(last, "tool_calls")) json_object_set_new(last, "tool_calls", json_array());
    json_array_append_new(json_object_get(last, "tool_calls"),
                          json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                                    "arguments", arguments));
    return 0;
}

static int add_output(json_t *out, const json_t *item, size_t i, ApiError *error) {
    json_t *id = json_object_get(item, "call_id"), *output = json_object_get(item, "output");
    if (!json_is_string(id) || (!json_is_string(output) && !json_is_array(output)))
        return api_refuse(error, 400, "invalid_type", "input", "input[%zu] must have 'call_id' and 'output'", i);
    name_parts(output);
    json_array_append_new(out, json_pack("{s:s, s:O, s:O}", "role", "tool", "tool_call_id", id, "content", output));
    return 0;
}

static int add_item(json_t *out, const json_t *item, size_t i, ApiError *error) {
    const json_t *type = json_object_get(item, "type");
    json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    if (field_is_text(type, "function_call")) return add_call(out, item, i, error);
    if (field_is_text(type, "function_call_output")) return add_output(out, item, i, error);
    if (field_is_text(type, "reasoning")) return 0;
    if ((type && !field_is_text(type, "message")) || !json_is_string(role) || !content)
        return api_refuse(error, 400, "unsupported_content", "input",
                          "input[%zu] of type '%.40s' is not supported, or is incomplete", i,
                          json_is_string(type) ? json_string_value(type) : "message");
    name_parts(content);
    json_array_append_new(out, json_pack("{s:O, s:O}", "role", role, "content", content));
    return 0;
}

static int convert_items(const ResponsesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array();
    int status = 0;
    if (!json_is_string(in->input) && json_array_size(in->input) == 0)
        return api_refuse(error, 400, "invalid_type", "input", "'input' must be a string or a list of items");
    if (in->instructions)
        json_array_append_new(out, json_pack("{s:s, s:s}", "role", "system", "content", in->instructions));
    if (json_is_string(in->input))
        json_array_append_new(out, json_pack("{s:s, s:O}", "role", "user", "content", in->input));
    for (size_t i = 0; i < json_array_size(in->input) && !status; i++)
        status = add_item(out, json_array_get(in->input, i), i, error);
    chat->messages = out;
    return status;
}

/* Turns {"type": "function", "name", ...} into {"type": "function", "function": {"name", ...}}. */
static int convert_tools(const ResponsesInput *in, ChatMessages *chat, ApiError *error) {
    json_t *out = json_array(), *strict = json_array();
    if (in->tools && !json_is_array(in->tools))
        return api_refuse(error, 400, "invalid_type", "tools", "'tools' must be a list");
    for (size_t i = 0; i < json_array_size(in->tools); i++) {
        const json_t *tool = json_array_get(in->tools, i);
        json_t *name = json_object_get(tool, "name");
        if (!field_is_text(json_object_get(tool, "type"), "function") || !json_is_string(name))
            return api_refuse(error, 400, "unsupported_parameter", "tools",
                              "tools[%zu] must be of type 'function' and have a name", i);
        json_array_append_new(out, json_pack("{s:s, s:{s:O, s:O*, s:O*}}", "type", "function", "function", "name", name,
                                             "description", json_object_get(tool, "description"), "parameters",
                                             json_object_get(tool, "parameters")));
        json_array_append_new(strict, json_boolean(json_is_true(json_object_get(tool, "strict"))));
    }
    chat->tools = out;
    chat->strict_tools = strict; /* not in the tools themselves, which the template may write out */
    return 0;
}

/* Fills in messages, tools and reasoning_effort of *chat. It runs within json_memory_limit, which owns what it
 * makes. */
static int convert_input(const ResponsesInput *in, ChatMessages *chat, ApiError *error) {
    chat->reasoning_effort = json_string_value(json_object_get(in->reasoning, "effort"));
    if (convert_items(in, chat, error)) return -1;
    return convert_tools(in, chat, error);
}

static int read_logprobs(Plan *plan, const ResponsesFields *f, ApiError *error) {
    static const char wanted[] = "message.output_text.logprobs";
    bool wants = f->top_logprobs > 0;
    if (f->include && !json_is_array(f->include))
        return api_refuse(error, 400, "invalid_type", "include", "'include' must be a list");
    for (size_t i = 0; i < json_array_size(f->include); i++) {
        const char *what = json_string_value(json_array_get(f->include, i));
        if (what && strcmp(what, "reasoning.encrypted_content") == 0) continue; /* reasoning is in the answer as text */
        if (!what || strcmp(what, wanted) != 0)
            return api_refuse(error, 400, "unsupported_parameter", "include",
                              "'include': '%.60s' is not supported; '%s' is", what ? what : "?", wanted);
        wants = true;
    }
    if (wants) logprobs_want(plan, f->top_logprobs);
    return 0;
}

/* Refuses members of an object such as {"effort": ..., "summary": ...} that are not in the list. */
static int check_members(const json_t *object, const char *field, const char *const *members, ApiError *error) {
    const char *name;
    json_t *value;
    if (object && !json_is_object(object))
        return api_refuse(error, 400, "invalid_type", field, "'%s' must be an object", field);
    json_object_foreach((json_t *)(uintptr_t)object, name, value) {
        bool is_known = json_is_null(value);
        for (const char *const *m = members; *m && !is_known; m++) is_known = strcmp(*m, name) == 0;
        bool is_neutral = strcmp(name, "verbosity") != 0 || json_is_null(value) || field_is_text(value, "medium");
        bool is_typed = strcmp(name, "effort") != 0 || json_is_null(value) || json_is_string(value);
        if (!is_known || !is_neutral || !is_typed)
            return api_refuse(error, 400, "unsupported_parameter", field,
                              "'%s.%.40s' is not supported, or has a value of the wrong type", field, name);
    }
    return 0;
}

/* A summary of the reasoning is ignored: the reasoning itself is in the answer. */
static int check_objects(const ResponsesFields *f, ApiError *error) {
    static const char *const text[] = {"format", "verbosity", NULL};
    static const char *const reasoning[] = {"effort", "summary", "generate_summary", NULL};
    if (check_members(f->text, "text", text, error)) return -1;
    return check_members(f->input.reasoning, "reasoning", reasoning, error);
}

static int prepare(ApiCall *call, const json_t *body) {
    ResponsesFields f = {.parallel_calls = true};
    ChatMessages chat = {.messages = NULL};
    plan_fields_default(&f.plan);
    api_call_name(call, "resp_");
    if (fields_read(tables, body, &f, call) || check_objects(&f, &call->error)) return -1;
    f.plan.constraint.format = json_object_get(f.text, "format");
    f.plan.constraint.format_name = "text.format";
    chat.variables = f.variables;
    chat.tool_choice = f.tool_choice;
    chat.has_one_call = !f.parallel_calls;
    if (convert_input(&f.input, &chat, &call->error)) return -1;
    if (plan_begin(&call->plan, call->service, &f.plan, f.max_output_tokens, &call->error)) return -1;
    if (read_logprobs(&call->plan, &f, &call->error)) return -1;
    return answers_prepare(call, &chat);
}

static int count_tokens(ApiCall *call, const json_t *body) {
    return prepare(call, body) ? -1 : openai_count_tokens(call);
}

/* ---- items ----------------------------------------------------------------------------------------------- */

enum { ITEM_ID_SIZE = 64 };

static void item_id(const Choice *c, const AnswerItem *item, char id[ITEM_ID_SIZE]) {
    static const char *const prefixes[] = {[ANSWER_TEXT] = "msg", [ANSWER_REASONING] = "rs", [ANSWER_CALL] = "fc"};
    const char *own = strchr(c->call->id, '_');
    snprintf(id, ITEM_ID_SIZE, "%s%s%d", prefixes[item->kind], own ? own : "_", item->index);
}

/* Writes a part of an item with n bytes of text, which may be 0. */
static void write_part(JsonOut *out, const Choice *c, const AnswerItem *item, const char *text, size_t n) {
    json_out_mark(out, '{');
    json_out_key_text(out, "type", item->kind == ANSWER_TEXT ? "output_text" : "reasoning_text");
    json_out_key(out, "text");
    json_out_bytes(out, text, n);
    if (item->kind == ANSWER_TEXT) {
        json_out_open(out, "annotations", '[');
        json_out_mark(out, ']');
        json_out_open(out, "logprobs", '[');
        logprobs_write_list(out, c->call->plan.model, n ? answers_logprobs(c, item) : NULL, false);
        json_out_mark(out, ']');
    }
    json_out_mark(out, '}');
}

/* Writes an item. If status is "in_progress", it has no text yet. */
static void write_item(JsonOut *out, const Choice *c, const AnswerItem *item, const char *status) {
    static const char *const types[] =
        {[ANSWER_TEXT] = "message", [ANSWER_REASONING] = "reasoning", [ANSWER_CALL] = "function_call"};
    char id[ITEM_ID_SIZE], call_id[ANSWERS_ID_SIZE];
    bool has_text = strcmp(status, "in_progress") != 0;
    item_id(c, item, id);
    json_out_mark(out, '{');
    json_out_key_text(out, "id", id);
    json_out_key_text(out, "type", types[item->kind]);
    json_out_key_text(out, "status", status);
    if (item->kind == ANSWER_CALL) {
        answers_call_id(c, item, call_id);
        json_out_key_text(out, "call_id", call_id);
        json_out_key_text(out, "name", item->name);
        json_out_key(out, "arguments");
        json_out_bytes(out, has_text ? item->text.data : "", has_text ? item->text.n : 0);
    } else {
        if (item->kind == ANSWER_TEXT) json_out_key_text(out, "role", "assistant");
        else {
            json_out_open(out, "summary", '[');
            json_out_mark(out, ']');
        }
        json_out_open(out, "content", '[');
        if (has_text) write_part(out, c, item, item->text.data, item->text.n);
        json_out_mark(out, ']');
    }
    json_out_mark(out, '}');
}

/* ---- the response ---------------------------------------------------------------------------------------- */

static bool is_cut(const Choice *c) {
    return choice_finish(c) == FR_FINISH_LENGTH || choice_finish(c) == FR_FINISH_CONTEXT;
}

/* Returns the status of an item. All items before the last one are complete. */
static const char *item_status(const Choice *c, const AnswerItem *item) {
    return is_cut(c) && item->index == answers_of(c)->n_items - 1 ? "incomplete" : "completed";
}

static void write_usage(JsonOut *out, const ApiCall *call) {
    fr_stats s = openai_sum(call);
    json_out_open(out, "usage", '{');
    json_out_key_int(out, "input_tokens", s.n_prompt);
    json_out_open(out, "input_tokens_details", '{');
    json_out_key_int(out, "cached_tokens", s.n_prompt_shared);
    json_out_mark(out, '}');
    json_out_key_int(out, "output_tokens", s.n_generated);
    json_out_open(out, "output_tokens_details", '{');
    json_out_key_int(out, "reasoning_tokens", openai_count_reasoning(call));
    json_out_mark(out, '}');
    json_out_key_int(out, "total_tokens", s.n_prompt + s.n_generated);
    json_out_mark(out, '}');
}

static void write_outcome(JsonOut *out, const Choice *c, bool is_done) {
    json_out_key_text(out, "status", !is_done ? "in_progress" : is_cut(c) ? "incomplete" : "completed");
    json_out_key_null(out, "error");
    if (is_done && is_cut(c)) {
        json_out_open(out, "incomplete_details", '{');
        json_out_key_text(out, "reason", "max_output_tokens");
        json_out_mark(out, '}');
    } else json_out_key_null(out, "incomplete_details");
    json_out_open(out, "output", '[');
    for (int i = 0; is_done && i < answers_of(c)->n_items; i++)
        write_item(out, c, &answers_of(c)->items[i], item_status(c, &answers_of(c)->items[i]));
    json_out_mark(out, ']');
}

static void write_response(JsonOut *out, const ApiCall *call, bool is_done) {
    const Plan *plan = &call->plan;
    json_out_mark(out, '{');
    json_out_key_text(out, "id", call->id);
    json_out_key_text(out, "object", "response");
    json_out_key_int(out, "created_at", call->created_s);
    write_outcome(out, &call->choices[0], is_done);
    json_out_key_text(out, "model", plan->model->name);
    json_out_key(out, "max_output_tokens");
    if (plan->max_tokens) json_out_int(out, plan->max_tokens);
    else json_out_null(out);
    json_out_key_null(out, "instructions");
    json_out_key_null(out, "previous_response_id");
    json_out_key_bool(out, "parallel_tool_calls", !((const Answers *)call->own)->has_one_call);
    json_out_key_bool(out, "store", false);
    json_out_key_real(out, "temperature", plan->sampling.temperature);
    json_out_key_real(out, "top_p", plan->sampling.top_p);
    json_out_key_text(out, "tool_choice", answers_are_forced(call) ? "required" : "auto");
    json_out_open(out, "tools", '[');
    json_out_mark(out, ']');
    json_out_key_text(out, "truncation", "disabled");
    json_out_open(out, "metadata", '{');
    json_out_mark(out, '}');
    if (is_done) {
        write_usage(out, call);
        openai_write_extras(out, call);
    } else json_out_key_null(out, "usage");
    json_out_mark(out, '}');
}

static void write_answer(JsonOut *out, const ApiCall *call) {
    if (!answers_end(&call->choices[0], NULL, NULL)) out->failed = true;
    write_response(out, call, true);
}

/* ---- events ---------------------------------------------------------------------------------------------- */

static JsonOut begin_event(Buf *out, const ApiCall *call, const char *type) {
    Answers *a = call->own;
    JsonOut j = answers_begin_event(out, type);
    json_out_key_int(&j, "sequence_number", a->n_events++);
    return j;
}

/* progress: the choice whose reading of the prompt is reported; NULL: none. */
static void stream_response(Buf *out, const ApiCall *call, const char *type, bool is_done, const Choice *progress) {
    JsonOut j = begin_event(out, call, type);
    json_out_key(&j, "response");
    write_response(&j, call, is_done);
    if (progress) openai_write_progress(&j, progress);
    else if (is_done) openai_write_timings(&j, call); /* here llama.cpp's clients look for them */
    answers_end_event(&j);
}

static void stream_progress(Buf *out, const ApiCall *call, const Choice *c) {
    stream_response(out, call, "response.in_progress", false, c);
}

static void begin_stream(Buf *out, const ApiCall *call) {
    stream_response(out, call, "response.created", false, NULL);
    stream_response(out, call, "response.in_progress", false, NULL);
}

typedef struct ItemStream {
    Buf *out;
    const Choice *choice;
} ItemStream;

static void stream_whole(const ItemStream *s, const AnswerItem *item, const char *type, const char *status) {
    JsonOut j = begin_event(s->out, s->choice->call, type);
    json_out_key_int(&j, "output_index", item->index);
    json_out_key(&j, "item");
    write_item(&j, s->choice, item, status);
    answers_end_event(&j);
}

/* Begins an event about the text of an item, up to that text. */
static JsonOut begin_text(const ItemStream *s, const AnswerItem *item, const char *type) {
    char id[ITEM_ID_SIZE];
    JsonOut j = begin_event(s->out, s->choice->call, type);
    item_id(s->choice, item, id);
    json_out_key_text(&j, "item_id", id);
    json_out_key_int(&j, "output_index", item->index);
    if (item->kind != ANSWER_CALL) json_out_key_int(&j, "content_index", 0);
    return j;
}

static void stream_part(const ItemStream *s, const AnswerItem *item, const char *type, size_t n) {
    if (item->kind == ANSWER_CALL) return;
    JsonOut j = begin_text(s, item, type);
    json_out_key(&j, "part");
    write_part(&j, s->choice, item, item->text.data, n);
    answers_end_event(&j);
}

static void stream_piece(const ItemStream *s, const AnswerItem *item, bool is_done, const char *bytes, size_t n) {
    static const char *const types[][2] = {
        [ANSWER_TEXT] = {"response.output_text.delta", "response.output_text.done"},
        [ANSWER_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done"},
        [ANSWER_CALL] = {"response.function_call_arguments.delta", "response.function_call_arguments.done"}};
    JsonOut j = begin_text(s, item, types[item->kind][is_done]);
    if (is_done && item->kind == ANSWER_CALL) json_out_key_text(&j, "name", item->name);
    json_out_key(&j, !is_done ? "delta" : item->kind == ANSWER_CALL ? "arguments" : "text");
    json_out_bytes(&j, bytes, n);
    if (item->kind == ANSWER_TEXT) {
        json_out_open(&j, "logprobs", '[');
        logprobs_write_list(&j, s->choice->call->plan.model,
                            is_done ? answers_logprobs(s->choice, item) : answers_fresh_logprobs(s->choice), false);
        json_out_mark(&j, ']');
    }
    if (!is_done && s->choice->call->plan.shows_timings) openai_write_timings(&j, s->choice->call);
    answers_end_event(&j);
}

static void stream_item(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    const ItemStream *s = user;
    if (event == ANSWER_GROWS) {
        stream_piece(s, item, false, bytes, n);
    } else if (event == ANSWER_BEGINS) {
        stream_whole(s, item, "response.output_item.added", "in_progress");
        stream_part(s, item, "response.content_part.added", 0);
    } else {
        stream_piece(s, item, true, item->text.data, item->text.n);
        stream_part(s, item, "response.content_part.done", item->text.n);
        stream_whole(s, item, "response.output_item.done", item_status(s->choice, item));
    }
}

static void stream_text(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    ItemStream s = {out, c};
    (void)call;
    (void)answers_feed(c, fresh, stream_item, &s); /* if memory runs out, the reader reports nothing more */
}

static void end_choice(Buf *out, const ApiCall *call, const Choice *c) {
    ItemStream s = {out, c};
    (void)answers_end(c, stream_item, &s);
    stream_response(out, call, is_cut(c) ? "response.incomplete" : "response.completed", true, NULL);
}

static void stream_error(Buf *out, const ApiError *e) {
    JsonOut j = answers_begin_event(out, "error");
    json_out_key_text(&j, "code", e->code ? e->code : "server_error");
    json_out_key_text(&j, "message", e->message);
    json_out_key_text(&j, "param", e->param[0] ? e->param : NULL);
    answers_end_event(&j);
}

static const ApiFormat format = {
    .write_error = openai_write_error,
    .write_answer = write_answer,
    .keep = answers_keep,
    .begin_stream = begin_stream,
    .stream_text = stream_text,
    .stream_progress = stream_progress,
    .end_choice = end_choice,
    .stream_error = stream_error,
    .count_reasoning = answers_count_reasoning,
};

const Endpoint responses_endpoints[] = {
    {.method = "POST", .path = "/v1/responses", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/responses", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/v1/responses/input_tokens", .format = &format, .prepare = count_tokens},
    {.method = "POST", .path = "/responses/input_tokens", .format = &format, .prepare = count_tokens},
    {.path = NULL},
};

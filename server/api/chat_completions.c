/* chat_completions.c - POST /v1/chat/completions. */
#include "cli/answer_reader.h"
#include "server/api/answers.h"
#include "server/api/openai_format.h"

#include <stdlib.h>
#include <string.h>

typedef struct ChatFields {
    PlanFields plan;
    ChatMessages chat;
    bool logprobs, parallel_calls;
    const json_t *begins_answer, *continues, *parses_calls;
    int64_t top_logprobs, max_reasoning; /* max_reasoning: -1: no budget */
    const char *reasoning_format;
} ChatFields;

#define C(kind, field, ...) FIELD(ChatFields, kind, field, __VA_ARGS__)
static const Field chat_fields[] = {
    {.name = "messages", C(ANY, chat.messages)},
    {.name = "chat_template_kwargs", C(ANY, chat.variables)},
    {.name = "add_generation_prompt", C(ANY, begins_answer)},
    {.name = "continue_final_message", C(ANY, continues)},
    {.name = "reasoning_budget", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "reasoning_budget_tokens", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "thinking_budget_tokens", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "thinking_token_budget", C(INT, max_reasoning, .min = -1, .max = INT32_MAX)},
    {.name = "max_tokens", C(INT, plan.max_tokens, .min = 1, .max = INT32_MAX, .or_minus_1 = true)},
    {.name = "modalities", C(ANY, chat.modalities)},
    {.name = "tools", C(ANY, chat.tools)},
    {.name = "tool_choice", C(ANY, chat.tool_choice)},
    {.name = "parse_tool_calls", C(ANY, parses_calls)},
    {.name = "parallel_tool_calls", C(BOOL, parallel_calls)},
    {.name = "logprobs", C(BOOL, logprobs)},
    {.name = "top_logprobs", C(INT, top_logprobs, .min = 0, .max = FR_MAX_TOP_LOGPROBS)},
    {.name = "reasoning_format", C(TEXT, reasoning_format)},
    {.name = "reasoning_effort", C(TEXT, chat.reasoning_effort)},
    {.name = "add_special_tokens", .kind = FIELD_NOTED}, /* the template writes them */
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

/* Reads "add_generation_prompt" and "continue_final_message", which may also say which part of the last message is
 * continued: "content" or "reasoning_content". Both must not be true. */
static int check_continuation(const ChatFields *f, bool *continues, ApiError *error) {
    const json_t *how = f->continues, *begins = f->begins_answer;
    bool by_name = field_is_text(how, "content") || field_is_text(how, "reasoning_content");
    *continues = by_name || json_is_true(how);
    if (how && !by_name && !json_is_boolean(how))
        return api_refuse(error, 400, "invalid_type", "continue_final_message",
                          "'continue_final_message' must be true, false, \"content\" or \"reasoning_content\"");
    if (begins && !json_is_boolean(begins))
        return api_refuse(error, 400, "invalid_type", "add_generation_prompt",
                          "'add_generation_prompt' must be true or false");
    if (!*continues && json_is_false(begins))
        return api_refuse(error, 400, "unsupported_parameter", "add_generation_prompt",
                          "'add_generation_prompt': false needs 'continue_final_message': true");
    if (*continues && json_is_true(begins))
        return api_refuse(error, 400, "invalid_value", "continue_final_message",
                          "'continue_final_message' and 'add_generation_prompt' cannot both be true");
    return 0;
}

/* continue_final_message: the last message is the beginning of the answer. If it has no text, its reasoning is. */
static int read_continuation(ChatFields *f, ApiError *error) {
    size_t n = json_array_size(f->chat.messages);
    const json_t *last = n > 0 ? json_array_get(f->chat.messages, n - 1) : NULL,
                 *content = json_object_get(last, "content"), *reasoning = json_object_get(last, "reasoning_content");
    bool continues;
    if (check_continuation(f, &continues, error)) return -1;
    if (!continues) return 0;
    if (n < 2 || !field_is_text(json_object_get(last, "role"), "assistant") || !json_is_string(content) ||
        json_array_size(json_object_get(last, "tool_calls")) > 0)
        return api_refuse(error, 400, "invalid_value", "continue_final_message",
                          "'continue_final_message' needs a last message of the role 'assistant' with a text and no "
                          "calls, after others");
    f->chat.prefill = json_string_value(content);
    if (json_is_string(reasoning) && json_string_length(reasoning) > 0) {
        f->chat.prefill_reasoning = json_string_value(reasoning);
        if (field_is_text(f->continues, "reasoning_content") || field_is_text(content, "")) f->chat.prefill = NULL;
    }
    json_incref((json_t *)(uintptr_t)last); /* the memory of all values is freed with that of the body */
    return json_array_remove((json_t *)(uintptr_t)f->chat.messages, n - 1);
}

/* Refuses calls that are left in the text. Without tools, llama.cpp's clients may send false. */
static int check_calls(const ChatFields *f, ApiError *error) {
    if (!json_is_false(f->parses_calls) || !chat_messages_has_tools(&f->chat)) return 0;
    return api_refuse(error, 400, "unsupported_parameter", "parse_tool_calls",
                      "'parse_tool_calls': false is not supported with tools");
}

static int prepare(ApiCall *call, const json_t *body) {
    ChatFields f = {.parallel_calls = true, .max_reasoning = -1};
    plan_fields_default(&f.plan);
    int status = fields_read(tables, body, &f, call);
    if (!status) status = plan_begin(&call->plan, call->service, &f.plan, f.plan.max_tokens, &call->error);
    if (!status) status = read_logprobs(&call->plan, &f, &call->error);
    if (!status) status = read_reasoning_format(&f, &call->error);
    if (!status) status = check_calls(&f, &call->error);
    if (!status) status = read_continuation(&f, &call->error);
    f.chat.has_budget = f.max_reasoning >= 0;
    f.chat.max_reasoning = f.max_reasoning;
    if (f.chat.reasoning_effort && strcmp(f.chat.reasoning_effort, "none") == 0) {
        f.chat.reasoning_effort = NULL;
        f.chat.thinks = -1;
    }
    f.chat.has_one_call = !f.parallel_calls;
    if (!status) status = answers_prepare(call, &f.chat);
    api_call_name(call, "chatcmpl-");
    return status;
}

static int prepare_render(ApiCall *call, const json_t *body) {
    return prepare(call, body) ? -1 : openai_render(call, false);
}

static int count_tokens(ApiCall *call, const json_t *body) {
    return prepare(call, body) ? -1 : openai_count_tokens(call);
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
    openai_write_event_usage(j, call);
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
    {.method = "POST", .path = "/v1/chat/completions/input_tokens", .format = &format, .prepare = count_tokens},
    {.method = "POST", .path = "/chat/completions/input_tokens", .format = &format, .prepare = count_tokens},
    {.path = NULL},
};

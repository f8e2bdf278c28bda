/* ollama.c - the API of Ollama: POST /api/chat, /api/generate, /api/embed and /api/embeddings.
 *
 * A stream is one JSON object on each line. Streams are the default. A call of a tool is written when its arguments are
 * complete, and these are a value, not a text. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct OllamaFields {
    PlanFields plan;
    const json_t *messages, *tools, *format, *options, *think, *input, *prompt;
    const char *system, *suffix;
    int64_t top_logprobs;
    bool raw, logprobs;
} OllamaFields;

#define O(kind, field, ...) FIELD(OllamaFields, kind, field, __VA_ARGS__)
#define OLLAMA_COMMON \
    {.name = "model", O(TEXT, plan.model)}, {.name = "name", O(TEXT, plan.model)}, \
        {.name = "stream", O(BOOL, plan.stream)}, {.name = "options", O(ANY, options)}, \
        {.name = "format", O(ANY, format)}, {.name = "think", O(ANY, think)}, {.name = "draft", O(ANY, plan.draft)}, \
        {.name = "keep_alive", .kind = FIELD_IGNORED}, {.name = "images", .kind = FIELD_NEUTRAL}, \
        {.name = "template", .kind = FIELD_NEUTRAL}, {.name = "context", .kind = FIELD_NEUTRAL}, \
        {.name = "shift", .kind = FIELD_IGNORED}, {.name = "truncate", .kind = FIELD_IGNORED}, \
        {.name = "logprobs", O(BOOL, logprobs)}, { \
        .name = "top_logprobs", O(INT, top_logprobs, .min = 0, .max = FR_MAX_TOP_LOGPROBS) \
    }

static const Field chat_fields[] = {
    OLLAMA_COMMON, {.name = "messages", O(ANY, messages)}, {.name = "tools", O(ANY, tools)}, {.name = NULL}};
static const Field generate_fields[] = {OLLAMA_COMMON,
                                        {.name = "prompt", O(ANY, prompt)},
                                        {.name = "system", O(TEXT, system)},
                                        {.name = "suffix", O(TEXT, suffix)},
                                        {.name = "raw", O(BOOL, raw)},
                                        {.name = "width", .kind = FIELD_NEUTRAL}, /* of images */
                                        {.name = "height", .kind = FIELD_NEUTRAL},
                                        {.name = "steps", .kind = FIELD_NEUTRAL},
                                        {.name = NULL}};
static const Field embed_fields[] = {OLLAMA_COMMON,
                                     {.name = "input", O(ANY, input)},
                                     {.name = "prompt", O(ANY, input)},
                                     {.name = "dimensions", .kind = FIELD_NEUTRAL},
                                     {.name = NULL}};
/* The members of "options"; those about the machine have no influence on a text. */
static const Field option_fields[] = {
    {.name = "num_predict", O(INT, plan.max_tokens, .min = -2, .max = INT32_MAX)},
    {.name = "num_ctx", .kind = FIELD_IGNORED},
    {.name = "num_keep", .kind = FIELD_IGNORED},
    {.name = "num_batch", .kind = FIELD_IGNORED},
    {.name = "num_gpu", .kind = FIELD_IGNORED},
    {.name = "main_gpu", .kind = FIELD_IGNORED},
    {.name = "num_thread", .kind = FIELD_IGNORED},
    {.name = "use_mmap", .kind = FIELD_IGNORED},
    {.name = "use_mlock", .kind = FIELD_IGNORED},
    {.name = "low_vram", .kind = FIELD_IGNORED},
    {.name = "f16_kv", .kind = FIELD_IGNORED},
    {.name = "numa", .kind = FIELD_IGNORED},
    {.name = "logits_all", .kind = FIELD_IGNORED},
    {.name = "embedding_only", .kind = FIELD_IGNORED},
    {.name = "vocab_only", .kind = FIELD_NEUTRAL},
    {.name = "penalize_newline", .kind = FIELD_IGNORED}, /* Ollama ignores it, too */
    {.name = NULL},
};
static const Field *const chat_tables[] = {chat_fields, NULL}, *const generate_tables[] = {generate_fields, NULL},
                          *const embed_tables[] = {embed_fields, NULL},
                          *const option_tables[] = {option_fields, plan_fields, plan_other_fields, NULL};

/* ---- from a body to a plan --------------------------------------------------------------------------------- */

/* Sets the defaults of Ollama, and reads the body and its options. */
static int read_body(ApiCall *call, const json_t *body, const Field *const *tables, OllamaFields *f) {
    *f = (OllamaFields){.messages = NULL};
    plan_fields_default(&f->plan);
    f->plan.temperature = 0.8;
    f->plan.top_k = 40;
    f->plan.top_p = 0.9;
    f->plan.repeat_penalty = 1.1;
    f->plan.stream = true;
    if (fields_read(tables, body, f, call)) return -1;
    if (f->options && !json_is_object(f->options))
        return api_refuse(&call->error, 400, "invalid_type", "options", "'options' must be an object");
    if (f->options && fields_read(option_tables, f->options, f, call)) return -1;
    if (f->plan.max_tokens < 0) f->plan.max_tokens = 0; /* until the context is full */
    if (field_is_text(f->format, "json")) f->plan.constraint.format = json_pack("{s:s}", "type", "json_object");
    else if (json_is_object(f->format)) f->plan.constraint.json_schema = f->format;
    else if (f->format && !field_is_text(f->format, ""))
        return api_refuse(&call->error, 400, "invalid_value", "format", "'format' must be \"json\" or a JSON schema");
    return 0;
}

/* Finishes the plan except its prompt. */
static int begin_plan(ApiCall *call, const OllamaFields *f) {
    if (plan_begin(&call->plan, call->service, &f->plan, f->plan.max_tokens, &call->error)) return -1;
    if (f->top_logprobs && !f->logprobs)
        return api_refuse(&call->error, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (f->logprobs) logprobs_want(&call->plan, f->top_logprobs);
    return 0;
}

/* "think" is a variable of the template: true or false, or how much. */
static int read_think(const OllamaFields *f, ChatMessages *chat, ApiError *error) {
    if (!f->think) return 0;
    if (!json_is_boolean(f->think) && !json_is_string(f->think))
        return api_refuse(error, 400, "invalid_type", "think",
                          "'think' must be true, false, \"low\", \"medium\" or \"high\"");
    chat->reasoning_effort = json_string_value(f->think);
    chat->thinks = json_is_false(f->think) ? -1 : 1;
    return 0;
}

/* Turns a message into the form of chat templates. */
static int convert_message(json_t *message, size_t i, ApiError *error) {
    json_t *call, *thinking = json_object_get(message, "thinking"), *name = json_object_get(message, "tool_name");
    size_t k;
    if (json_array_size(json_object_get(message, "images")) > 0)
        return api_refuse(error, 400, "unsupported_content", "messages",
                          "messages[%zu] has images; this model reads text", i);
    if (!json_object_get(message, "content")) json_object_set_new(message, "content", json_string(""));
    if (thinking) json_object_set(message, "reasoning_content", thinking);
    if (name) json_object_set(message, "name", name);
    json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
        char id[16];
        snprintf(id, sizeof id, "call%05zu", (i * 100 + k) % 100000);
        json_object_set_new(call, "type", json_string("function"));
        if (!json_object_get(call, "id")) json_object_set_new(call, "id", json_string(id));
    }
    return 0;
}

static int convert_messages(const OllamaFields *f, ChatMessages *chat, ApiError *error) {
    size_t i;
    json_t *message;
    int status = read_think(f, chat, error);
    json_array_foreach(f->messages, i, message) {
        if (!status && json_is_object(message)) status = convert_message(message, i, error);
    }
    chat->messages = f->messages;
    chat->tools = f->tools;
    return status;
}

static void write_time(JsonOut *out) {
    char text[32];
    struct tm tm;
    time_t now = time(NULL);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000Z", gmtime_r(&now, &tm));
    json_out_key_text(out, "created_at", text);
}

static bool is_chat(const ApiCall *call) { return strcmp(call->endpoint->path, "/api/chat") == 0; }

static void write_head(JsonOut *out, const ApiCall *call, const char *model) {
    (void)call;
    json_out_mark(out, '{');
    json_out_key_text(out, "model", model);
    write_time(out);
}

/* A request without a prompt asks to load the model, which is loaded. */
static int answer_loaded(ApiCall *call, const OllamaFields *f) {
    const ServedModel *m = plan_find_model(call->service, f->plan.model, &call->error);
    if (!m) return -1;
    JsonOut out = json_out_begin(&call->reply);
    write_head(&out, call, m->name);
    if (is_chat(call)) {
        json_out_open(&out, "message", '{');
        json_out_key_text(&out, "role", "assistant");
        json_out_key_text(&out, "content", "");
        json_out_mark(&out, '}');
    } else json_out_key_text(&out, "response", "");
    json_out_key_bool(&out, "done", true);
    json_out_key_text(&out, "done_reason", "load");
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

static int prepare_chat(ApiCall *call, const json_t *body) {
    OllamaFields f;
    ChatMessages chat = {.messages = NULL};
    api_call_name(call, "ollama-");
    if (read_body(call, body, chat_tables, &f)) return -1;
    if (!f.messages || (json_is_array(f.messages) && json_array_size(f.messages) == 0)) return answer_loaded(call, &f);
    if (convert_messages(&f, &chat, &call->error)) return -1;
    if (begin_plan(call, &f)) return -1;
    return answers_prepare(call, &chat);
}

static int prepare_generate(ApiCall *call, const json_t *body) {
    OllamaFields f;
    ChatMessages chat = {.messages = NULL};
    api_call_name(call, "ollama-");
    if (read_body(call, body, generate_tables, &f)) return -1;
    if (!f.prompt || field_is_text(f.prompt, "")) return answer_loaded(call, &f);
    if (!json_is_string(f.prompt))
        return api_refuse(&call->error, 400, "invalid_type", "prompt", "'prompt' must be a string");
    if (begin_plan(call, &f)) return -1;
    if (f.suffix && *f.suffix) {
        const FillText fill = {.prefix = json_string_value(f.prompt), .suffix = f.suffix};
        return infill_add_prompt(call, &fill) ? -1 : answers_prepare_text(call);
    }
    if (f.raw) {
        if (plan_add_prompts(&call->plan, f.prompt, "prompt", false, FR_TOKENIZE_PROMPT | FR_TOKENIZE_SPECIAL,
                             &call->error))
            return -1;
        return answers_prepare_text(call);
    }
    json_t *messages = json_array();
    if (f.system && *f.system)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", f.system));
    json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", f.prompt));
    f.messages = messages;
    return convert_messages(&f, &chat, &call->error) ? -1 : answers_prepare(call, &chat);
}

/* ---- answers ----------------------------------------------------------------------------------------------- */

static void write_error(JsonOut *out, const ApiError *e) {
    json_out_mark(out, '{');
    json_out_key_text(out, "error", e->message);
    json_out_mark(out, '}');
}

static void stream_error(Buf *out, const ApiError *e) {
    JsonOut j = json_out_begin(out);
    write_error(&j, e);
    (void)buf_append(out, "\n", 1);
}

static void write_calls(JsonOut *out, const AnswerItem *items, int n) {
    json_out_open(out, "tool_calls", '[');
    for (int i = 0; i < n; i++) {
        if (items[i].kind != ANSWER_CALL) continue;
        json_error_t why;
        json_t *arguments = json_loadb(items[i].text.data, items[i].text.n, 0, &why);
        json_out_mark(out, '{');
        json_out_open(out, "function", '{');
        json_out_key_int(out, "index", items[i].i_call);
        json_out_key_text(out, "name", items[i].name);
        json_out_key(out, "arguments");
        if (json_is_object(arguments)) json_out_raw(out, items[i].text.data, items[i].text.n);
        else json_out_raw(out, "{}", 2);
        json_out_mark(out, '}');
        json_out_mark(out, '}');
        json_decref(arguments);
    }
    json_out_mark(out, ']');
}

/* Opens "message": {"role": ...; a text of /api/generate is not in a message. */
static void open_message(JsonOut *out, const ApiCall *call) {
    if (!is_chat(call)) return;
    json_out_open(out, "message", '{');
    json_out_key_text(out, "role", "assistant");
}

static void close_message(JsonOut *out, const ApiCall *call) {
    if (is_chat(call)) json_out_mark(out, '}');
}

static const char *text_key(const ApiCall *call) { return is_chat(call) ? "content" : "response"; }

static void write_nanoseconds(JsonOut *out, const char *key, double seconds) {
    json_out_key_int(out, key, (int64_t)(seconds * 1e9));
}

static void write_end(JsonOut *out, const ApiCall *call, const Choice *c) {
    const GenerationResult *r = c->result;
    json_out_key_bool(out, "done", true);
    json_out_key_text(out, "done_reason", openai_finish_reason(choice_finish(c)));
    write_nanoseconds(out, "total_duration", r->ended_s - call->started_s);
    json_out_key_int(out, "load_duration", 0);
    json_out_key_int(out, "prompt_eval_count", r->stats.n_prompt);
    write_nanoseconds(out, "prompt_eval_duration", r->stats.prefill_s);
    json_out_key_int(out, "eval_count", r->stats.n_generated);
    write_nanoseconds(out, "eval_duration", r->stats.decode_s);
    openai_write_warnings(out, call);
    json_out_mark(out, '}');
}

static void write_logprobs(JsonOut *out, const Choice *c) {
    const AnswerReader *r = answers_of(c);
    if (!c->call->plan.wants_logprobs) return;
    json_out_open(out, "logprobs", '[');
    for (int i = 0; i < r->n_items; i++)
        logprobs_write_list(out, c->call->plan.model, answers_logprobs(c, &r->items[i]), false);
    json_out_mark(out, ']');
}

static void write_answer(JsonOut *out, const ApiCall *call) {
    const Choice *c = &call->choices[0];
    if (!answers_end(c, NULL, NULL)) out->failed = true;
    const AnswerReader *r = answers_of(c);
    write_head(out, call, call->plan.model->name);
    open_message(out, call);
    if (!answers_write_texts(out, r, ANSWER_TEXT, text_key(call))) json_out_key_text(out, text_key(call), "");
    (void)answers_write_texts(out, r, ANSWER_REASONING, "thinking");
    if (r->n_calls > 0) write_calls(out, r->items, r->n_items);
    close_message(out, call);
    write_logprobs(out, c);
    write_end(out, call, c);
}

typedef struct LineStream {
    Buf *out;
    const Choice *choice;
} LineStream;

/* Writes the log-probabilities of the tokens by which an item of text has just grown. */
static void write_fresh_logprobs(JsonOut *out, const Choice *c) {
    if (!c->call->plan.wants_logprobs) return;
    json_out_open(out, "logprobs", '[');
    logprobs_write_list(out, c->call->plan.model, answers_fresh_logprobs(c), false);
    json_out_mark(out, ']');
}

static void stream_item(void *user, AnswerEvent event, const AnswerItem *item, const char *bytes, size_t n) {
    const LineStream *s = user;
    const ApiCall *call = s->choice->call;
    bool is_call = item->kind == ANSWER_CALL;
    if (event != (is_call ? ANSWER_ENDS : ANSWER_GROWS)) return;
    JsonOut j = json_out_begin(s->out);
    write_head(&j, call, call->plan.model->name);
    open_message(&j, call);
    json_out_key(&j, text_key(call));
    json_out_bytes(&j, item->kind == ANSWER_TEXT ? bytes : "", item->kind == ANSWER_TEXT ? n : 0);
    if (item->kind == ANSWER_REASONING) {
        json_out_key(&j, "thinking");
        json_out_bytes(&j, bytes, n);
    }
    if (is_call) write_calls(&j, item, 1);
    close_message(&j, call);
    if (item->kind == ANSWER_TEXT) write_fresh_logprobs(&j, s->choice);
    json_out_key_bool(&j, "done", false);
    json_out_mark(&j, '}');
    (void)buf_append(s->out, "\n", 1);
}

static void stream_text(Buf *out, const ApiCall *call, const Choice *c, const TokenBatch *fresh) {
    LineStream s = {out, c};
    (void)call;
    (void)answers_feed(c, fresh, stream_item, &s); /* if memory runs out, the reader reports nothing more */
}

static void end_choice(Buf *out, const ApiCall *call, const Choice *c) {
    LineStream s = {out, c};
    (void)answers_end(c, stream_item, &s);
    JsonOut j = json_out_begin(out);
    write_head(&j, call, call->plan.model->name);
    open_message(&j, call);
    json_out_key_text(&j, text_key(call), "");
    close_message(&j, call);
    write_end(&j, call, c);
    (void)buf_append(out, "\n", 1);
}

/* ---- embeddings -------------------------------------------------------------------------------------------- */

static int prepare_embed(ApiCall *call, const json_t *body) {
    OllamaFields f;
    if (read_body(call, body, embed_tables, &f)) return -1;
    f.plan.stream = false;
    if (plan_begin(&call->plan, call->service, &f.plan, 1, &call->error)) return -1;
    api_call_name(call, "ollama-");
    return embeddings_prepare(call, f.input, "input", false);
}

static void write_embed(JsonOut *out, const ApiCall *call) {
    int64_t n_tokens = 0;
    json_out_mark(out, '{');
    json_out_key_text(out, "model", call->plan.model->name);
    json_out_open(out, "embeddings", '[');
    for (int i = 0; i < call->n_choices; i++) {
        embeddings_write(out, &call->choices[i]);
        n_tokens += call->plan.prompts[i].n;
    }
    json_out_mark(out, ']');
    write_nanoseconds(out, "total_duration", call->choices[call->n_choices - 1].result->ended_s - call->started_s);
    json_out_key_int(out, "load_duration", 0);
    json_out_key_int(out, "prompt_eval_count", n_tokens);
    json_out_mark(out, '}');
}

static void write_one_embedding(JsonOut *out, const ApiCall *call) {
    json_out_mark(out, '{');
    json_out_key(out, "embedding");
    embeddings_write(out, &call->choices[0]);
    json_out_mark(out, '}');
}

/* ---- the endpoints ----------------------------------------------------------------------------------------- */

static const ApiFormat format = {
    .write_error = write_error,
    .write_answer = write_answer,
    .keep = answers_keep,
    .stream_text = stream_text,
    .end_choice = end_choice,
    .stream_error = stream_error,
    .stream_type = "application/x-ndjson",
};
static const ApiFormat embed_format = {.write_error = write_error, .write_answer = write_embed},
                       embedding_format = {.write_error = write_error, .write_answer = write_one_embedding};

const Endpoint ollama_endpoints[] = {
    {.method = "POST", .path = "/api/chat", .format = &format, .prepare = prepare_chat},
    {.method = "POST", .path = "/api/generate", .format = &format, .prepare = prepare_generate},
    {.method = "POST", .path = "/api/embed", .format = &embed_format, .prepare = prepare_embed},
    {.method = "POST", .path = "/api/embeddings", .format = &embedding_format, .prepare = prepare_embed},
    {.path = NULL},
};

/* token_endpoints.c - POST /tokenize, /detokenize and /apply-template: text, tokens and conversations without a model's pass. */
#include "server/api/chat_messages.h"
#include "server/api/openai_format.h"

#include <stdlib.h>
#include <string.h>

typedef struct TokenFields {
    const char *model, *content;
    bool add_special, parse_special, with_pieces;
    const json_t *tokens;
    ChatMessages chat;
} TokenFields;

#define T(kind, field, ...) FIELD(TokenFields, kind, field, __VA_ARGS__)
static const Field tokenize_fields[] = {
    {.name = "model", T(TEXT, model)},
    {.name = "content", T(TEXT, content)},
    {.name = "prompt", T(TEXT, content)}, /* vLLM's name */
    {.name = "add_special", T(BOOL, add_special)},
    {.name = "add_special_tokens", T(BOOL, add_special)},
    {.name = "parse_special", T(BOOL, parse_special)},
    {.name = "with_pieces", T(BOOL, with_pieces)},
    {.name = NULL},
};
static const Field detokenize_fields[] = {
    {.name = "model", T(TEXT, model)}, {.name = "tokens", T(ANY, tokens)}, {.name = NULL}};
static const Field template_fields[] = {
    {.name = "model", T(TEXT, model)},
    {.name = "messages", T(ANY, chat.messages)},
    {.name = "tools", T(ANY, chat.tools)},
    {.name = "chat_template_kwargs", T(ANY, chat.variables)},
    {.name = NULL},
};

static int read_all(ApiCall *call, const json_t *body, const Field *table, TokenFields *f, ServedModel **model) {
    const Field *const tables[] = {table, NULL};
    if (fields_read(tables, body, f, &call->error)) return -1;
    *model = plan_find_model(call->service, f->model, &call->error);
    return *model ? 0 : -1;
}

static int end_reply(ApiCall *call, const JsonOut *out) {
    return out->failed ? api_refuse(&call->error, 500, NULL, NULL, "memory for the answer ran out") : 0;
}

/* {"id": 450, "piece": " the"} */
static int write_piece(JsonOut *out, const ServedModel *m, int32_t id, ApiError *error) {
    char *text;
    size_t n;
    fr_error why;
    if (fr_detokenize(m->model, &id, 1, &text, &n, &why)) return api_refuse_error(error, NULL, &why);
    json_out_mark(out, '{');
    json_out_key_int(out, "id", id);
    json_out_key(out, "piece");
    json_out_bytes(out, text, n);
    json_out_mark(out, '}');
    fr_free(text);
    return 0;
}

static int tokenize(ApiCall *call, const json_t *body) {
    TokenFields f = {.parse_special = true};
    ServedModel *m;
    if (read_all(call, body, tokenize_fields, &f, &m)) return -1;
    if (!f.content)
        return api_refuse(&call->error, 400, "missing_field", "content", "'content' is missing: the text to tokenize");
    unsigned flags = (f.add_special ? FR_TOKENIZE_PROMPT : 0u) | (f.parse_special ? FR_TOKENIZE_SPECIAL : 0u);
    int32_t *ids;
    int64_t n;
    fr_error why;
    int status = 0;
    if (fr_tokenize(m->model, f.content, strlen(f.content), flags, &ids, &n, &why))
        return api_refuse_error(&call->error, "content", &why);
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_open(&out, "tokens", '[');
    for (int64_t i = 0; i < n && !status; i++) {
        if (f.with_pieces) status = write_piece(&out, m, ids[i], &call->error);
        else json_out_int(&out, ids[i]);
    }
    json_out_mark(&out, ']');
    json_out_key_int(&out, "count", n);
    json_out_key_int(&out, "max_model_len", m->n_ctx);
    json_out_mark(&out, '}');
    fr_free(ids);
    return status ? status : end_reply(call, &out);
}

static int detokenize(ApiCall *call, const json_t *body) {
    TokenFields f = {.model = NULL};
    ServedModel *m;
    int32_t *ids;
    int64_t n;
    char *text;
    size_t n_text;
    fr_error why;
    if (read_all(call, body, detokenize_fields, &f, &m)) return -1;
    if (!json_is_array(f.tokens))
        return api_refuse(&call->error, 400, "invalid_type", "tokens", "'tokens' must be a list of token ids");
    if (plan_read_ids(m, f.tokens, "tokens", &ids, &n, &call->error)) return -1;
    int status = fr_detokenize(m->model, ids, n, &text, &n_text, &why);
    free(ids);
    if (status) return api_refuse_error(&call->error, "tokens", &why);
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key(&out, "content");
    json_out_bytes(&out, text, n_text);
    json_out_key(&out, "prompt"); /* vLLM's name */
    json_out_bytes(&out, text, n_text);
    json_out_mark(&out, '}');
    fr_free(text);
    return end_reply(call, &out);
}

static int apply_template(ApiCall *call, const json_t *body) {
    TokenFields f = {.model = NULL};
    ServedModel *m;
    fr_chat_result result = {.struct_size = sizeof result};
    if (read_all(call, body, template_fields, &f, &m) || chat_messages_apply(m, &f.chat, &result, &call->error))
        return -1;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key(&out, "prompt");
    json_out_bytes(&out, result.text, result.n_bytes);
    json_out_mark(&out, '}');
    fr_chat_result_free(&result);
    return end_reply(call, &out);
}

static const ApiFormat format = {.write_error = openai_write_error};

const Endpoint token_endpoints[] = {
    {.method = "POST", .path = "/tokenize", .format = &format, .prepare = tokenize},
    {.method = "POST", .path = "/detokenize", .format = &format, .prepare = detokenize},
    {.method = "POST", .path = "/apply-template", .format = &format, .prepare = apply_template},
    {.path = NULL},
};

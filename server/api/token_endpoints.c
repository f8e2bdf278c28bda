/* token_endpoints.c - the endpoints that generate no text: POST /tokenize, /detokenize, /apply-template,
 * /v1/embeddings, /rerank. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct TokenFields {
    const char *model, *content, *prompt;
    const json_t *add_special;
    bool parse_special, with_pieces, returns_strings, begins_answer;
    const json_t *tokens;
    ChatMessages chat;
} TokenFields;

#define T(kind, field, ...) FIELD(TokenFields, kind, field, __VA_ARGS__)
static const Field tokenize_fields[] = {
    {.name = "model", T(TEXT, model)},
    {.name = "content", T(TEXT, content)},
    {.name = "prompt", T(TEXT, prompt)}, /* vLLM's name; its texts begin with BOS by default */
    {.name = "messages", T(ANY, chat.messages)},
    {.name = "tools", T(ANY, chat.tools)},
    {.name = "chat_template_kwargs", T(ANY, chat.variables)},
    {.name = "add_generation_prompt", T(BOOL, begins_answer)},
    {.name = "continue_final_message", .kind = FIELD_NEUTRAL},
    {.name = "return_token_strs", T(BOOL, returns_strings)},
    {.name = "add_special", T(ANY, add_special)},
    {.name = "add_special_tokens", T(ANY, add_special)},
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
    {.name = "tool_choice", T(ANY, chat.tool_choice)},
    {.name = "chat_template_kwargs", T(ANY, chat.variables)},
    {.name = "reasoning_effort", T(TEXT, chat.reasoning_effort)},
    {.name = "add_generation_prompt", T(BOOL, begins_answer)},
    {.name = "*", .kind = FIELD_IGNORED}, /* what llama.cpp's clients send is the body of a chat */
    {.name = NULL},
};

static int read_all(ApiCall *call, const json_t *body, const Field *table, TokenFields *f, ServedModel **model) {
    const Field *const tables[] = {table, NULL};
    f->begins_answer = true;
    if (fields_read(tables, body, f, call)) return -1;
    f->chat.ends_open = !f->begins_answer;
    *model = plan_find_model(call->service, f->model, &call->error);
    return *model ? 0 : -1;
}

/* Writes a token as {"id": 450, "piece": " the"}; a piece that is not UTF-8 is a list of its bytes. */
static void write_piece(JsonOut *out, const ServedModel *m, int32_t id) {
    size_t n;
    const char *bytes = fr_token_piece(m->model, id, true, &n);
    json_out_mark(out, '{');
    json_out_key_int(out, "id", id);
    json_out_key(out, "piece");
    if (json_out_is_text(bytes, n)) json_out_bytes(out, bytes, n);
    else {
        json_out_mark(out, '[');
        for (size_t i = 0; i < n; i++) json_out_int(out, (unsigned char)bytes[i]);
        json_out_mark(out, ']');
    }
    json_out_mark(out, '}');
}

/* Tokenizes a text, or the prompt of a conversation. *ids is malloc'ed. */
static int find_tokens(TokenFields *f, const ServedModel *m, int32_t **ids, int64_t *n, ApiError *error) {
    const char *text = f->content ? f->content : f->prompt;
    bool adds = f->add_special ? json_is_true(f->add_special) : f->prompt != NULL;
    unsigned flags = (adds ? FR_TOKENIZE_PROMPT : 0u) | (f->parse_special ? FR_TOKENIZE_SPECIAL : 0u);
    fr_chat_result chat = {.struct_size = sizeof chat};
    fr_error why;
    if (f->chat.messages) {
        if (chat_messages_apply(m, &f->chat, &chat, error)) return -1;
        *ids = chat.tokens;
        *n = chat.n_tokens;
        chat.tokens = NULL;
        fr_chat_result_free(&chat);
        return 0;
    }
    if (!text) return api_refuse(error, 400, "missing_field", "content", "'content' is missing: the text to tokenize");
    if (f->add_special && !json_is_boolean(f->add_special))
        return api_refuse(error, 400, "invalid_type", "add_special", "'add_special' must be true or false");
    return fr_tokenize(m->model, text, strlen(text), flags, ids, n, &why) ? api_refuse_error(error, "content", &why)
                                                                          : 0;
}

static int tokenize(ApiCall *call, const json_t *body) {
    TokenFields f = {.parse_special = true};
    ServedModel *m;
    int32_t *ids;
    int64_t n;
    if (read_all(call, body, tokenize_fields, &f, &m) || find_tokens(&f, m, &ids, &n, &call->error)) return -1;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_open(&out, "tokens", '[');
    for (int64_t i = 0; i < n; i++) {
        if (f.with_pieces) write_piece(&out, m, ids[i]);
        else json_out_int(&out, ids[i]);
    }
    json_out_mark(&out, ']');
    if (f.returns_strings) json_out_open(&out, "token_strs", '[');
    for (int64_t i = 0; i < n && f.returns_strings; i++) {
        size_t n_bytes;
        const char *piece = fr_token_piece(m->model, ids[i], true, &n_bytes);
        json_out_bytes(&out, piece, n_bytes);
    }
    if (f.returns_strings) json_out_mark(&out, ']');
    json_out_key_int(&out, "count", n);
    json_out_key_int(&out, "max_model_len", m->n_ctx);
    json_out_mark(&out, '}');
    fr_free(ids);
    return api_end_reply(call, out.failed);
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
    return api_end_reply(call, out.failed);
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
    return api_end_reply(call, out.failed);
}

/* ---- embeddings ------------------------------------------------------------------------------------------
 *
 * POST /v1/embeddings gives the mean of the model's final hidden states over each input, scaled to length 1. Each input
 * is a generation of one token, which is thrown away: so inputs wait, share steps with other requests and are cancelled
 * like these. */

typedef struct EmbeddingFields {
    const char *model;
    const json_t *input, *encoding_format;
    int64_t dimensions;
} EmbeddingFields;

#define E(kind, field, ...) FIELD(EmbeddingFields, kind, field, __VA_ARGS__)
static const Field embedding_fields[] = {
    {.name = "model", E(TEXT, model)},
    {.name = "input", E(ANY, input)},
    {.name = "content", E(ANY, input)}, /* llama.cpp's name */
    {.name = "encoding_format", E(ANY, encoding_format)},
    {.name = "embd_normalize", .kind = FIELD_NEUTRAL, .min = 2}, /* llama.cpp's name for a length of 1 */
    {.name = "normalize", .kind = FIELD_NEUTRAL, .min = 1},      /* vLLM's */
    {.name = "embed_dtype", .kind = FIELD_NEUTRAL, .neutral = "float32"},
    {.name = "endianness", .kind = FIELD_NEUTRAL, .neutral = "native little"},
    {.name = "dimensions", E(INT, dimensions, .min = 1, .max = INT32_MAX)},
    {.name = NULL},
};
static const Field *const embedding_tables[] = {embedding_fields, plan_other_fields, NULL};

static int32_t n_embd_of(const ServedModel *m) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(m->model, &info);
    return info.n_embd;
}

static int check_embedding_fields(const ApiCall *call, const EmbeddingFields *f, ApiError *error) {
    int32_t n_embd = n_embd_of(call->plan.model);
    if (f->dimensions && f->dimensions != n_embd)
        return api_refuse(error, 400, "invalid_value", "dimensions",
                          "'dimensions' must be %d: the embeddings of this model cannot be shortened", n_embd);
    if (f->encoding_format && !field_is_text(f->encoding_format, "float") &&
        !field_is_text(f->encoding_format, "base64"))
        return api_refuse(error, 400, "invalid_value", "encoding_format",
                          "'encoding_format' must be \"float\" or \"base64\"");
    return 0;
}

int embeddings_prepare(ApiCall *call, const json_t *input, const char *field, bool keeps_text) {
    call->plan.wants_embeddings = true;
    call->plan.n_drafts = 0;
    return plan_add_prompts(&call->plan, input, field, keeps_text, FR_TOKENIZE_PROMPT, &call->error);
}

static int prepare_embeddings(ApiCall *call, const json_t *body) {
    EmbeddingFields f = {.input = NULL};
    PlanFields plan;
    plan_fields_default(&plan);
    int status = fields_read(embedding_tables, body, &f, call);
    plan.model = f.model;
    if (!status) status = plan_begin(&call->plan, call->service, &plan, 1, &call->error);
    if (!status) status = check_embedding_fields(call, &f, &call->error);
    if (!status) status = embeddings_prepare(call, f.input, "input", false);
    call->plan.wants_base64 = field_is_text(f.encoding_format, "base64");
    api_call_name(call, "embd-");
    return status;
}

/* Writes the floats in little-endian order, which clients expect. */
static void write_base64(JsonOut *out, const float *x, int32_t n) {
    size_t n_bytes = (size_t)n * sizeof *x, n_text = (n_bytes + 2) / 3 * 4;
    char *text = malloc(n_text + 1);
    if (!text) {
        out->failed = true;
        return;
    }
    EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)x, (int)n_bytes);
    json_out_bytes(out, text, n_text);
    free(text);
}

/* Writes enough digits to distinguish a float from all others. */
static void write_number(JsonOut *out, float x) {
    char text[32];
    int n = snprintf(text, sizeof text, "%.9g", (double)x);
    json_out_raw(out, text, (size_t)n);
}

void embeddings_write(JsonOut *out, const Choice *c) {
    int32_t n = n_embd_of(c->call->plan.model);
    json_out_mark(out, '[');
    for (int32_t i = 0; i < n; i++) write_number(out, c->result->embedding[i]);
    json_out_mark(out, ']');
}

static void write_embedding(JsonOut *out, const ApiCall *call, const Choice *c) {
    int32_t n = n_embd_of(call->plan.model);
    json_out_mark(out, '{');
    json_out_key_text(out, "object", "embedding");
    json_out_key_int(out, "index", c->index);
    json_out_key(out, "embedding");
    if (call->plan.wants_base64) write_base64(out, c->result->embedding, n);
    else embeddings_write(out, c);
    json_out_mark(out, '}');
}

static void write_embeddings(JsonOut *out, const ApiCall *call) {
    int64_t n_tokens = 0;
    json_out_mark(out, '{');
    json_out_key_text(out, "object", "list");
    json_out_key_text(out, "model", call->plan.model->name);
    json_out_open(out, "data", '[');
    for (int i = 0; i < call->n_choices; i++) {
        write_embedding(out, call, &call->choices[i]);
        n_tokens += call->plan.prompts[i].n;
    }
    json_out_mark(out, ']');
    json_out_open(out, "usage", '{');
    json_out_key_int(out, "prompt_tokens", n_tokens);
    json_out_key_int(out, "total_tokens", n_tokens);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

/* POST /embedding, llama.cpp's own form: [{"index": 0, "embedding": [[...]]}, ...] */
static void write_native_embeddings(JsonOut *out, const ApiCall *call) {
    json_out_mark(out, '[');
    for (int i = 0; i < call->n_choices; i++) {
        json_out_mark(out, '{');
        json_out_key_int(out, "index", i);
        json_out_open(out, "embedding", '[');
        embeddings_write(out, &call->choices[i]);
        json_out_mark(out, ']');
        json_out_mark(out, '}');
    }
    json_out_mark(out, ']');
}

/* ---- reranking -------------------------------------------------------------------------------------------
 *
 * POST /rerank orders documents by the cosine between their embedding and that of the query. A model that was trained
 * to rank has a head for it, which forerun does not run. As in llama.cpp, the answer to "documents" has Jina's form,
 * and that to "texts" is the list of Hugging Face's server. */

typedef struct RerankFields {
    const char *model, *query;
    const json_t *documents, *texts;
    int64_t top_n;
    bool returns_documents, returns_text;
} RerankFields;

#define R(kind, field, ...) FIELD(RerankFields, kind, field, __VA_ARGS__)
static const Field rerank_fields[] = {
    {.name = "model", R(TEXT, model)},
    {.name = "query", R(TEXT, query)},
    {.name = "documents", R(ANY, documents)},
    {.name = "texts", R(ANY, texts)},
    {.name = "return_text", R(BOOL, returns_text)},
    {.name = "top_n", R(INT, top_n, .min = 1, .max = INT32_MAX)},
    {.name = "return_documents", R(BOOL, returns_documents)},
    {.name = NULL},
};
static const Field *const rerank_tables[] = {rerank_fields, plan_other_fields, NULL};

/* ApiCall.own of /rerank. */
typedef struct Ranking {
    int64_t top_n;
    bool is_list; /* the answer has the form of Hugging Face's server, whose clients send "texts" */
} Ranking;

static int prepare_rerank(ApiCall *call, const json_t *body) {
    RerankFields f = {.top_n = INT32_MAX};
    PlanFields plan;
    plan_fields_default(&plan);
    if (fields_read(rerank_tables, body, &f, call)) return -1;
    plan.model = f.model;
    const json_t *documents = f.documents ? f.documents : f.texts;
    size_t n = json_array_size(documents);
    if (!f.query || n == 0)
        return api_refuse(&call->error, 400, "missing_field", f.query ? "documents" : "query",
                          "a query and a list of documents are needed");
    if (f.returns_documents)
        return api_refuse(&call->error, 400, "unsupported_parameter", "return_documents",
                          "'return_documents' is not supported; the results have the index of each document");
    json_t *texts = json_array();
    json_array_append_new(texts, json_string(f.query));
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_array_get(documents, i), *text = json_object_get(item, "text");
        json_array_append(texts, text ? text : item);
    }
    if (plan_begin(&call->plan, call->service, &plan, 1, &call->error)) return -1;
    Ranking *ranking = calloc(1, sizeof *ranking);
    if (!ranking) return api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    *ranking = (Ranking){.top_n = f.top_n, .is_list = !f.documents};
    call->own = ranking;
    call->free_own = free;
    api_call_name(call, "rerank-");
    return embeddings_prepare(call, texts, "documents", f.returns_text && !f.documents);
}

typedef struct Ranked {
    int index;
    double score;
} Ranked;

static int by_score(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score ? -1 : 1) : x->index - y->index;
}

static void write_ranked(JsonOut *out, const ApiCall *call, const Ranked *ranked, int n, const char *score) {
    json_out_mark(out, '[');
    for (int i = 0; i < n; i++) {
        const char *text = call->plan.prompts[ranked[i].index + 1].text; /* NULL: it is not asked for */
        json_out_mark(out, '{');
        json_out_key_int(out, "index", ranked[i].index);
        json_out_key_real(out, score, ranked[i].score);
        if (text) json_out_key_text(out, "text", text);
        json_out_mark(out, '}');
    }
    json_out_mark(out, ']');
}

static void write_ranking(JsonOut *out, const ApiCall *call) {
    const Ranking *ranking = call->own;
    const float *query = call->choices[0].result->embedding;
    Ranked ranked[API_MAX_CHOICES];
    int n = call->n_choices - 1;
    int32_t n_embd = n_embd_of(call->plan.model);
    int64_t n_tokens = 0;
    for (int i = 0; i < n; i++) {
        ranked[i] = (Ranked){.index = i};
        for (int32_t k = 0; k < n_embd; k++)
            ranked[i].score += (double)query[k] * (double)call->choices[i + 1].result->embedding[k];
    }
    for (int i = 0; i < call->n_choices; i++) n_tokens += call->plan.prompts[i].n;
    qsort(ranked, (size_t)n, sizeof *ranked, by_score);
    if (n > ranking->top_n) n = (int)ranking->top_n;
    if (ranking->is_list) {
        write_ranked(out, call, ranked, n, "score");
        return;
    }
    json_out_mark(out, '{');
    json_out_key_text(out, "id", call->id);
    json_out_key_text(out, "object", "list");
    json_out_key_text(out, "model", call->plan.model->name);
    json_out_key(out, "results");
    write_ranked(out, call, ranked, n, "relevance_score");
    json_out_open(out, "usage", '{');
    json_out_key_int(out, "prompt_tokens", n_tokens);
    json_out_key_int(out, "total_tokens", n_tokens);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

/* ---- the endpoints --------------------------------------------------------------------------------------- */

static const ApiFormat format = {.write_error = openai_write_error};
static const ApiFormat embedding_format = {.write_error = openai_write_error, .write_answer = write_embeddings};

static const ApiFormat native_embedding_format = {.write_error = openai_write_error,
                                                  .write_answer = write_native_embeddings},
                       ranking_format = {.write_error = openai_write_error, .write_answer = write_ranking};

const Endpoint token_endpoints[] = {
    {.method = "POST", .path = "/tokenize", .format = &format, .prepare = tokenize},
    {.method = "POST", .path = "/detokenize", .format = &format, .prepare = detokenize},
    {.method = "POST", .path = "/apply-template", .format = &format, .prepare = apply_template},
    {.method = "POST", .path = "/v1/embeddings", .format = &embedding_format, .prepare = prepare_embeddings},
    {.method = "POST", .path = "/embeddings", .format = &embedding_format, .prepare = prepare_embeddings},
    {.method = "POST", .path = "/embedding", .format = &native_embedding_format, .prepare = prepare_embeddings},
    {.method = "POST", .path = "/rerank", .format = &ranking_format, .prepare = prepare_rerank},
    {.method = "POST", .path = "/reranking", .format = &ranking_format, .prepare = prepare_rerank},
    {.method = "POST", .path = "/v1/rerank", .format = &ranking_format, .prepare = prepare_rerank},
    {.method = "POST", .path = "/v1/reranking", .format = &ranking_format, .prepare = prepare_rerank},
    {.path = NULL},
};

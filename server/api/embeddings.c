/* embeddings.c - POST /v1/embeddings: the mean of the model's final hidden states over each input, with length 1.
 *
 * Each input is a generation of one token, which is thrown away: so inputs wait, share steps with other requests and are
 * cancelled as these are. */
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct EmbeddingFields {
    const char *model;
    const json_t *input, *encoding_format;
    int64_t dimensions;
} EmbeddingFields;

#define E(kind, field, ...) FIELD(EmbeddingFields, kind, field, __VA_ARGS__)
static const Field embedding_fields[] = {
    {.name = "model", E(TEXT, model)},
    {.name = "input", E(ANY, input)},
    {.name = "encoding_format", E(ANY, encoding_format)},
    {.name = "dimensions", E(INT, dimensions, .min = 1, .max = INT32_MAX)},
    {.name = NULL},
};
static const Field *const tables[] = {embedding_fields, plan_ignored_fields, NULL};

static int32_t n_embd_of(const ServedModel *m) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(m->model, &info);
    return info.n_embd;
}

static int check_fields(const ApiCall *call, const EmbeddingFields *f, ApiError *error) {
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

static int prepare(ApiCall *call, const json_t *body) {
    EmbeddingFields f = {.input = NULL};
    PlanFields plan;
    plan_fields_default(&plan);
    int status = fields_read(tables, body, &f, &call->error);
    plan.model = f.model;
    if (!status) status = plan_begin(&call->plan, call->service, &plan, 1, &call->error);
    if (!status) status = check_fields(call, &f, &call->error);
    if (!status) status = plan_add_prompts(&call->plan, f.input, "input", false, FR_TOKENIZE_PROMPT, &call->error);
    call->plan.wants_embeddings = true;
    call->plan.n_drafts = 0;
    call->plan.wants_base64 = field_is_text(f.encoding_format, "base64");
    api_call_name(call, "embd-");
    return status;
}

/* The floats as they lie in memory of little-endian machines, which is what clients expect. */
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

/* With the digits that tell it from every other float. */
static void write_number(JsonOut *out, float x) {
    char text[32];
    int n = snprintf(text, sizeof text, "%.9g", (double)x);
    json_out_raw(out, text, (size_t)n);
}

static void write_embedding(JsonOut *out, const ApiCall *call, const Choice *c) {
    int32_t n = n_embd_of(call->plan.model);
    json_out_mark(out, '{');
    json_out_key_text(out, "object", "embedding");
    json_out_key_int(out, "index", c->index);
    json_out_key(out, "embedding");
    if (call->plan.wants_base64) write_base64(out, c->result->embedding, n);
    else {
        json_out_mark(out, '[');
        for (int32_t i = 0; i < n; i++) write_number(out, c->result->embedding[i]);
        json_out_mark(out, ']');
    }
    json_out_mark(out, '}');
}

static void write_answer(JsonOut *out, const ApiCall *call) {
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

static const ApiFormat format = {.write_error = openai_write_error, .write_answer = write_answer};

const Endpoint embeddings_endpoints[] = {
    {.method = "POST", .path = "/v1/embeddings", .format = &format, .prepare = prepare},
    {.method = "POST", .path = "/embeddings", .format = &format, .prepare = prepare},
    {.path = NULL},
};

/* draft.c - POST /draft: a model drafts for the target of another forerun, whose drafter `remote` asks
 * (src/draft/models/draft_remote.c).
 *
 *     {"tokens": [1, 450, 4799], "n": 3, "vocabulary": "5a0e6d1c98b2f734"}      {"tokens":[2217,338,263]}
 *
 * The answer is the n tokens that the model generates greedily after these, an end of text among them like any other.
 * `vocabulary` is the number of the target's vocabulary (fr_vocab_fingerprint): with another one than the model's the
 * ids would mean something else, so it is refused. Without tokens nothing is generated; the drafter finds out in this
 * way whether the vocabularies match. */
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DRAFT_MAX_TOKENS = 64 };

typedef struct DraftFields {
    const char *model, *vocabulary;
    const json_t *tokens;
    int64_t n;
} DraftFields;

#define D(kind, field, ...) FIELD(DraftFields, kind, field, __VA_ARGS__)
static const Field draft_fields[] = {
    {.name = "model", D(TEXT, model)},
    {.name = "tokens", D(ANY, tokens)},
    {.name = "n", D(INT, n, .min = 1, .max = DRAFT_MAX_TOKENS)},
    {.name = "vocabulary", D(TEXT, vocabulary)},
    {.name = NULL},
};
static const Field *const tables[] = {draft_fields, plan_other_fields, NULL};

static int check_fields(const ServedModel *m, const DraftFields *f, ApiError *error) {
    char own[17];
    snprintf(own, sizeof own, "%016" PRIx64, m->vocabulary);
    if (!json_is_array(f->tokens))
        return api_refuse(error, 400, "invalid_type", "tokens", "'tokens' must be a list of token ids");
    if (!f->vocabulary)
        return api_refuse(error, 400, "missing_field", "vocabulary",
                          "'vocabulary' is missing: the 16 hexadecimal digits of the target's vocabulary");
    if (strcmp(f->vocabulary, own) != 0)
        return api_refuse(error, 409, "other_vocabulary", "vocabulary",
                          "the model '%.100s' has another vocabulary than the target", m->name);
    return 0;
}

static void write_tokens(JsonOut *out, const TokenBatch *tokens) {
    json_out_mark(out, '{');
    json_out_open(out, "tokens", '[');
    for (size_t i = 0; tokens && i < tokens->n; i++) json_out_int(out, tokens->tokens[i].token);
    json_out_mark(out, ']');
    json_out_mark(out, '}');
}

static int prepare(ApiCall *call, const json_t *body) {
    DraftFields f = {.n = 1};
    PlanFields plan;
    Prompt prompt = {.n = 0};
    plan_fields_default(&plan);
    if (fields_read(tables, body, &f, call)) return -1;
    plan.model = f.model;
    plan.temperature = 0;
    plan.ignore_eos = plan.return_tokens = true;
    if (plan_begin(&call->plan, call->service, &plan, f.n, &call->error)) return -1;
    if (check_fields(call->plan.model, &f, &call->error)) return -1;
    api_call_name(call, "draft-");
    if (json_array_size(f.tokens) == 0) {
        JsonOut out = json_out_begin(&call->reply);
        write_tokens(&out, NULL);
        return api_end_reply(call, out.failed);
    }
    if (plan_read_ids(call->plan.model, f.tokens, "tokens", &prompt.tokens, &prompt.n, &call->error)) return -1;
    return plan_add_prompt(&call->plan, &prompt, &call->error);
}

static void write_answer(JsonOut *out, const ApiCall *call) { write_tokens(out, &call->choices[0].tokens); }

static const ApiFormat format = {.write_error = openai_write_error, .write_answer = write_answer};

const Endpoint draft_endpoints[] = {
    {.method = "POST", .path = "/draft", .format = &format, .prepare = prepare},
    {.path = NULL},
};

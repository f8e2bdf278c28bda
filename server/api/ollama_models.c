/* ollama_models.c - what Ollama's clients ask about models: GET /api/tags, /api/ps and /api/version, POST /api/show. */
#include "server/api/answers.h"
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void write_error(JsonOut *out, const ApiError *e) {
    json_out_mark(out, '{');
    json_out_key_text(out, "error", e->message);
    json_out_mark(out, '}');
}

static const ApiFormat format = {.write_error = write_error};

static void write_key_time(JsonOut *out, const char *key, int64_t seconds) {
    char text[32];
    struct tm tm;
    time_t at = (time_t)seconds;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &tm));
    json_out_key_text(out, key, text);
}

static void write_details(JsonOut *out, const ServedModel *m) {
    char size[32];
    double n = (double)m->n_parameters;
    snprintf(size, sizeof size, n >= 1e9 ? "%.1fB" : "%.1fM", n / (n >= 1e9 ? 1e9 : 1e6));
    json_out_open(out, "details", '{');
    json_out_key_text(out, "parent_model", "");
    json_out_key_text(out, "format", "gguf");
    json_out_key_text(out, "family", m->info.architecture);
    json_out_open(out, "families", '[');
    json_out_text(out, m->info.architecture);
    json_out_mark(out, ']');
    json_out_key_text(out, "parameter_size", size);
    json_out_key_text(out, "quantization_level", m->quantization);
    json_out_mark(out, '}');
}

static void write_model(JsonOut *out, const ServedModel *m, bool is_running) {
    char digest[65];
    snprintf(digest, sizeof digest, "%016llx%048d", (unsigned long long)m->fingerprint, 0);
    json_out_mark(out, '{');
    json_out_key_text(out, "name", m->name);
    json_out_key_text(out, "model", m->name);
    if (!is_running) write_key_time(out, "modified_at", m->created_s);
    json_out_key_int(out, "size", (int64_t)m->info.weight_bytes);
    json_out_key_text(out, "digest", digest);
    write_details(out, m);
    if (is_running) {
        write_key_time(out, "expires_at", (int64_t)1 << 32); /* models are never unloaded */
        json_out_key_int(out, "size_vram", 0);
        json_out_key_int(out, "context_length", m->n_ctx);
    }
    json_out_mark(out, '}');
}

static int list_models(ApiCall *call, bool is_running) {
    const Service *s = call->service;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_open(&out, "models", '[');
    for (int i = 0; i < s->n_models; i++) write_model(&out, &s->models[i], is_running);
    json_out_mark(&out, ']');
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

static int tags(ApiCall *call) { return list_models(call, false); }
static int ps(ApiCall *call) { return list_models(call, true); }

static int version(ApiCall *call) {
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_text(&out, "version", FORERUN_VERSION);
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

typedef struct ShowFields {
    const char *model;
} ShowFields;

static const Field show_fields[] = {
    {.name = "model", FIELD(ShowFields, TEXT, model)},
    {.name = "name", FIELD(ShowFields, TEXT, model)},
    {.name = "verbose", .kind = FIELD_IGNORED},
    {.name = "options", .kind = FIELD_IGNORED},
    {.name = "system", .kind = FIELD_IGNORED},
    {.name = "template", .kind = FIELD_IGNORED},
    {.name = NULL},
};

static void write_info(JsonOut *out, const ServedModel *m) {
    static const char *const keys[] = {"context_length", "embedding_length", "block_count", "vocab_size"};
    const int64_t values[] = {m->info.n_ctx_train, m->info.n_embd, m->info.n_layer, m->info.n_vocab};
    char key[80];
    json_out_open(out, "model_info", '{');
    json_out_key_text(out, "general.architecture", m->info.architecture);
    json_out_key_text(out, "general.basename", m->info.name);
    json_out_key_int(out, "general.parameter_count", m->n_parameters);
    for (int i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "%.60s.%s", m->info.architecture, keys[i]);
        json_out_key_int(out, key, values[i]);
    }
    json_out_mark(out, '}');
}

static int show(ApiCall *call, const json_t *body) {
    static const Field *const tables[] = {show_fields, NULL};
    ShowFields f = {.model = NULL};
    if (fields_read(tables, body, &f, call)) return -1;
    const ServedModel *m = plan_find_model(call->service, f.model, &call->error);
    if (!m) return -1;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_text(&out, "license", "");
    json_out_key_text(&out, "modelfile", "");
    json_out_key_text(&out, "parameters", "");
    json_out_key_text(&out, "template", m->chat_template ? m->chat_template : "");
    write_details(&out, m);
    write_info(&out, m);
    json_out_open(&out, "capabilities", '[');
    json_out_text(&out, "completion");
    json_out_text(&out, "embedding");
    if (m->chat_template && strstr(m->chat_template, "tools")) json_out_text(&out, "tools");
    if (answers_may_reason(m)) json_out_text(&out, "thinking");
    json_out_mark(&out, ']');
    write_key_time(&out, "modified_at", m->created_s);
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

/* Answers POST /api/pull: a model that is served is there already. */
static int pull(ApiCall *call, const json_t *body) {
    const char *name = json_string_value(json_object_get(body, "model"));
    if (!name) name = json_string_value(json_object_get(body, "name"));
    if (!plan_find_model(call->service, name, &call->error))
        return api_refuse(&call->error, 404, "model_not_found", "model",
                          "there is no model '%.100s': the models are those of the command line, and the operator can "
                          "fetch others by 'forerun pull'",
                          name);
    return api_end_reply(call, !buf_append(&call->reply, "{\"status\":\"success\"}", 20));
}

/* Refuses what would change the models. */
static int refuse_change(ApiCall *call) {
    return api_refuse(&call->error, 501, "not_supported", NULL,
                      "the models are those of the command line, and cannot be changed");
}

const Endpoint ollama_model_endpoints[] = {
    {.method = "GET", .path = "/api/tags", .format = &format, .answer = tags},
    {.method = "GET", .path = "/api/ps", .format = &format, .answer = ps},
    {.method = "GET", .path = "/api/version", .format = &format, .answer = version},
    {.method = "POST", .path = "/api/pull", .format = &format, .prepare = pull},
    {.method = "POST", .path = "/api/push", .format = &format, .answer = refuse_change},
    {.method = "POST", .path = "/api/create", .format = &format, .answer = refuse_change},
    {.method = "POST", .path = "/api/copy", .format = &format, .answer = refuse_change},
    {.method = "DELETE", .path = "/api/delete", .format = &format, .answer = refuse_change},
    {.method = "POST", .path = "/api/show", .format = &format, .prepare = show},
    {.path = NULL},
};

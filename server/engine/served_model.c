/* served_model.c - opens a model that the server offers, its engine and its drafters. */
#include "base/error.h"
#include "server/engine/generation.h"
#include "server/engine/served_model.h"

#include "gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FULL_CONTEXTS = 4 }; /* how many full contexts the KV cache holds by default */

/* Reads "NAME=FILE", or "FILE", whose name is its base name without ".gguf". A '=' after a '/' belongs to the path. */
int served_model_read_spec(ServedModel *m, const char *spec, fr_error *err) {
    const char *equals = strchr(spec, '='), *slash = strchr(spec, '/'), *name = spec;
    bool is_named = equals && !(slash && slash < equals);
    size_t n = is_named ? (size_t)(equals - spec) : 0;
    m->path = is_named ? equals + 1 : spec;
    if (!is_named) {
        const char *last = strrchr(spec, '/');
        name = last ? last + 1 : spec;
        n = strlen(name);
        if (n > 5 && strcmp(name + n - 5, ".gguf") == 0) n -= 5;
    }
    if (n == 0 || n >= sizeof m->name || !*m->path)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--model: '%.80s' must be FILE or NAME=FILE, with a name of 1 to %zu bytes", spec,
                         sizeof m->name - 1);
    memcpy(m->name, name, n);
    m->name[n] = '\0';
    return FR_OK;
}

/* Notes the costs of forwards after some context, because tokens are generated after one. */
static void note_costs(ServedModel *m) {
    int64_t c = m->n_ctx / 2 < 256 ? m->n_ctx / 2 : 256;
    m->cost_context = c;
    for (int n = 1; n <= SERVED_COST_ROWS; n++) m->forward_s[n] = fr_engine_forward_s(m->engine, n, c);
    m->context_s = (fr_engine_forward_s(m->engine, 1, c + 1000) - m->forward_s[1]) / 1000;
}

static void note_cache(ServedModel *m) {
    static const char *const types[] = {"f16", "f32", "q8"};
    fr_engine_stats stats = {.struct_size = sizeof stats};
    fr_engine_options options = {.struct_size = sizeof options};
    fr_engine_get_stats(m->engine, &stats);
    fr_engine_get_options(m->engine, &options);
    m->kv_tokens = stats.kv_tokens;
    m->kv_page_size = options.kv_page_size;
    m->kv_type = types[options.kv_type];
}

static int open_engine(ServedModel *m, const ServedModelOptions *o, fr_error *err) {
    fr_engine_options options = o->engine;
    options.struct_size = sizeof options;
    options.cost_cache = o->cost_cache;
    options.drafts = o->drafts;
    options.n_drafts = o->n_drafts;
    for (int i = 0; i < o->n_drafts && i < SERVED_MAX_DRAFTS; i++) m->drafts[m->n_drafts++] = o->drafts[i];
    m->tree_budget = o->tree_budget;
    m->max_requests = options.max_requests;
    m->max_queued = o->max_queued;
    m->n_ctx = options.n_ctx ? options.n_ctx : m->info.n_ctx_train < 4096 ? m->info.n_ctx_train : 4096;
    options.n_ctx = m->n_ctx;
    /* Few requests are as long as the context. If several are, the younger ones wait. */
    if (!options.kv_tokens)
        options.kv_tokens = (int64_t)m->n_ctx * (m->max_requests < FULL_CONTEXTS ? m->max_requests : FULL_CONTEXTS);
    int status = fr_engine_open(&m->engine, m->model, &options, err);
    if (!status) status = fr_engine_open_draft(m->engine, "prediction", err); /* for the field "prediction" */
    if (!status) status = fr_engine_measure_costs(m->engine, err);
    if (!status && !(m->slots = calloc((size_t)m->max_requests, sizeof *m->slots)))
        status = error_memory(err, "slots", (size_t)m->max_requests);
    for (int i = 0; i < m->n_drafts && !status; i++) {
        const char *notice = fr_engine_draft_notice(m->engine, m->drafts[i]);
        if (*notice) fprintf(stderr, "forerun: %s\n", notice);
    }
    if (!status) note_costs(m);
    if (!status) note_cache(m);
    return status;
}

static void copy_token(const fr_model *model, const Gguf *g, const char *key, char out[64]) {
    int64_t id;
    size_t n = 0;
    const char *text = gguf_get_i64(g, key, &id) && id <= INT32_MAX ? fr_token_piece(model, (int32_t)id, true, &n) : "";
    snprintf(out, 64, "%.*s", (int)(n < 63 ? n : 63), text);
}

/* The type of most weights. */
static TensorType main_type(const Gguf *g) {
    int64_t n[TYPE_COUNT] = {0};
    TensorType best = (TensorType)0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        n[t->type] += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    }
    for (int k = 0; k < TYPE_COUNT; k++)
        if (n[k] > n[best]) best = (TensorType)k;
    return best;
}

/* Reads from the model's file what the API shows of it. */
static int read_facts(ServedModel *m, fr_error *err) {
    Gguf *g;
    GgufString text;
    int status = gguf_open(&g, m->path, err);
    if (status) return status;
    if (gguf_get_string(g, "tokenizer.chat_template", &text)) m->chat_template = strndup(text.data, text.n);
    copy_token(m->model, g, "tokenizer.ggml.bos_token_id", m->bos);
    copy_token(m->model, g, "tokenizer.ggml.eos_token_id", m->eos);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        m->n_parameters += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    }
    snprintf(m->quantization, sizeof m->quantization, "%s", tensor_type_info(main_type(g))->name);
    gguf_close(g);
    status = fr_vocab_fingerprint(m->model, &m->vocabulary, err);
    return status ? status : fr_model_fingerprint(m->model, &m->fingerprint, err);
}

/* Finds out whether the template writes a space before an answer that is not in the prompt of that answer. */
static bool template_writes_blank(const fr_model *model) {
    static const fr_chat_message m[] = {{"user", "u"}, {"assistant", "x"}, {"user", "u"}};
    fr_chat_result prompt = {.struct_size = sizeof prompt}, all = {.struct_size = sizeof all};
    bool is_blank = !fr_chat_apply(model, m, 1, NULL, &prompt, NULL) && !fr_chat_apply(model, m, 3, NULL, &all, NULL) &&
                    all.n_bytes > prompt.n_bytes + 1 && memcmp(all.text, prompt.text, prompt.n_bytes) == 0 &&
                    memcmp(all.text + prompt.n_bytes, " x", 2) == 0;
    fr_chat_result_free(&prompt);
    fr_chat_result_free(&all);
    return is_blank;
}

int served_model_open(ServedModel *m, const ServedModelOptions *o, fr_error *err) {
    *m = (ServedModel){.created_s = (int64_t)time(NULL)};
    m->waiting_last = &m->waiting;
    m->is_divided = o->n_ranks > 1 || o->n_ranks < 0;
    const fr_model_options options = {.struct_size = sizeof options,
                                      .backend = o->backend,
                                      .kernels = o->kernels,
                                      .activations = o->activations,
                                      .n_ranks = o->n_ranks,
                                      .n_threads = o->engine.n_threads};
    int status = served_model_read_spec(m, o->spec, err);
    if (!status) status = fr_model_open(&m->model, m->path, &options, err);
    if (!status) {
        m->info.struct_size = sizeof m->info;
        fr_model_get_info(m->model, &m->info);
        m->writes_blank = template_writes_blank(m->model);
        status = read_facts(m, err);
        if (!status) status = open_engine(m, o, err);
    }
    if (status) served_model_close(m);
    return status;
}

void served_model_close(ServedModel *m) {
    fr_engine_close(m->engine);
    fr_model_close(m->model);
    for (int i = 0; m->slots && i < m->max_requests; i++) free(m->slots[i].tokens);
    free(m->slots);
    m->slots = NULL;
    free(m->chat_template);
    m->chat_template = NULL;
    m->engine = NULL;
    m->model = NULL;
}

const char *served_model_draft(const ServedModel *m, const char *name) {
    const char *by_method = NULL;
    size_t n = strlen(name);
    for (int i = 0; i < m->n_drafts; i++) {
        if (strcmp(m->drafts[i], name) == 0) return m->drafts[i];
        if (strncmp(m->drafts[i], name, n) != 0 || m->drafts[i][n] != ':') continue;
        if (by_method) return NULL;
        by_method = m->drafts[i];
    }
    return by_method;
}

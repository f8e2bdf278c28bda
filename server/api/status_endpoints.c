/* status_endpoints.c - what the server is and does: GET /health, /v1/models, /props, /slots, /metrics, and the page. */
#include "base/os.h"
#include "server/api/openai_format.h"
#include "server/api/plan.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const ApiFormat format = {.write_error = openai_write_error};

static int health(ApiCall *call) {
    if (call->service->drains) return api_refuse(&call->error, 503, NULL, NULL, "the server is shutting down");
    return api_end_reply(call, !buf_append(&call->reply, "{\"status\":\"ok\"}", 15));
}

static void write_model(JsonOut *out, const ServedModel *m) {
    char when[32];
    struct tm tm;
    time_t created = (time_t)m->created_s;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &tm));
    json_out_mark(out, '{');
    json_out_key_text(out, "id", m->name);
    json_out_key_text(out, "object", "model");
    json_out_key_int(out, "created", m->created_s);
    json_out_key_text(out, "owned_by", "forerun");
    json_out_key_text(out, "type", "model"); /* these three for Anthropic's clients */
    json_out_key_text(out, "display_name", m->name);
    json_out_key_text(out, "created_at", when);
    json_out_key_int(out, "max_model_len", m->n_ctx);
    json_out_open(out, "aliases", '[');
    json_out_text(out, m->name);
    json_out_mark(out, ']');
    json_out_open(out, "tags", '[');
    json_out_mark(out, ']');
    json_out_open(out, "meta", '{');
    json_out_key_text(out, "architecture", m->info.architecture);
    json_out_key_int(out, "n_vocab", m->info.n_vocab);
    json_out_key_int(out, "n_ctx", m->n_ctx);
    json_out_key_int(out, "n_ctx_train", m->info.n_ctx_train);
    json_out_key_int(out, "n_embd", m->info.n_embd);
    json_out_key_int(out, "n_layer", m->info.n_layer);
    json_out_key_int(out, "n_params", m->n_parameters);
    json_out_key_int(out, "size", (int64_t)m->info.weight_bytes);
    json_out_key_text(out, "ftype", m->quantization);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

/* Writes a model in the second list of llama.cpp's answer, which resembles Ollama's. */
static void write_details(JsonOut *out, const ServedModel *m) {
    json_out_mark(out, '{');
    json_out_key_text(out, "name", m->name);
    json_out_key_text(out, "model", m->name);
    json_out_key_text(out, "type", "model");
    json_out_open(out, "capabilities", '[');
    json_out_text(out, "completion");
    json_out_mark(out, ']');
    json_out_open(out, "details", '{');
    json_out_key_text(out, "format", "gguf");
    json_out_key_text(out, "family", m->info.architecture);
    json_out_key_text(out, "quantization_level", m->quantization);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

static int models(ApiCall *call) {
    const Service *s = call->service;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_text(&out, "object", "list");
    json_out_open(&out, "data", '[');
    for (int i = 0; i < s->n_models; i++) write_model(&out, &s->models[i]);
    json_out_mark(&out, ']');
    json_out_open(&out, "models", '[');
    for (int i = 0; i < s->n_models; i++) write_details(&out, &s->models[i]);
    json_out_mark(&out, ']');
    json_out_key_text(&out, "first_id", s->models[0].name);
    json_out_key_text(&out, "last_id", s->models[s->n_models - 1].name);
    json_out_key_bool(&out, "has_more", false);
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

static int model(ApiCall *call) {
    const char *name = http_exchange_head(call->exchange)->path + strlen(call->endpoint->path);
    const ServedModel *m = plan_find_model(call->service, name, &call->error);
    if (!m) return -1;
    JsonOut out = json_out_begin(&call->reply);
    write_model(&out, m);
    return api_end_reply(call, out.failed);
}

/* Returns whether requests draft unless they say otherwise. */
static bool drafts(const ServedModel *m) { return m->n_drafts > 0 && strcmp(m->drafts[0], "none") != 0; }

/* The defaults of /completion. */
static void write_defaults(JsonOut *out, const ServedModel *m) {
    Plan plan = {.streams = true, .sampling = fr_sampling_default()};
    plan.sampling.temperature = (float)NATIVE_TEMPERATURE;
    plan.sampling.top_k = NATIVE_TOP_K;
    plan.sampling.top_p = (float)NATIVE_TOP_P;
    plan.sampling.min_p = (float)NATIVE_MIN_P;
    json_out_open(out, "default_generation_settings", '{');
    json_out_key_int(out, "id", 0);
    json_out_key_bool(out, "is_processing", false);
    json_out_key_bool(out, "speculative", drafts(m));
    json_out_key_int(out, "n_ctx", m->n_ctx);
    json_out_open(out, "params", '{');
    json_out_key_int(out, "seed", SEED_RANDOM);
    native_write_settings(out, &plan, true);
    json_out_mark(out, '}');
    json_out_mark(out, '}');
}

static void write_props(JsonOut *out, const ServedModel *m) {
    json_out_key_text(out, "model_alias", m->name);
    json_out_key_text(out, "architecture", m->info.architecture);
    json_out_key_text(out, "chat_family", m->info.chat_family);
    json_out_key_text(out, "chat_template_error", m->info.chat_template_error);
    json_out_key_text(out, "backend", m->info.backend);
    json_out_key_text(out, "kernels", m->info.kernels);
    json_out_key_text(out, "activations", m->info.activations);
    json_out_key_int(out, "total_slots", m->max_requests);
    json_out_key_int(out, "max_queued", m->max_queued);
    json_out_key_int(out, "n_ctx", m->n_ctx);
    write_defaults(out, m);
    json_out_key_text(out, "model_path", m->path);
    json_out_key_text(out, "chat_template", m->chat_template ? m->chat_template : "");
    json_out_key_text(out, "bos_token", m->bos);
    json_out_key_text(out, "eos_token", m->eos);
    json_out_open(out, "modalities", '{');
    json_out_key_bool(out, "vision", false);
    json_out_key_bool(out, "audio", false);
    json_out_key_bool(out, "video", false);
    json_out_mark(out, '}');
    json_out_key_text(out, "model_ftype", m->quantization);
    /* T(1), T(2), ...: the times of forwards of n tokens after a context of forward_n_context tokens. */
    json_out_open(out, "forward_ms", '[');
    for (int n = 1; n <= SERVED_COST_ROWS; n++) json_out_real(out, m->forward_s[n] * 1e3);
    json_out_mark(out, ']');
    json_out_key_int(out, "forward_n_context", m->cost_context);
    json_out_key_real(out, "context_ms", m->context_s * 1e3); /* added to each token by a token of context */
    json_out_open(out, "drafts", '[');
    for (int i = 0; i < m->n_drafts; i++) json_out_bytes(out, m->drafts[i], strcspn(m->drafts[i], ":"));
    json_out_mark(out, ']');
}

/* Answers GET /version and GET /load, of vLLM and SageMaker. */
static int version(ApiCall *call) {
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_text(&out, "version", FORERUN_VERSION);
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

static int load(ApiCall *call) {
    int n = 0;
    for (const ApiCall *c = call->service->calls; c; c = c->next) n += c->n_running > 0;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_int(&out, "server_load", n);
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

/* Tells a router where it can subscribe to events about the first model's prefix cache, in SGLang's form. */
static void write_events_place(JsonOut *out, const Service *s) {
    KvEventsPlace place;
    if (!kv_events_find_place(s->events, &s->models[0], &place)) {
        json_out_key_null(out, "kv_events");
        return;
    }
    json_out_key(out, "kv_events");
    json_out_mark(out, '{');
    json_out_key_text(out, "publisher", "zmq");
    json_out_key_text(out, "endpoint_host", place.host);
    json_out_key_int(out, "endpoint_port_base", place.port);
    json_out_key_text(out, "topic", place.topic);
    json_out_key_int(out, "block_size", s->models[0].kv_page_size);
    json_out_key_int(out, "dp_size", 1);
    json_out_mark(out, '}');
}

/* Answers GET /server_info and /get_model_info, which SGLang's router reads. */
static int server_info(ApiCall *call) {
    const ServedModel *m = &call->service->models[0];
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_text(&out, "model_path", m->path);
    json_out_key_text(&out, "tokenizer_path", m->path);
    json_out_key_text(&out, "served_model_name", m->name);
    json_out_key_bool(&out, "is_generation", true);
    json_out_key_null(&out, "preferred_sampling_params");
    json_out_key_int(&out, "context_length", m->n_ctx);
    json_out_key_int(&out, "max_running_requests", m->max_requests);
    json_out_key_int(&out, "max_total_num_tokens", m->kv_tokens);
    json_out_key_int(&out, "page_size", m->kv_page_size);
    json_out_key_text(&out, "version", FORERUN_VERSION);
    write_events_place(&out, call->service);
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

/* Finds NAME=VALUE in the query of a call. Returns the decoded value; NULL: there is none. */
static const char *find_query(const ApiCall *call, const char *name, char value[128]) {
    size_t n_name = strlen(name), n = 0;
    for (const char *at = call->query; *at; at += strcspn(at, "&"), at += *at == '&') {
        if (strncmp(at, name, n_name) != 0 || at[n_name] != '=') continue;
        for (at += n_name + 1; *at && *at != '&' && n < 127; n++) {
            unsigned byte;
            bool is_code = *at == '%' && sscanf(at + 1, "%2x", &byte) == 1;
            value[n] = is_code ? (char)byte : *at == '+' ? ' ' : *at;
            at += is_code ? 3 : 1;
        }
        value[n] = '\0';
        return value;
    }
    return NULL;
}

/* Answers with the properties of a model in llama.cpp's form, and a list of those of all models. */
static int props(ApiCall *call) {
    const Service *s = call->service;
    char name[128];
    const ServedModel *m = plan_find_model(s, find_query(call, "model", name), &call->error);
    if (!m) return -1;
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '{');
    json_out_key_text(&out, "build_info", "forerun-" FORERUN_VERSION);
    json_out_key_text(&out, "role", "model");
    json_out_key_bool(&out, "endpoint_slots", true);
    json_out_key_bool(&out, "endpoint_props", false);
    json_out_key_bool(&out, "endpoint_metrics", true);
    json_out_key_bool(&out, "is_sleeping", false);
    json_out_key_bool(&out, "cors_proxy_enabled", false);
    write_props(&out, m);
    json_out_open(&out, "models", '[');
    for (int i = 0; i < s->n_models; i++) {
        json_out_mark(&out, '{');
        write_props(&out, &s->models[i]);
        json_out_mark(&out, '}');
    }
    json_out_mark(&out, ']');
    json_out_mark(&out, '}');
    return api_end_reply(call, out.failed);
}

static void write_slot(JsonOut *out, const Choice *c) {
    const Plan *plan = &c->call->plan;
    json_out_mark(out, '{');
    json_out_key_int(out, "id", generation_slot(c->generation)); /* -1: it waits */
    json_out_key_text(out, "model", plan->model->name);
    json_out_key_bool(out, "is_processing", generation_is_open(c->generation));
    json_out_key_text(out, "state",
                      !generation_is_open(c->generation) ? "waiting"
                      : c->n_tokens                      ? "decoding"
                                                         : "prefill");
    json_out_key_bool(out, "is_cancelled", c->call->is_cancelled);
    json_out_key_int(out, "n_prompt", plan->prompts[c->index / plan->n].n);
    json_out_key_int(out, "n_prompt_tokens", plan->prompts[c->index / plan->n].n);
    json_out_key_int(out, "n_decoded", c->n_tokens);
    json_out_key_int(out, "n_ctx", plan->model->n_ctx);
    json_out_key_bool(out, "speculative", plan->n_drafts > 0 && strcmp(plan->drafts[0], "none") != 0);
    json_out_open(out, "params", '{');
    json_out_key(out, "seed");
    json_out_uint(out, plan->sampling.seed);
    native_write_settings(out, plan, false);
    json_out_mark(out, '}');
    json_out_open(out, "next_token", '[');
    json_out_mark(out, '{');
    json_out_key_bool(out, "has_next_token", true);
    json_out_key_bool(out, "has_new_line", c->lines.has_new_line);
    json_out_key_int(out, "n_remain", plan->max_tokens ? plan->max_tokens - c->n_tokens : -1);
    json_out_key_int(out, "n_decoded", c->n_tokens);
    json_out_mark(out, '}');
    json_out_mark(out, ']');
    json_out_mark(out, '}');
}

static void write_idle_slot(JsonOut *out, const ServedModel *m, int id) {
    json_out_mark(out, '{');
    json_out_key_int(out, "id", id);
    json_out_key_text(out, "model", m->name);
    json_out_key_bool(out, "is_processing", false);
    json_out_key_text(out, "state", "idle");
    json_out_key_int(out, "n_ctx", m->n_ctx);
    json_out_key_bool(out, "speculative", drafts(m));
    json_out_mark(out, '}');
}

/* Lists the requests that wait or run, and the places of all models that are free. With the query fail_on_no_slot=1,
 * a server without a free place answers with an error. */
static int slots(ApiCall *call) {
    const Service *s = call->service;
    bool is_busy[SERVED_MAX_MODELS][SERVE_MAX_PARALLEL] = {{false}};
    int n_idle = 0;
    char value[128];
    JsonOut out = json_out_begin(&call->reply);
    json_out_mark(&out, '[');
    for (const ApiCall *c = call->service->calls; c; c = c->next)
        for (int i = 0; i < c->n_choices; i++)
            if (c->choices[i].generation) {
                const ServedModel *m = c->plan.model;
                int slot = generation_slot(c->choices[i].generation) - m->first_slot;
                if (slot >= 0) is_busy[m - s->models][slot] = true;
                write_slot(&out, &c->choices[i]);
            }
    for (int k = 0; k < s->n_models; k++)
        for (int i = 0; i < s->models[k].max_requests; i++)
            if (!is_busy[k][i]) {
                write_idle_slot(&out, &s->models[k], s->models[k].first_slot + i);
                n_idle++;
            }
    json_out_mark(&out, ']');
    if (n_idle == 0 && find_query(call, "fail_on_no_slot", value))
        return api_refuse(&call->error, 503, "no_slot", NULL, "no slot is free");
    return api_end_reply(call, out.failed);
}

static int show_metrics(ApiCall *call) {
    Service *s = call->service;
    MetricsGauges gauges = {.n_connections = http_server_n_connections(s->http),
                            .grammars = grammar_cache_stats(&s->grammars)};
    for (const ApiCall *c = s->calls; c; c = c->next)
        for (int i = 0; i < c->n_choices; i++) {
            Generation *g = c->choices[i].generation;
            if (!g) continue;
            if (generation_is_open(g)) gauges.n_running[g->model - s->models]++;
            else gauges.n_waiting[g->model - s->models]++;
        }
    for (int i = 0; i < s->n_models; i++) {
        ServedModel *m = &s->models[i];
        gauges.kv_usage[i] = (double)atomic_load(&m->kv_tokens_running) / (double)m->kv_tokens;
        gauges.n_ranks[i] = atomic_load(&m->n_ranks);
        gauges.n_divided_drafts[i] = atomic_load(&m->n_divided_drafts);
        gauges.n_exchanges[i] = atomic_load(&m->n_exchanges);
        gauges.exchanged_bytes[i] = atomic_load(&m->exchanged_bytes);
        gauges.exchange_s[i] = (double)atomic_load(&m->exchange_us) * 1e-6;
    }
    return api_end_reply(call,
                         !metrics_write(&s->metrics, s->models, s->n_models, &gauges, s->metrics_names, &call->reply));
}

/* ---- the page --------------------------------------------------------------------------------------------
 *
 * GET / is the page for people, embedded from server/page, where its files stay what editors and browsers know. The
 * page needs no key, because it shows nothing by itself; the endpoints that it asks do. Its policy allows it to load
 * its own files and to talk to its own server, and nothing else: if text of a model ever became markup, it could
 * neither run nor be sent anywhere. */

OS_EMBED(serve_page_html, "server/page/index.html")
OS_EMBED(serve_page_css, "server/page/page.css")
OS_EMBED(serve_page_js, "server/page/page.js")
OS_EMBED(serve_page_figures, "server/page/figures.js")
OS_EMBED(serve_page_markdown, "server/page/markdown.js")
OS_EMBED(serve_page_answer, "server/page/answer.js")

static int answer_page(ApiCall *call, const char *begin, const char *end) {
    static const char *const headers[][2] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
         "form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-cache"},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        http_exchange_add_header(call->exchange, headers[i][0], headers[i][1]);
    return api_end_reply(call, !buf_append(&call->reply, begin, (size_t)(end - begin)));
}

static int page(ApiCall *call) { return answer_page(call, serve_page_html, serve_page_html_end); }
static int page_css(ApiCall *call) { return answer_page(call, serve_page_css, serve_page_css_end); }
static int page_js(ApiCall *call) { return answer_page(call, serve_page_js, serve_page_js_end); }
static int page_figures(ApiCall *call) { return answer_page(call, serve_page_figures, serve_page_figures_end); }
static int page_markdown(ApiCall *call) { return answer_page(call, serve_page_markdown, serve_page_markdown_end); }
static int page_answer(ApiCall *call) { return answer_page(call, serve_page_answer, serve_page_answer_end); }

/* ---- the endpoints ------------------------------------------------------------------------------------- */

const Endpoint status_endpoints[] = {
    {.method = "GET",
     .path = "/",
     .format = &format,
     .answer = page,
     .type = "text/html; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/page.css",
     .format = &format,
     .answer = page_css,
     .type = "text/css; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/page.js",
     .format = &format,
     .answer = page_js,
     .type = "text/javascript; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/figures.js",
     .format = &format,
     .answer = page_figures,
     .type = "text/javascript; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/markdown.js",
     .format = &format,
     .answer = page_markdown,
     .type = "text/javascript; charset=utf-8",
     .is_open = true},
    {.method = "GET",
     .path = "/answer.js",
     .format = &format,
     .answer = page_answer,
     .type = "text/javascript; charset=utf-8",
     .is_open = true},
    {.method = "GET", .path = "/health", .format = &format, .answer = health, .is_open = true, .may_drain = true},
    {.method = "GET", .path = "/v1/health", .format = &format, .answer = health, .is_open = true, .may_drain = true},
    {.method = "GET", .path = "/v1/models", .format = &format, .answer = models},
    {.method = "GET", .path = "/v1/models/", .format = &format, .answer = model, .has_name = true},
    {.method = "GET", .path = "/models", .format = &format, .answer = models},
    {.method = "GET", .path = "/props", .format = &format, .answer = props},
    {.method = "GET", .path = "/version", .format = &format, .answer = version, .is_open = true},
    {.method = "GET", .path = "/server_info", .format = &format, .answer = server_info},
    {.method = "GET", .path = "/get_server_info", .format = &format, .answer = server_info},
    {.method = "GET", .path = "/get_model_info", .format = &format, .answer = server_info},
    {.method = "GET", .path = "/model_info", .format = &format, .answer = server_info},
    {.method = "GET", .path = "/load", .format = &format, .answer = load},
    {.method = "GET", .path = "/ping", .format = &format, .answer = health, .is_open = true, .may_drain = true},
    {.method = "POST", .path = "/ping", .format = &format, .answer = health, .is_open = true, .may_drain = true},
    {.method = "GET", .path = "/slots", .format = &format, .answer = slots, .may_drain = true},
    {.method = "GET",
     .path = "/metrics",
     .format = &format,
     .answer = show_metrics,
     .type = "text/plain; version=0.0.4; charset=utf-8",
     .may_drain = true},
    {.path = NULL},
};

/* fuzz_serve.c - any request of a client of `forerun serve`: it is refused with a message, or prepared as a valid
 * request to the engine.
 *
 * Byte 0 chooses: 'h': the head of a request; 't': {"family", "tools", "tool_choice", "one", "format"}, from which the
 * grammar of calls is made; otherwise the number of an endpoint, whose body follows. */
#include "cli/json_memory.h"
#include "server/api/plan.h"
#include "server/api/answers.h"
#include "server/http/http_server.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void parse_head(const uint8_t *bytes, size_t n) {
    HttpHead head;
    const char *why = NULL;
    char *copy = malloc(n + 1);
    memcpy(copy, bytes, n);
    copy[n] = '\0';
    int status = http_head_parse(&head, copy, n, &why);
    fr_assert(status ? why && status >= 400 && status < 600
                     : head.content_length >= 0 && head.n_headers <= HTTP_MAX_HEADERS && *head.method);
    if (!status) fr_assert(head.path[0] == '/' || strcmp(head.path, "*") == 0);
    free(copy);
}

static Service *service(void) {
    static Service s;
    static ServedModel model = {.name = "fuzz",
                                .n_ctx = 64,
                                .max_requests = 4,
                                .max_queued = 4,
                                .drafts = {"pld", "rest:index=x"},
                                .n_drafts = 2};
    if (s.models) return &s;
    json_memory_install();
    fr_assert(fr_model_open(&model.model, "models/draft.gguf", NULL, NULL) == FR_OK);
    model.info.struct_size = sizeof model.info;
    fr_model_get_info(model.model, &model.info);
    fr_assert(fr_vocab_fingerprint(model.model, &model.vocabulary, NULL) == FR_OK);
    s.models = &model;
    s.n_models = 1;
    return &s;
}

static bool reads_what_others_read(const char *path) {
    return strstr(path, "/render") || strstr(path, "/input_tokens") || strcmp(path, "/responses") == 0 ||
           strcmp(path, "/v1/reranking") == 0 || strcmp(path, "/api/pull") == 0;
}

static const Endpoint *endpoint_at(unsigned i) {
    static const Endpoint *const families[] = {
        chat_completions_endpoints,
        text_completions_endpoints,
        native_completions_endpoints,
        token_endpoints,
        messages_endpoints,
        responses_endpoints,
        ollama_endpoints,
        ollama_model_endpoints,
        draft_endpoints,
        llama_endpoints,
    };
    const Endpoint *found[64];
    unsigned n = 0;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (const Endpoint *e = families[f]; e->path && n < 64; e++)
            if (e->prepare && !reads_what_others_read(e->path)) found[n++] = e;
    return found[i % n];
}

/* Checks the tools that chat_messages_apply accepts. */
static bool are_tools(const json_t *tools) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!json_is_string(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name")))
            return false;
    return json_array_size(tools) > 0;
}

static int prepare_tools(ApiCall *call, const json_t *body) {
    const char *family = json_string_value(json_object_get(body, "family"));
    const ChatMessages f = {.tools = json_object_get(body, "tools"),
                            .tool_choice = json_object_get(body, "tool_choice"),
                            .has_one_call = json_is_true(json_object_get(body, "one"))};
    bool is_harmony = family && strcmp(family, "gpt-oss") == 0;
    Answers a = {.form = {.tools = tool_form_of(family ? family : ""),
                          .marks = is_harmony ? reasoning_marks_of("<|channel|>") : NULL,
                          .has_reasoned = json_is_true(json_object_get(body, "inside"))},
                 .has_args_mark = f.has_one_call};
    call->plan.model = &call->service->models[0];
    const ConstraintFields format = {.format = json_object_get(body, "format")};
    if (!are_tools(f.tools)) return 0;
    if (constraint_read(&call->plan, &call->service->grammars, &format, &call->error)) return -1;
    return tool_grammar_prepare(call, &a, &f);
}

typedef struct Work {
    ApiCall call;
    const char *body;
    size_t n;
} Work;

static void prepare(void *user) {
    Work *w = user;
    const json_t *body = json_loadb(w->body, w->n, 0, NULL);
    if (!json_is_object(body)) api_refuse(&w->call.error, 400, NULL, NULL, "no object");
    else if (!w->call.endpoint) fr_assert(prepare_tools(&w->call, body) == 0 || w->call.error.status);
    else fr_assert(w->call.endpoint->prepare(&w->call, body) == 0 || w->call.error.status);
}

/* Checks that the values for the engine are in range. */
static void check_plan(const Plan *p) {
    fr_assert(p->n >= 1 && p->n_prompts * p->n <= API_MAX_CHOICES && p->max_tokens >= 0);
    for (int i = 0; i < p->n_prompts; i++) {
        fr_assert(p->prompts[i].n >= 1 && p->prompts[i].n <= p->model->n_ctx);
        for (int64_t k = 0; k < p->prompts[i].n; k++)
            fr_assert(p->prompts[i].tokens[k] >= 0 && p->prompts[i].tokens[k] < p->model->info.n_vocab);
    }
    for (int i = 0; i < p->n_stops; i++) fr_assert(*p->stops[i]);
    fr_assert(p->n_drafts <= API_MAX_DRAFTS && p->sampling.top_p > 0 && p->sampling.temperature >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (n < 1) return 0;
    if (bytes[0] == 'h') {
        parse_head(bytes + 1, n - 1);
        return 0;
    }
    Work *w = calloc(1, sizeof *w);
    w->call.service = service();
    if (bytes[0] != 't') w->call.endpoint = endpoint_at(bytes[0]);
    w->call.reply.max_bytes = 1 << 20;
    w->body = (const char *)bytes + 1;
    w->n = n - 1;
    if (json_memory_limit(4 << 20, prepare, w) && !w->call.error.status && w->call.plan.n_prompts > 0)
        check_plan(&w->call.plan);
    else if (w->call.error.status) fr_assert(w->call.error.message[0]);
    if (w->call.free_own) w->call.free_own(w->call.own);
    plan_free(&w->call.plan);
    buf_free(&w->call.reply);
    free(w);
    return 0;
}

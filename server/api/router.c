/* router.c - from a request to its endpoint: origin, path, method, key, and whether the server still takes requests.
 *
 * The order matters: a page of a foreign origin learns nothing, not even which paths exist, and somebody without a key
 * learns the paths only. */
#include "server/api/api.h"

#include "server/api/openai_format.h"
#include "server/api/request_log.h"
#include "base/system.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const Endpoint *const families[] = {
    chat_completions_endpoints, text_completions_endpoints, native_completion_endpoints, token_endpoints,
    status_endpoints,           messages_endpoints,         responses_endpoints,         page_endpoints,
    embeddings_endpoints};
enum { N_FAMILIES = sizeof families / sizeof *families };

static const ApiFormat default_format = {.write_error = openai_write_error};

int(api_refuse)(ApiError *e, int status, const char *code, const char *param, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    *e = (ApiError){.status = status, .code = code};
    if (param) snprintf(e->param, sizeof e->param, "%s", param);
    vsnprintf(e->message, sizeof e->message, format, ap);
    va_end(ap);
    return -1;
}

int(api_refuse_error)(ApiError *e, const char *param, const fr_error *why) {
    bool is_ours = why->code == FR_ERR_ARGUMENT || why->code == FR_ERR_UNSUPPORTED || why->code == FR_ERR_CONTEXT;
    int status = is_ours ? 400 : why->code == FR_ERR_CANCELLED ? 503 : 500;
    return api_refuse(e, status, why->code == FR_ERR_CONTEXT ? "context_length_exceeded" : NULL, param, "%s",
                      why->message);
}

/* The endpoint of a path and method; *same_path: one with that path, whatever its method. A HEAD request is a GET whose
 * body is not sent. */
static const Endpoint *find(const char *method, const char *path, const Endpoint **same_path) {
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *same_path = NULL;
    for (int i = 0; i < N_FAMILIES; i++)
        for (const Endpoint *e = families[i]; e->path; e++) {
            size_t n = strlen(e->path);
            if (e->has_name ? strncmp(e->path, path, n) != 0 || !path[n] : strcmp(e->path, path) != 0) continue;
            if (strcmp(e->method, wanted) == 0) return e;
            *same_path = e;
        }
    return NULL;
}

/* Answers without a call. */
static void refuse(Service *s, HttpExchange *x, const ApiFormat *format, const ApiError *error) {
    Buf body = {.max_bytes = 1 << 16};
    JsonOut out = json_out_begin(&body);
    format->write_error(&out, error);
    if (error->status == 401) http_exchange_add_header(x, "WWW-Authenticate", "Bearer");
    if (error->status == 503) http_exchange_add_header(x, "Retry-After", "1");
    s->metrics.responses[error->status / 100]++;
    request_log_refusal(s, http_exchange_peer(x), http_exchange_head(x)->method, http_exchange_head(x)->path,
                        error->status);
    http_exchange_reply(x, error->status, "application/json", body.data ? body.data : "", out.failed ? 0 : body.n);
    buf_free(&body);
}

static int check(const Service *s, const HttpHead *head, const Endpoint *endpoint, const Endpoint *same_path,
                 ApiError *error) {
    if (!access_allows_origin(&s->access, head))
        return api_refuse(error, 403, "origin_not_allowed", NULL,
                          "pages of this origin may not use the server; the operator can list it with --cors-origin");
    if (!endpoint && !same_path) return api_refuse(error, 404, "not_found", NULL, "there is no such endpoint");
    if (!endpoint)
        return api_refuse(error, 405, "method_not_allowed", NULL, "this endpoint takes %s", same_path->method);
    if (!endpoint->is_open && !access_has_key(&s->access, head))
        return api_refuse(error, 401, "invalid_api_key", NULL,
                          "a valid API key is missing: send 'Authorization: Bearer KEY'");
    if (s->drains && !endpoint->may_drain) return api_refuse(error, 503, NULL, NULL, "the server is shutting down");
    return 0;
}

void api_receive(void *service, HttpExchange *x) {
    Service *s = service;
    const HttpHead *head = http_exchange_head(x);
    ApiError error = {0};
    const Endpoint *same_path, *endpoint = find(head->method, head->path, &same_path);
    const Endpoint *shown = endpoint ? endpoint : same_path;
    if (strcmp(head->method, "OPTIONS") == 0 && access_allows_origin(&s->access, head)) {
        access_answer_preflight(&s->access, x);
        return;
    }
    bool is_refused = check(s, head, endpoint, same_path, &error) != 0;
    if (error.status != 403) access_add_cors(&s->access, x);
    if (is_refused) refuse(s, x, shown ? shown->format : &default_format, &error);
    else api_call_begin(s, x, endpoint);
}

bool api_write_refusal(void *service, Buf *out, const char *path, int status, const char *why) {
    Service *s = service;
    const Endpoint *same_path, *endpoint = find("POST", path, &same_path);
    const Endpoint *shown = endpoint ? endpoint : same_path;
    ApiError error;
    api_refuse(&error, status, NULL, NULL, "%s", why);
    JsonOut j = json_out_begin(out);
    (shown ? shown->format : &default_format)->write_error(&j, &error);
    s->metrics.responses[status / 100]++;
    request_log_refusal(s, "-", "-", path, status);
    return !j.failed;
}

/* api_receive.c - from a request to its endpoint: host, origin, path, method, key, and whether the server still takes
 * requests.
 *
 * The order matters: a page of a foreign origin learns nothing, not even which paths exist, and a client without a key
 * learns only which paths exist. */
#include "server/api/api.h"
#include "server/api/openai_format.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const Endpoint *const families[] = {chat_completions_endpoints,
                                           text_completions_endpoints,
                                           native_completions_endpoints,
                                           token_endpoints,
                                           status_endpoints,
                                           messages_endpoints,
                                           responses_endpoints,
                                           ollama_endpoints,
                                           ollama_model_endpoints,
                                           slot_endpoints,
                                           draft_endpoints,
                                           llama_endpoints};
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

static bool has_path(const Endpoint *e, const char *path) {
    size_t n = strlen(e->path);
    return e->has_name ? strncmp(e->path, path, n) == 0 && path[n] : strcmp(e->path, path) == 0;
}

/* Finds the endpoint of a path and method; *same_path is an endpoint with that path and any method. A HEAD request is a
 * GET request whose body is not sent. */
static const Endpoint *find(const char *method, const char *path, const Endpoint **same_path) {
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *same_path = NULL;
    for (int i = 0; i < N_FAMILIES; i++)
        for (const Endpoint *e = families[i]; e->path; e++) {
            if (!has_path(e, path)) continue;
            if (strcmp(e->method, wanted) == 0) return e;
            *same_path = e;
        }
    return NULL;
}

/* Returns the form of errors at a path: that of its endpoint or, without one, of the API whose paths begin so. */
static const ApiFormat *format_at(const char *path, const Endpoint *endpoint) {
    if (endpoint) return endpoint->format;
    if (strncmp(path, "/api/", 5) == 0) return ollama_endpoints[0].format;
    return strncmp(path, "/v1/messages", 12) == 0 ? messages_endpoints[0].format : &default_format;
}

/* Writes the methods of a path into the header that an answer with status 405 must have. */
static void add_allowed_methods(HttpExchange *x, const char *path) {
    char methods[64] = "OPTIONS";
    for (int i = 0; i < N_FAMILIES; i++)
        for (const Endpoint *e = families[i]; e->path; e++) {
            size_t n = strlen(methods);
            if (!has_path(e, path)) continue;
            snprintf(methods + n, sizeof methods - n, ", %s%s", e->method,
                     strcmp(e->method, "GET") == 0 ? ", HEAD" : "");
        }
    http_exchange_add_header(x, "Allow", methods);
}

/* Refuses a request that does not become a call. */
static void refuse(Service *s, HttpExchange *x, const ApiFormat *format, const ApiError *error) {
    Buf body = {.max_bytes = 1 << 16};
    JsonOut out = json_out_begin(&body);
    format->write_error(&out, error);
    if (error->status == 401) http_exchange_add_header(x, "WWW-Authenticate", "Bearer");
    if (error->status == 405) add_allowed_methods(x, http_exchange_head(x)->path);
    if (error->status == 503) http_exchange_add_header(x, "Retry-After", "1");
    s->metrics.responses[error->status / 100]++;
    request_log_refusal(s, http_exchange_peer(x), http_exchange_head(x)->method, http_exchange_head(x)->path,
                        error->status);
    http_exchange_reply(x, error->status, "application/json", body.data ? body.data : "", out.failed ? 0 : body.n);
    buf_free(&body);
}

static int check(const Service *s, const HttpHead *head, const Endpoint *endpoint, const Endpoint *same_path,
                 ApiError *error) {
    if (!access_allows_host(&s->access, head))
        return api_refuse(error, 403, "host_not_allowed", NULL,
                          "requests without a key may not use this name of the server; the operator can list it with "
                          "--allowed-host");
    if (!access_allows_origin(&s->access, head))
        return api_refuse(error, 403, "origin_not_allowed", NULL,
                          "pages of this origin may not use the server; the operator can list it with --cors-origin");
    if (s->loads) return api_refuse(error, 503, "loading", NULL, "the model is being loaded; try again later");
    if (!endpoint && !same_path) return api_refuse(error, 404, "not_found", NULL, "there is no such endpoint");
    if (!endpoint)
        return api_refuse(error, 405, "method_not_allowed", NULL, "this endpoint takes %s", same_path->method);
    if (!endpoint->is_open && !access_has_key(&s->access, head))
        return api_refuse(error, 401, "invalid_api_key", NULL,
                          "a valid API key is missing: send 'Authorization: Bearer KEY'");
    if (s->drains && !endpoint->may_drain) return api_refuse(error, 503, NULL, NULL, "the server is shutting down");
    const char *coding = http_head_find(head, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return api_refuse(error, 415, "unsupported_encoding", NULL,
                          "bodies in the encoding '%.40s' are not supported; send the body as it is", coding);
    return 0;
}

/* Names the answer by the request's own x-request-id, if that is short and plain, or by a random id; Anthropic's
 * clients read the second header. */
static void add_request_id(HttpExchange *x) {
    const char *given = http_head_find(http_exchange_head(x), "X-Request-Id");
    char id[40];
    size_t n = given ? strlen(given) : 0;
    bool is_plain = n > 0 && n < sizeof id;
    for (size_t i = 0; i < n && is_plain; i++) is_plain = given[i] > ' ' && given[i] < 0x7f;
    if (is_plain) memcpy(id, given, n + 1);
    else api_random_id("req_", id);
    http_exchange_add_header(x, "X-Request-Id", id);
    http_exchange_add_header(x, "Request-Id", id);
}

void api_receive(void *service, HttpExchange *x) {
    Service *s = service;
    const HttpHead *head = http_exchange_head(x);
    ApiError error = {0};
    const Endpoint *same_path, *endpoint = find(head->method, head->path, &same_path);
    const Endpoint *shown = endpoint ? endpoint : same_path;
    if (strcmp(head->method, "OPTIONS") == 0 && access_allows_host(&s->access, head) &&
        access_allows_origin(&s->access, head)) {
        access_answer_preflight(&s->access, x);
        return;
    }
    bool is_refused = check(s, head, endpoint, same_path, &error) != 0;
    add_request_id(x);
    if (error.status != 403) access_add_cors(&s->access, x);
    if (is_refused) refuse(s, x, format_at(head->path, shown), &error);
    else api_call_begin(s, x, endpoint);
}

bool api_write_refusal(void *service, Buf *out, const char *path, int status, const char *why) {
    Service *s = service;
    const Endpoint *same_path, *endpoint = find("POST", path, &same_path);
    const Endpoint *shown = endpoint ? endpoint : same_path;
    ApiError error;
    api_refuse(&error, status, NULL, NULL, "%s", why);
    JsonOut j = json_out_begin(out);
    format_at(path, shown)->write_error(&j, &error);
    s->metrics.responses[status / 100]++;
    request_log_refusal(s, "-", "-", path, status);
    return !j.failed;
}

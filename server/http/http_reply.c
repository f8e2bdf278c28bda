/* http_reply.c - answers: whole ones with a length, and streams in chunks.
 *
 * A client that does not read what it asked for must not fill the server's memory: where more than max_unsent_bytes of a
 * stream wait, the connection is closed, and on_gone tells whoever made the answer. That happens from the event loop and
 * never within a call, so that the caller need not check after each piece. */
#include "server/http/http_connection.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *http_status_text(int status) {
    static const struct {
        int status;
        const char *text;
    } texts[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].status == status) return texts[i].text;
    return "Unknown";
}

const HttpHead *http_exchange_head(const HttpExchange *x) { return &x->head; }
const char *http_exchange_peer(const HttpExchange *x) { return x->peer; }
double http_exchange_started_s(const HttpExchange *x) { return x->started_s; }

char *http_exchange_take_body(HttpExchange *x, size_t *n) {
    char *body = x->body.data;
    *n = x->body.n;
    x->body = (Buf){.max_bytes = x->body.max_bytes};
    return body;
}

void http_server_release_body(HttpServer *s, size_t n) { s->n_body_bytes -= n; }

void http_exchange_on_gone(HttpExchange *x, void (*on_gone)(void *user), void *user) {
    x->on_gone = on_gone;
    x->gone_user = user;
}

void http_exchange_add_header(HttpExchange *x, const char *name, const char *value) {
    size_t before = x->headers.n;
    bool fits = buf_append(&x->headers, name, strlen(name)) && buf_append(&x->headers, ": ", 2) &&
                buf_append(&x->headers, value, strlen(value)) && buf_append(&x->headers, "\r\n", 2);
    if (!fits) x->headers.n = before;
}

static void write_head(HttpExchange *x, int status, const char *type, const char *length) {
    char date[64];
    struct tm tm;
    time_t now = time(NULL);
    struct evbuffer *out = bufferevent_get_output(x->bev);
    if (x->server->drains) x->head.keeps_alive = false;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: forerun\r\n", status, http_status_text(status),
                        date);
    if (type) evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    evbuffer_add(out, x->headers.data, x->headers.n);
    evbuffer_add_printf(out, "%sConnection: %s\r\n\r\n", length, x->head.keeps_alive ? "keep-alive" : "close");
}

void http_exchange_reply(HttpExchange *x, int status, const char *type, const char *body, size_t n) {
    char length[64];
    snprintf(length, sizeof length, "Content-Length: %zu\r\n", n);
    write_head(x, status, type, status == 204 ? "" : length);
    if (!x->is_head_request) evbuffer_add(bufferevent_get_output(x->bev), body, n);
    x->on_gone = NULL;
    http_connection_answered(x);
}

void http_exchange_begin(HttpExchange *x, int status, const char *type) {
    x->is_chunked = x->head.minor == 1;
    if (!x->is_chunked) x->head.keeps_alive = false;
    http_exchange_add_header(x, "Cache-Control", "no-store");
    http_exchange_add_header(x, "X-Accel-Buffering", "no"); /* nginx would hold events back */
    write_head(x, status, type, x->is_chunked ? "Transfer-Encoding: chunked\r\n" : "");
    x->is_begun = true;
}

void http_exchange_write(HttpExchange *x, const char *bytes, size_t n) {
    struct evbuffer *out = bufferevent_get_output(x->bev);
    if (n == 0 || x->is_head_request) return;
    if (x->is_chunked) evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, bytes, n);
    if (x->is_chunked) evbuffer_add(out, "\r\n", 2);
    if (evbuffer_get_length(out) > x->server->options.limits.max_unsent_bytes) x->deadline_s = 1e-9; /* long past */
}

void http_exchange_end(HttpExchange *x) {
    if (x->is_chunked && !x->is_head_request) evbuffer_add(bufferevent_get_output(x->bev), "0\r\n\r\n", 5);
    x->on_gone = NULL;
    http_connection_answered(x);
}

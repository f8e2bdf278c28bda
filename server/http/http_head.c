/* http_head.c - a strict parser of request heads and of the lines between chunks; and answers.
 *
 * Everything that two programs could read differently is refused and not guessed, because a proxy in front of the
 * server may read it the other way (request smuggling): two lengths, a length and chunks, two hosts, blanks before a
 * colon, folded lines, control characters, a CR or an LF without the other, a chunk size with anything but digits
 * before its extensions. The rest is simple enough to be read in one pass. */
#include "server/http/http_server.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static bool is_token(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_control(char c) { return ((unsigned char)c < 0x20 && c != '\t') || c == 0x7F; }

/* Cuts off the next line. NULL: there is none, or it has a zero byte, or a CR or an LF without the other. */
static char *next_line(char **at, const char *end) {
    char *line = *at, *lf = memchr(line, '\n', (size_t)(end - line));
    if (!lf || lf == line || lf[-1] != '\r') return NULL;
    *at = lf + 1;
    *--lf = '\0';
    return strlen(line) == (size_t)(lf - line) && !strchr(line, '\r') ? line : NULL;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes %XX in place. False: it is malformed, or is a zero byte. */
static bool decode_path(char *path) {
    char *to = path;
    for (const char *from = path; *from; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        int high = hex_digit(from[1]), low = high < 0 ? -1 : hex_digit(from[2]);
        if (low < 0 || (high == 0 && low == 0)) return false;
        *to++ = (char)(high * 16 + low);
        from += 2;
    }
    *to = '\0';
    return true;
}

/* Reads "GET /path?query HTTP/1.1". The target may also be "http://host/path". */
static int parse_request_line(HttpHead *h, char *line, const char **why) {
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    *why = "the request line must be METHOD /path HTTP/1.1";
    if (!version || target == line) return 400;
    *target++ = *version++ = '\0';
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c)) return 400;
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7F) return 400;
    if (strncmp(version, "HTTP/", 5) == 0 && strncmp(version, "HTTP/1.", 7) != 0) {
        *why = "this server speaks HTTP/1.1";
        return 505;
    }
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) return 400;
    h->minor = version[7] - '0';
    h->method = line;
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        h->authority = strchr(target, ':') + 3;
        target = strchr(h->authority, '/');
        if (!target) return 400;
        h->n_authority = (size_t)(target - h->authority);
    }
    char *question = strchr(target, '?');
    if (question) *question++ = '\0';
    h->query = question ? question : "";
    h->path = target;
    return (*target == '/' || strcmp(target, "*") == 0) && decode_path(target) ? 0 : 400;
}

/* Cuts "Name: value" in two. Returns the value; NULL: the line is malformed. */
static char *split_header(char *line) {
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return NULL;
    *colon = '\0';
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c)) return NULL;
    char *value = colon + 1 + strspn(colon + 1, " \t"), *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) *--end = '\0';
    for (const char *c = value; *c; c++)
        if (is_control(*c)) return NULL;
    return value;
}

static int parse_header(HttpHead *h, char *line, const char **why) {
    const char *value = split_header(line);
    *why = "a header is malformed: each must be a line 'Name: value'";
    if (!value) return 400;
    if (h->n_headers == HTTP_MAX_HEADERS) {
        *why = "the request has more than 64 headers";
        return 431;
    }
    h->headers[h->n_headers++] = (HttpHeader){line, value};
    return 0;
}

bool http_is_trailer(char *line, size_t n) { return strlen(line) == n && split_header(line) != NULL; }

/* ---- chunks ---------------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *at) { return at + strspn(at, " \t"); }

static const char *skip_token(const char *at) {
    while (is_token((unsigned char)*at)) at++;
    return at;
}

/* Returns the end of "..." with its escapes; NULL: it is malformed. */
static const char *skip_quoted(const char *at) {
    for (at++; *at && *at != '"'; at++) {
        if (*at == '\\') at++;
        if (!*at || is_control(*at)) return NULL;
    }
    return *at ? at + 1 : NULL;
}

/* Returns the end of the extension ";name" or ";name=value" that begins at `at`; NULL: it is malformed. */
static const char *skip_extension(const char *at) {
    const char *name = skip_blanks(at + 1), *end = skip_token(name), *equals = skip_blanks(end);
    if (end == name) return NULL;
    if (*equals != '=') return end;
    const char *value = skip_blanks(equals + 1);
    end = *value == '"' ? skip_quoted(value) : skip_token(value);
    return end == value ? NULL : end;
}

bool http_parse_chunk_size(const char *line, size_t n, size_t *size) {
    size_t n_digits = strspn(line, "0123456789abcdefABCDEF");
    if (strlen(line) != n || n_digits < 1 || n_digits > 8) return false;
    *size = 0;
    for (size_t i = 0; i < n_digits; i++) *size = *size * 16 + (size_t)hex_digit(line[i]);
    const char *at = line + n_digits;
    while (at && *at) {
        const char *semicolon = skip_blanks(at);
        at = *semicolon == ';' ? skip_extension(semicolon) : NULL;
    }
    return at != NULL;
}

/* ---- the head -------------------------------------------------------------------------------------------- */

const char *http_head_find(const HttpHead *h, const char *name) {
    for (int i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0) return h->headers[i].value;
    return NULL;
}

static int count(const HttpHead *h, const char *name) {
    int n = 0;
    for (int i = 0; i < h->n_headers; i++) n += strcasecmp(h->headers[i].name, name) == 0;
    return n;
}

static int read_length(HttpHead *h, const char **why) {
    const char *length = http_head_find(h, "Content-Length"), *coding = http_head_find(h, "Transfer-Encoding");
    *why = "the length of the body is not clear: send either one Content-Length or 'Transfer-Encoding: chunked'";
    if (count(h, "Content-Length") > 1 || count(h, "Transfer-Encoding") > 1 || (length && coding)) return 400;
    if (coding && (strcasecmp(coding, "chunked") != 0 || h->minor == 0)) return 501;
    h->is_chunked = coding != NULL;
    if (!length) return 0;
    size_t n_digits = strspn(length, "0123456789");
    if (n_digits == 0 || length[n_digits]) return 400;
    if (n_digits > 15) return 413;
    for (const char *c = length; *c; c++) h->content_length = h->content_length * 10 + (*c - '0');
    return 0;
}

/* Returns whether a list of words "a, b" has this word. */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at && *at; at += strcspn(at, ",")) {
        at += strspn(at, ", \t");
        if (strncasecmp(at, word, n) == 0 && (!at[n] || strchr(", \t", at[n]))) return true;
    }
    return false;
}

int http_head_parse(HttpHead *h, char *bytes, size_t n, const char **why) {
    *h = (HttpHead){.method = "", .query = ""};
    char *at = bytes, *line = next_line(&at, bytes + n);
    *why = "the request line is malformed: it must end with CR LF";
    int status = line ? parse_request_line(h, line, why) : 400;
    while (!status) {
        line = next_line(&at, bytes + n);
        *why = "the head of the request is malformed: each line must end with CR LF";
        if (!line) return 400;
        if (!*line) break;
        status = parse_header(h, line, why);
    }
    if (!status) status = read_length(h, why);
    if (status) return status;
    if (count(h, "Host") > 1 || (count(h, "Host") == 0 && h->minor == 1)) {
        *why = "a request by HTTP/1.1 must have one Host header";
        return 400;
    }
    const char *host = http_head_find(h, "Host");
    if (h->authority &&
        (!host || strlen(host) != h->n_authority || strncasecmp(host, h->authority, h->n_authority) != 0)) {
        *why = "the request line and the Host header name different hosts";
        return 400;
    }
    const char *connection = http_head_find(h, "Connection"), *expect = http_head_find(h, "Expect");
    h->keeps_alive = h->minor == 1 ? !has_word(connection, "close") : has_word(connection, "keep-alive");
    h->expects_continue = expect && h->minor == 1 && strcasecmp(expect, "100-continue") == 0;
    if (expect && !h->expects_continue && h->minor == 1) {
        *why = "the only expectation that can be met is 100-continue";
        return 417;
    }
    return 0;
}

/* ---- answers: whole ones with a length, and streams in chunks -------------------------------------------------
 *
 * A client that does not read its answer must not fill the server's memory: if more than max_unsent_bytes of a stream
 * wait, the connection is closed and on_gone is called. That happens in the event loop and never within a call, so that
 * the caller need not check after each piece. */

static const char *http_status_text(int status) {
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
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
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
    http_exchange_add_header(x, "X-Accel-Buffering", "no"); /* otherwise nginx would hold events back */
    write_head(x, status, type, x->is_chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

void http_exchange_write(HttpExchange *x, const char *bytes, size_t n) {
    struct evbuffer *out = bufferevent_get_output(x->bev);
    if (n == 0 || x->is_head_request) return;
    if (x->is_chunked) evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, bytes, n);
    if (x->is_chunked) evbuffer_add(out, "\r\n", 2);
    if (evbuffer_get_length(out) > x->server->options.limits.max_unsent_bytes)
        x->deadline_s = 1e-9; /* in the past, so that the next check closes the connection */
}

void http_exchange_end(HttpExchange *x) {
    if (x->is_chunked && !x->is_head_request) evbuffer_add(bufferevent_get_output(x->bev), "0\r\n\r\n", 5);
    x->on_gone = NULL;
    http_connection_answered(x);
}

/* http_connection.c - reads requests from one connection: head, body by length or in chunks, hang-ups, deadlines.
 *
 * A request has one deadline for head and body together. It begins with the first byte and no byte extends it, so that
 * slow senders are closed. An answer has no deadline while it is being made, but the number of its bytes that wait for
 * the client is limited; once it is complete, the client must read it piece by piece, each within the idle timeout.
 *
 * evhttp would be the obvious choice. But in libevent 2.1 it calls no callback between accepting a connection and a
 * complete request, and each byte restarts its timeout, so that slow senders cannot be bounded; it refuses requests
 * with HTML pages of its own; and it stops reading while a request is answered. */
#include "server/http/http_server.h"

#include "base/system.h"

#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MAX_TRAILER = 8 << 10,   /* a line of chunk sizes or trailers */
    MAX_PIPELINED = 1 << 20, /* bytes that may come before the previous request is answered */
    MAX_LINGER_S = 2,        /* the time for a client to read the refusal of its request */
};

/* ---- the list of connections -------------------------------------------------------------------------- */

static void unlink_connection(HttpExchange *x) {
    HttpServer *s = x->server;
    *(x->previous ? &x->previous->next : &s->first) = x->next;
    *(x->next ? &x->next->previous : &s->last) = x->previous;
}

static void link_last(HttpExchange *x) {
    HttpServer *s = x->server;
    x->previous = s->last;
    x->next = NULL;
    *(s->last ? &s->last->next : &s->first) = x;
    s->last = x;
}

static void enter_state(HttpExchange *x, HttpState state, double timeout_s) {
    x->state = state;
    x->deadline_s = timeout_s > 0 ? clock_s() + timeout_s : 0;
    x->n_unsent = evbuffer_get_length(bufferevent_get_output(x->bev));
    unlink_connection(x);
    link_last(x);
}

/* ---- the life of a connection --------------------------------------------------------------------------- */

static void free_request(HttpExchange *x) {
    free(x->head_bytes);
    x->head_bytes = NULL;
    http_server_release_body(x->server, x->body.n);
    buf_free(&x->body);
    buf_free(&x->headers);
    x->head = (HttpHead){.method = "", .query = ""};
    x->is_chunked = x->is_head_request = false;
    x->on_gone = NULL;
}

void http_connection_close(HttpExchange *x) {
    void (*on_gone)(void *) = x->on_gone;
    void *user = x->gone_user;
    unlink_connection(x);
    x->server->n_connections--;
    bufferevent_free(x->bev);
    free_request(x);
    free(x);
    if (on_gone) on_gone(user);
}

static void begin_request(HttpExchange *x) {
    free_request(x);
    x->body.max_bytes = x->server->options.limits.max_body_bytes;
    x->headers.max_bytes = 64 << 10;
}

/* Sends what is left, and then closes. */
static void http_connection_finish(HttpExchange *x) {
    enter_state(x, HTTP_CLOSES, x->server->options.limits.idle_timeout_s);
    if (x->n_unsent == 0) bufferevent_trigger(x->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

void http_connection_answered(HttpExchange *x) {
    bool goes_on = x->head.keeps_alive && !x->server->drains;
    begin_request(x);
    if (!goes_on) {
        http_connection_finish(x);
        return;
    }
    x->is_idle = true;
    enter_state(x, HTTP_READS_HEAD, x->server->options.limits.idle_timeout_s);
    bufferevent_trigger(x->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS); /* the next request may have come meanwhile */
}

/* Refuses a request that is not complete, and closes the connection when that is sent. */
static void http_connection_refuse(HttpExchange *x, int status, const char *why) {
    const HttpServerOptions *o = &x->server->options;
    Buf body = {.max_bytes = 1 << 16};
    x->head.keeps_alive = false;
    x->on_gone = NULL;
    x->state = HTTP_ANSWERS;
    bool fits = o->write_error(o->user, &body, x->head.path ? x->head.path : "/", status, why);
    http_exchange_reply(x, status, "application/json", fits ? body.data : "", fits ? body.n : 0);
    buf_free(&body);
}

/* ---- reading -------------------------------------------------------------------------------------------- */

static void complete(HttpExchange *x) {
    x->is_head_request = strcmp(x->head.method, "HEAD") == 0;
    enter_state(x, HTTP_ANSWERS, 0);
    if (!x->body.data && !buf_append(&x->body, "", 0)) http_connection_refuse(x, 500, "memory ran out");
    else x->server->options.on_request(x->server->options.user, x);
}

/* Returns the length of the head with its empty line; 0: it is not complete. An LF without a CR ends a line here, so
 * that the parser refuses it at once. */
static size_t head_length(struct evbuffer *in) {
    struct evbuffer_ptr crlf = evbuffer_search(in, "\n\r\n", 3, NULL), lf = evbuffer_search(in, "\n\n", 2, NULL);
    size_t a = crlf.pos < 0 ? SIZE_MAX : (size_t)crlf.pos + 3, b = lf.pos < 0 ? SIZE_MAX : (size_t)lf.pos + 2;
    size_t n = a < b ? a : b;
    return n == SIZE_MAX ? 0 : n;
}

static bool read_head(HttpExchange *x, struct evbuffer *in) {
    const char *why;
    char first[2]; /* an empty line before a request is skipped, as RFC 9112 demands */
    while (evbuffer_copyout(in, first, 2) == 2 && memcmp(first, "\r\n", 2) == 0) evbuffer_drain(in, 2);
    if (evbuffer_get_length(in) == 0) return false;
    if (x->is_idle || x->started_s <= 0) {
        x->is_idle = false;
        x->started_s = clock_s();
        enter_state(x, HTTP_READS_HEAD, x->server->options.limits.request_timeout_s);
    }
    size_t n = head_length(in);
    if (n > HTTP_MAX_HEAD || (n == 0 && evbuffer_get_length(in) > HTTP_MAX_HEAD)) {
        http_connection_refuse(x, 431, "the head of the request is longer than 32768 bytes");
        return false;
    }
    if (n == 0) return false;
    x->head_bytes = malloc(n + 1);
    if (!x->head_bytes) {
        http_connection_refuse(x, 500, "memory ran out");
        return false;
    }
    evbuffer_remove(in, x->head_bytes, n);
    x->head_bytes[n] = '\0';
    int status = http_head_parse(&x->head, x->head_bytes, n, &why);
    size_t most = x->server->options.limits.max_body_bytes;
    if (!status && x->head.content_length > (int64_t)most)
        status = 413, why = "the body is larger than this server takes";
    if (status) {
        http_connection_refuse(x, status, why);
        return false;
    }
    x->n_missing = (size_t)x->head.content_length;
    bool has_body = x->head.is_chunked || x->n_missing > 0;
    if (x->head.expects_continue && has_body && evbuffer_get_length(in) == 0)
        evbuffer_add(bufferevent_get_output(x->bev), "HTTP/1.1 100 Continue\r\n\r\n", 25);
    x->state = x->head.is_chunked ? HTTP_READS_CHUNK_SIZE : HTTP_READS_BODY;
    if (!has_body) complete(x);
    return has_body;
}

/* Reads as many of the n_missing bytes as there are. True: they are complete. */
static bool read_bytes(HttpExchange *x, struct evbuffer *in) {
    char piece[16384];
    while (x->n_missing > 0) {
        int n = evbuffer_remove(in, piece, x->n_missing < sizeof piece ? x->n_missing : sizeof piece);
        if (n <= 0) return false;
        if (!buf_append(&x->body, piece, (size_t)n)) {
            http_connection_refuse(x, 413, "the body is larger than this server takes");
            return false;
        }
        x->n_missing -= (size_t)n;
        x->server->n_body_bytes += (size_t)n;
        if (x->server->n_body_bytes > x->server->options.limits.max_all_bodies) {
            http_connection_refuse(x, 503, "the server is reading too many large requests at once");
            return false;
        }
    }
    return true;
}

/* Reads a line of a chunked body. False: it is not complete, was refused, or was the last one. */
static bool read_chunk_line(HttpExchange *x, struct evbuffer *in) {
    size_t n, size = 0;
    char *line = evbuffer_readln(in, &n, EVBUFFER_EOL_LF);
    if (!line) {
        if (evbuffer_get_length(in) > MAX_TRAILER) http_connection_refuse(x, 431, "a chunk's line is too long");
        return false;
    }
    bool fine = n > 0 && line[n - 1] == '\r', is_last = false;
    if (fine) line[--n] = '\0';
    if (x->state == HTTP_READS_CHUNK_SIZE) {
        fine = fine && http_parse_chunk_size(line, n, &size);
        x->n_missing = size;
        x->state = size ? HTTP_READS_CHUNK : HTTP_READS_TRAILER;
    } else if (x->state == HTTP_READS_CHUNK_END) {
        fine = fine && n == 0;
        x->state = HTTP_READS_CHUNK_SIZE;
    } else {
        is_last = fine && n == 0;
        fine = is_last || (fine && http_is_trailer(line, n));
    }
    free(line);
    if (!fine) http_connection_refuse(x, 400, "the chunks of the body are malformed");
    else if (is_last) complete(x);
    return fine && !is_last;
}

/* Reads one piece of the request. True: there may be more to read. False: there is not, and the connection may be
 * closed. */
static bool read_piece(HttpExchange *x, struct evbuffer *in) {
    switch (x->state) {
    case HTTP_READS_HEAD: return read_head(x, in);
    case HTTP_READS_BODY:
        if (read_bytes(x, in)) complete(x);
        return false;
    case HTTP_READS_CHUNK:
        if (!read_bytes(x, in)) return false;
        x->state = HTTP_READS_CHUNK_END;
        return true;
    case HTTP_READS_CHUNK_SIZE:
    case HTTP_READS_CHUNK_END:
    case HTTP_READS_TRAILER: return read_chunk_line(x, in);
    case HTTP_ANSWERS:
        if (evbuffer_get_length(in) > MAX_PIPELINED) http_connection_close(x);
        return false;
    default: evbuffer_drain(in, evbuffer_get_length(in)); return false;
    }
}

static void on_read(struct bufferevent *bev, void *user) {
    struct evbuffer *in = bufferevent_get_input(bev);
    while (read_piece(user, in)) {}
}

/* Goes on when everything that was written has been sent. */
static void on_sent(struct bufferevent *bev, void *user) {
    HttpExchange *x = user;
    if (x->state != HTTP_CLOSES || evbuffer_get_length(bufferevent_get_output(bev)) > 0) return;
    if (x->has_shut_down) return;
    /* If the connection were closed while the client still sends, the client would lose the answer. */
    x->has_shut_down = true;
    if (x->server->options.tls) SSL_shutdown(bufferevent_openssl_get_ssl(bev));
    shutdown(bufferevent_getfd(bev), SHUT_WR);
    enter_state(x, HTTP_CLOSES, MAX_LINGER_S);
}

/* The client has closed its side, or the connection is broken. If an answer is due, the client no longer wants it; an
 * answer that is complete is still sent. */
static void on_event(struct bufferevent *bev, short what, void *user) {
    HttpExchange *x = user;
    if (!(what & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT))) return;
    bool is_unsent = evbuffer_get_length(bufferevent_get_output(bev)) > 0;
    if (!(what & BEV_EVENT_EOF) || x->state == HTTP_ANSWERS || !is_unsent) http_connection_close(x);
    else if (x->state != HTTP_CLOSES) http_connection_finish(x);
}

static struct bufferevent *new_bufferevent(HttpServer *s, int fd) {
    if (!s->options.tls) return bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    SSL *ssl = SSL_new(s->options.tls);
    if (!ssl) return NULL;
    struct bufferevent *bev = bufferevent_openssl_socket_new(s->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                             BEV_OPT_CLOSE_ON_FREE);
    if (bev) bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    else SSL_free(ssl);
    return bev;
}

void http_connection_open(HttpServer *s, int fd, const char *peer) {
    HttpExchange *x = calloc(1, sizeof *x);
    struct bufferevent *bev = x ? new_bufferevent(s, fd) : NULL;
    if (!bev) {
        free(x);
        close(fd);
        return;
    }
    x->server = s;
    x->bev = bev;
    snprintf(x->peer, sizeof x->peer, "%s", peer);
    link_last(x);
    s->n_connections++;
    begin_request(x);
    enter_state(x, HTTP_READS_HEAD, s->options.limits.idle_timeout_s);
    bufferevent_setcb(bev, on_read, on_sent, on_event, x);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

void http_connection_check(HttpExchange *x, double now_s) {
    if (x->deadline_s <= 0 || now_s < x->deadline_s) return;
    size_t n_unsent = evbuffer_get_length(bufferevent_get_output(x->bev));
    if (n_unsent > 0 && n_unsent < x->n_unsent && !x->has_shut_down) { /* the client is slow, but it reads */
        x->n_unsent = n_unsent;
        x->deadline_s = now_s + x->server->options.limits.idle_timeout_s;
        return;
    }
    if (x->state < HTTP_ANSWERS && !x->is_idle && x->started_s > 0)
        http_connection_refuse(x, 408, "the request did not arrive in time");
    else http_connection_close(x);
}

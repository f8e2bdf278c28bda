/* http_server.h - an HTTP/1.1 server over libevent's listeners and bufferevents, in one thread.
 *
 * A connection reads one request at a time (http_head.h), hands it over as an HttpExchange, and reads the next one when that
 * is answered. It goes on reading meanwhile, so that a client that hangs up is noticed at once, also before the first byte
 * of its answer. */
#ifndef SERVE_HTTP_SERVER_H
#define SERVE_HTTP_SERVER_H

#include "server/http/http_head.h"
#include "base/error.h"
#include "base/mem.h"

#include <event2/event.h>

typedef struct HttpServer HttpServer;
typedef struct HttpExchange HttpExchange;

typedef struct HttpLimits {
    size_t max_body_bytes;
    size_t max_all_bodies;    /* bytes of all bodies that have arrived and are not released */
    size_t max_unsent_bytes;  /* of an answer that the client does not read; then it is hung up on */
    int max_connections;      /* where more come, the connection makes room that has waited longest for a request */
    double request_timeout_s; /* for head and body together */
    double idle_timeout_s;    /* between requests, and for each piece of an answer to be read */
} HttpLimits;

typedef struct HttpServerOptions {
    const char *host;
    int port; /* 0: the system chooses */
    HttpLimits limits;
    void *tls; /* an SSL_CTX, borrowed; NULL: plain */
    /* A complete request. It must be answered, now or later, by the functions below. */
    void (*on_request)(void *user, HttpExchange *x);
    /* A request that was refused before it was complete: writes the body of the answer. False: no memory. */
    bool (*write_error)(void *user, Buf *out, const char *path, int status, const char *why);
    void *user;
} HttpServerOptions;

int http_server_open(HttpServer **out, struct event_base *base, const HttpServerOptions *options, fr_error *err);
/* Closes all connections; on_gone of exchanges that are not answered is called. NULL is fine. */
void http_server_close(HttpServer *s);
int http_server_port(const HttpServer *s);
int http_server_n_connections(const HttpServer *s);
/* From now on each connection is closed after the answer that it waits for. */
void http_server_drain(HttpServer *s);

/* ---- one request and its answer ---------------------------------------------------------------------- */

/* Valid until the exchange is answered or gone. */
const HttpHead *http_exchange_head(const HttpExchange *x);
const char *http_exchange_peer(const HttpExchange *x); /* "127.0.0.1:1234" */
/* Moves the body out, which is followed by a '\0'. The caller frees it by free(), and reports that its n bytes are gone. */
char *http_exchange_take_body(HttpExchange *x, size_t *n);
void http_server_release_body(HttpServer *s, size_t n);
double http_exchange_started_s(const HttpExchange *x);

/* The client hung up, or read too slowly, before the answer was complete: the exchange is no longer valid. */
void http_exchange_on_gone(HttpExchange *x, void (*on_gone)(void *user), void *user);
/* Adds a header to the answer; name and value are copied. */
void http_exchange_add_header(HttpExchange *x, const char *name, const char *value);
/* Answers; the exchange is no longer valid. */
void http_exchange_reply(HttpExchange *x, int status, const char *type, const char *body, size_t n);
/* An answer in pieces. After http_exchange_end it is no longer valid. on_gone may be called within none of these. */
void http_exchange_begin(HttpExchange *x, int status, const char *type);
void http_exchange_write(HttpExchange *x, const char *bytes, size_t n);
void http_exchange_end(HttpExchange *x);

const char *http_status_text(int status);

#endif

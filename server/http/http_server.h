/* http_server.h - an HTTP/1.1 server over libevent's listeners and bufferevents, in one thread.
 *
 * A connection reads one request at a time (http_head.h), hands it over as an HttpExchange, and reads the next one when that
 * is answered. It goes on reading meanwhile, so that a client that hangs up is noticed at once, also before the first byte
 * of its answer. */
#ifndef SERVER_HTTP_HTTP_SERVER_H
#define SERVER_HTTP_HTTP_SERVER_H

#include "base/error.h"
#include "base/mem.h"
#include "server/http/http_head.h"

#include <event2/bufferevent.h>
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

/* Who may use the server: API keys, the hosts that requests may name, and the origins whose pages a browser lets in (CORS). */

enum { ACCESS_MAX_ORIGINS = 16, ACCESS_MAX_HOSTS = 16, ACCESS_MAX_KEYS = 256, ACCESS_DIGEST = 32 };

typedef struct Access {
    unsigned char keys[ACCESS_MAX_KEYS][ACCESS_DIGEST]; /* SHA-256; keys themselves are not kept */
    int n_keys;                                         /* 0: nobody needs one */
    const char *origins[ACCESS_MAX_ORIGINS];            /* "*": all */
    int n_origins;
    /* besides numeric addresses and localhost, which are always allowed; "*": all */
    const char *hosts[ACCESS_MAX_HOSTS + 2];
    int n_hosts;
} Access;

int access_add_key(Access *a, const char *key, size_t n, fr_error *err);
/* One key a line; empty lines and those that begin with '#' are no keys. */
int access_add_key_file(Access *a, const char *path, fr_error *err);

/* Whether the request carries a key: "Authorization: Bearer KEY", or "x-api-key: KEY". */
bool access_has_key(const Access *a, const HttpHead *head);
/* Whether the Host header of a request names the server. */
bool access_allows_host(const Access *a, const HttpHead *head);
/* Whether a page of that origin may use the server; true where the request names none, or that of an allowed Host. */
bool access_allows_origin(const Access *a, const HttpHead *head);
/* Adds the headers by which a browser lets a listed origin read the answer. */
void access_add_cors(const Access *a, HttpExchange *x);
/* The answer to a preflight request (OPTIONS) of an origin that is allowed. */
void access_answer_preflight(const Access *a, HttpExchange *x);

/* The inside of a connection, for http_server.c, http_connection.c and http_head.c. */

typedef enum HttpState {
    HTTP_READS_HEAD,
    HTTP_READS_BODY,       /* of a known length */
    HTTP_READS_CHUNK_SIZE, /* a line */
    HTTP_READS_CHUNK,
    HTTP_READS_CHUNK_END, /* CRLF */
    HTTP_READS_TRAILER,   /* lines up to an empty one */
    HTTP_ANSWERS,
    HTTP_CLOSES, /* the last answer is being sent; what still comes is thrown away */
} HttpState;

struct HttpExchange {
    HttpServer *server;
    HttpExchange *next, *previous; /* in the order of their last change of state, the oldest first */
    struct bufferevent *bev;
    HttpState state;
    char peer[64];
    double deadline_s;  /* 0: none */
    size_t n_unsent;    /* when the deadline was last checked */
    bool has_shut_down; /* nothing more is sent */
    bool is_idle;       /* it has been answered before, and no byte of a further request has come */

    /* The request: */
    double started_s;
    char *head_bytes;
    HttpHead head;
    Buf body;
    size_t n_missing; /* bytes of the body, or of its chunk */

    /* The answer: */
    Buf headers; /* added ones */
    bool is_begun, is_chunked, is_head_request;
    void (*on_gone)(void *user);
    void *gone_user;
};

struct HttpServer {
    struct event_base *base;
    HttpServerOptions options;
    struct evconnlistener *listener;
    struct event *timer;
    HttpExchange *first, *last;
    int n_connections, port;
    size_t n_body_bytes; /* of all bodies */
    bool drains;
};

/* Takes the socket over. */
void http_connection_open(HttpServer *s, int fd, const char *peer);
/* Closes it; on_gone is called where an answer was due. */
void http_connection_close(HttpExchange *x);
/* The answer is complete: the next request, or the end. */
void http_connection_answered(HttpExchange *x);
/* Refuses a request that is not complete, and closes the connection when that is sent. */
void http_connection_refuse(HttpExchange *x, int status, const char *why);
/* Sends what is left, and then closes. */
void http_connection_finish(HttpExchange *x);
/* Called some times a second: closes what took too long. */
void http_connection_check(HttpExchange *x, double now_s);

#endif

/* http_server.h - an HTTP/1.1 server over libevent's listeners and bufferevents, in one thread.
 *
 * A connection reads one request at a time, passes it on as an HttpExchange, and reads the next request when that one
 * is answered. It goes on reading meanwhile, so that a client that hangs up is noticed at once, even before the first
 * byte of its answer. */
#ifndef SERVER_HTTP_HTTP_SERVER_H
#define SERVER_HTTP_HTTP_SERVER_H

#include "base/error.h"
#include "base/mem.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdint.h>
#include <stddef.h>
#include <stdbool.h>

/* ---- the head of a request, and the lines between the chunks of its body (http_head.c, RFC 9112) --------------- */

enum { HTTP_MAX_HEADERS = 64, HTTP_MAX_HEAD = 32 << 10 };

typedef struct HttpHeader {
    const char *name, *value;
} HttpHeader;

typedef struct HttpHead {
    const char *method;
    char *path;        /* decoded; it begins with '/' */
    const char *query; /* after '?', not decoded; "" if there is none */
    int minor;         /* HTTP/1.minor */
    /* [n_authority] "host:port" of a target "http://host:port/path"; NULL: the target is a path */
    const char *authority;
    size_t n_authority;
    HttpHeader headers[HTTP_MAX_HEADERS];
    int n_headers;
    int64_t content_length; /* 0 if none is given */
    bool is_chunked, keeps_alive, expects_continue;
} HttpHead;

/* Parses a head [n], which ends with its empty line. The bytes are cut into strings in place, to which *head points.
 * Returns 0, or the status of the refusal, with *why set to a sentence. */
int http_head_parse(HttpHead *head, char *bytes, size_t n, const char **why);
/* Finds the value of a header by its name, ignoring case. NULL: the header is missing. */
const char *http_head_find(const HttpHead *head, const char *name);

/* The lines of a chunked body are [n] and a '\0', without their CRLF. */

/* Reads one to eight hexadecimal digits. Extensions (";name=value") may follow and are ignored. False: the line is
 * malformed. */
bool http_parse_chunk_size(const char *line, size_t n, size_t *size);
/* Returns whether a line after the last chunk is a header. The line is cut into strings. */
bool http_is_trailer(char *line, size_t n);

/* ---- the server -------------------------------------------------------------------------------------------------- */

typedef struct HttpServer HttpServer;
typedef struct HttpExchange HttpExchange;

typedef struct HttpLimits {
    size_t max_body_bytes;
    size_t max_all_bodies;    /* the most bytes of all bodies that have arrived and are not released */
    size_t max_unsent_bytes;  /* the most bytes of an answer that wait for the client; with more, it is hung up on */
    int max_connections;      /* one more closes the connection that has waited longest for a request */
    double request_timeout_s; /* for the head and the body of a request together */
    double idle_timeout_s;    /* between requests, and for the client to read each piece of an answer */
} HttpLimits;

typedef struct HttpServerOptions {
    const char *host;
    int port; /* 0: the system chooses */
    HttpLimits limits;
    void *tls; /* an SSL_CTX, borrowed; NULL: plain */
    /* Receives a complete request. It must be answered, now or later, by the functions below. */
    void (*on_request)(void *user, HttpExchange *x);
    /* Writes the body of the answer to a request that is refused before it is complete. False: memory ran out. */
    bool (*write_error)(void *user, Buf *out, const char *path, int status, const char *why);
    void *user;
} HttpServerOptions;

int http_server_open(HttpServer **out, struct event_base *base, const HttpServerOptions *options, fr_error *err);
/* Closes all connections, and calls on_gone of exchanges that are not answered. NULL is allowed. */
void http_server_close(HttpServer *s);
int http_server_port(const HttpServer *s);
int http_server_n_connections(const HttpServer *s);
/* From now on, each connection is closed after the answer that it waits for. */
void http_server_drain(HttpServer *s);

/* ---- one request and its answer ---------------------------------------------------------------------- */

/* Returns the head of the request; borrowed until the exchange is answered or gone. */
const HttpHead *http_exchange_head(const HttpExchange *x);
const char *http_exchange_peer(const HttpExchange *x); /* "127.0.0.1:1234" */
/* Takes the body [*n] and a '\0', malloc'ed. When it is freed, http_server_release_body must be called with its
 * length. */
char *http_exchange_take_body(HttpExchange *x, size_t *n);
void http_server_release_body(HttpServer *s, size_t n);
double http_exchange_started_s(const HttpExchange *x);

/* Sets the function that is called if the client hangs up or reads too slowly before the answer is complete. The
 * exchange is then no longer valid. */
void http_exchange_on_gone(HttpExchange *x, void (*on_gone)(void *user), void *user);
/* Adds a header to the answer. */
void http_exchange_add_header(HttpExchange *x, const char *name, const char *value);
/* Sends a whole answer. The exchange is then no longer valid. */
void http_exchange_reply(HttpExchange *x, int status, const char *type, const char *body, size_t n);
/* Send an answer in pieces. After http_exchange_end the exchange is no longer valid. None of these functions calls
 * on_gone. */
void http_exchange_begin(HttpExchange *x, int status, const char *type);
void http_exchange_write(HttpExchange *x, const char *bytes, size_t n);
void http_exchange_end(HttpExchange *x);

/* ---- access: API keys, the hosts that requests may name, and the origins whose pages a browser lets in (CORS) ---- */

enum { ACCESS_MAX_ORIGINS = 16, ACCESS_MAX_HOSTS = 16, ACCESS_MAX_KEYS = 256, ACCESS_DIGEST = 32 };

typedef struct Access {
    unsigned char keys[ACCESS_MAX_KEYS][ACCESS_DIGEST]; /* SHA-256 digests; the keys themselves are not kept */
    int n_keys;                                         /* 0: no key is needed */
    const char *origins[ACCESS_MAX_ORIGINS];            /* "*": all */
    int n_origins;
    /* Further hosts besides numeric addresses and localhost, which are always allowed. "*": all. */
    const char *hosts[ACCESS_MAX_HOSTS + 2];
    int n_hosts;
} Access;

int access_add_key(Access *a, const char *key, size_t n, fr_error *err);
/* Adds the keys of a file with one key on each line. Empty lines and lines that begin with '#' are ignored. */
int access_add_key_file(Access *a, const char *path, fr_error *err);

/* Returns whether the request has a valid key: "Authorization: Bearer KEY", or "x-api-key: KEY". */
bool access_has_key(const Access *a, const HttpHead *head);
/* Returns whether the Host header of a request names the server. */
bool access_allows_host(const Access *a, const HttpHead *head);
/* Returns whether the origin of a request may use the server: it is listed, it is that of an allowed Host, or the
 * request names none. */
bool access_allows_origin(const Access *a, const HttpHead *head);
/* Adds the headers that allow a listed origin to read the answer in a browser. */
void access_add_cors(const Access *a, HttpExchange *x);
/* Answers a preflight request (OPTIONS) of an allowed origin. */
void access_answer_preflight(const Access *a, HttpExchange *x);

/* The inside of a connection, for http_server.c, http_connection.c and http_head.c. */

typedef enum HttpState {
    HTTP_READS_HEAD,
    HTTP_READS_BODY,       /* a body of a known length */
    HTTP_READS_CHUNK_SIZE, /* a line */
    HTTP_READS_CHUNK,
    HTTP_READS_CHUNK_END, /* CRLF */
    HTTP_READS_TRAILER,   /* lines up to an empty one */
    HTTP_ANSWERS,
    HTTP_CLOSES, /* the last answer is being sent; further input is dropped */
} HttpState;

struct HttpExchange {
    HttpServer *server;
    HttpExchange *next, *previous; /* by the time of their last change of state, the oldest first */
    struct bufferevent *bev;
    HttpState state;
    char peer[64];
    double deadline_s;  /* 0: none */
    size_t n_unsent;    /* bytes that waited when the deadline was last checked */
    bool has_shut_down; /* nothing more is sent */
    bool is_idle;       /* a request has been answered, and no byte of the next one has come */

    /* The request: */
    double started_s;
    char *head_bytes;
    HttpHead head;
    Buf body;
    size_t n_missing; /* bytes that the body or its chunk still lacks */

    /* The answer: */
    Buf headers; /* the headers that were added */
    bool is_chunked, is_head_request;
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
    size_t n_body_bytes; /* bytes of all bodies */
    bool drains;
};

/* Opens a connection, which takes over the socket. */
void http_connection_open(HttpServer *s, int fd, const char *peer);
/* Closes a connection, and calls on_gone if an answer was due. */
void http_connection_close(HttpExchange *x);
/* Goes on with the next request, or ends the connection, when the answer is complete. */
void http_connection_answered(HttpExchange *x);
/* Closes the connection if it has taken too long. It is called several times a second. */
void http_connection_check(HttpExchange *x, double now_s);

/* Opens HttpServerOptions.tls, TLS 1.2 and 1.3 with a certificate, which its chain may follow, and its key, both in PEM
 * (tls.c). */
int tls_open(void **out, const char *cert, const char *key, fr_error *err);
void tls_close(void *tls); /* NULL is fine */

#endif

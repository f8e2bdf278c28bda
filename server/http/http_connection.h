/* http_connection.h - the inside of a connection, for http_server.c, http_connection.c and http_reply.c. */
#ifndef SERVE_HTTP_CONNECTION_H
#define SERVE_HTTP_CONNECTION_H

#include "server/http/http_server.h"

#include <event2/bufferevent.h>

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

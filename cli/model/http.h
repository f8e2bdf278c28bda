/* http.h - GET over HTTP with libcurl, which is loaded when the first connection is opened. */
#ifndef MODELS_HTTP_H
#define MODELS_HTTP_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Http Http;

/* What a server answered, or why there is no answer. */
typedef struct HttpReply {
    long status;         /* after redirects; 0: none arrived */
    int64_t from, total; /* of a partial answer (206): its first byte, and the bytes of the whole file; -1: unknown */
    char etag[200];      /* "": none, or a weak one, which does not promise equal bytes */
    long retry_after_s;  /* as the server asks; 0: it does not */
    bool is_interrupted; /* no answer, or not all of it, for a reason that may pass */
    bool is_refused_scheme; /* a redirect led to a protocol that is not allowed */
    char why[256];          /* the sentence of libcurl for what went wrong; "" */
} HttpReply;

typedef struct HttpRequest {
    const char *url;
    int64_t from;        /* bytes from here on are wanted; 0: all */
    const char *if_etag; /* a partial answer only if the file still has this ETag; "" or NULL: in any case */
    /* Called before the first byte of an answer with status 200 or 206, and for its bytes; what other answers hold is
     * dropped. False: end the connection. */
    bool (*begin)(void *user, const HttpReply *reply);
    bool (*bytes)(void *user, const void *bytes, size_t n);
    void *user;
} HttpRequest;

/* only_https: redirects to plain HTTP are refused. token: sent to the host that is asked, not to those it redirects to;
 * NULL: none. */
int http_open(Http **out, bool only_https, const char *token, fr_error *err);
void http_close(Http *h); /* NULL is fine */
/* One attempt. Fails only where memory is missing; else *reply says what happened. */
int http_get(Http *h, const HttpRequest *request, HttpReply *reply, fr_error *err);
/* Whether the same request may succeed a little later. */
bool http_may_retry(const HttpReply *reply);

#endif

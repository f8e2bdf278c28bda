/* http_head.h - the head of an HTTP/1.1 request: request line and headers (RFC 9112). */
#ifndef SERVE_HTTP_HEAD_H
#define SERVE_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_MAX_HEADERS = 64, HTTP_MAX_HEAD = 32 << 10 };

typedef struct HttpHeader {
    const char *name, *value;
} HttpHeader;

typedef struct HttpHead {
    const char *method;
    char *path;        /* decoded; begins with '/' */
    const char *query; /* behind '?', not decoded; "" where there is none */
    int minor;         /* HTTP/1.minor */
    HttpHeader headers[HTTP_MAX_HEADERS];
    int n_headers;
    int64_t content_length; /* 0 where none is given */
    bool is_chunked, keeps_alive, expects_continue;
} HttpHead;

/* Parses a head of n bytes, up to and with its empty line; it is cut into strings in place, and the head points into it.
 * Returns 0, or the status to answer with, and *why in a sentence. */
int http_head_parse(HttpHead *head, char *bytes, size_t n, const char **why);
/* The value of a header by its name in any case; NULL where it is missing. */
const char *http_head_find(const HttpHead *head, const char *name);

#endif

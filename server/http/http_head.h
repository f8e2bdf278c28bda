/* http_head.h - the head of an HTTP/1.1 request, and the lines between the chunks of its body (RFC 9112). */
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
    /* "host:port" of a target "http://host:port/path", not terminated; NULL: the target is a path */
    const char *authority;
    size_t n_authority;
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

/* The lines of a chunked body: n bytes and a '\0', without their CRLF. */

/* One to eight hexadecimal digits, perhaps followed by extensions (";name=value"), which have no effect. False: malformed. */
bool http_parse_chunk_size(const char *line, size_t n, size_t *size);
/* Whether a line after the last chunk is a header. It is cut into strings. */
bool http_is_trailer(char *line, size_t n);

#endif

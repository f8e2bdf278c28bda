/* access.h - who may use the server: API keys, and the origins whose pages a browser lets in (CORS). */
#ifndef SERVE_ACCESS_H
#define SERVE_ACCESS_H

#include "server/http/http_server.h"

enum { ACCESS_MAX_ORIGINS = 16, ACCESS_MAX_KEYS = 256, ACCESS_DIGEST = 32 };

typedef struct Access {
    unsigned char keys[ACCESS_MAX_KEYS][ACCESS_DIGEST]; /* SHA-256; keys themselves are not kept */
    int n_keys;                                         /* 0: nobody needs one */
    const char *origins[ACCESS_MAX_ORIGINS];            /* "*": all */
    int n_origins;
} Access;

int access_add_key(Access *a, const char *key, size_t n, fr_error *err);
/* One key a line; empty lines and those that begin with '#' are no keys. */
int access_add_key_file(Access *a, const char *path, fr_error *err);

/* Whether the request carries a key: "Authorization: Bearer KEY", or "x-api-key: KEY". */
bool access_has_key(const Access *a, const HttpHead *head);
/* Whether a page of that origin may use the server; true where the request names none, or the server's own. */
bool access_allows_origin(const Access *a, const HttpHead *head);
/* Adds the headers by which a browser lets a listed origin read the answer. */
void access_add_cors(const Access *a, HttpExchange *x);
/* The answer to a preflight request (OPTIONS) of an origin that is allowed. */
void access_answer_preflight(const Access *a, HttpExchange *x);

#endif

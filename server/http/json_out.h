/* json_out.h - writing JSON straight into a buffer.
 *
 * Answers and events are written once and never read again, so no tree of values is built for them; a stream writes
 * thousands of small objects a second. Commas come by themselves. Running out of memory or of the buffer's limit is
 * remembered in `failed` and checked once at the end. */
#ifndef SERVE_JSON_OUT_H
#define SERVE_JSON_OUT_H

#include "base/mem.h"

#include <stdint.h>

typedef struct JsonOut {
    Buf *to;
    size_t start; /* the document begins here */
    bool failed;
} JsonOut;

JsonOut json_out_begin(Buf *to);
/* '{', '}', '[' or ']'. */
void json_out_mark(JsonOut *j, char mark);
void json_out_key(JsonOut *j, const char *key);
void json_out_key_bytes(JsonOut *j, const char *key, size_t n);
/* Whether n bytes are UTF-8, so that they are written as they are. */
bool json_out_is_text(const char *bytes, size_t n);
/* Text of n bytes; what is not UTF-8 in it becomes U+FFFD. */
void json_out_bytes(JsonOut *j, const char *text, size_t n);
void json_out_text(JsonOut *j, const char *text); /* NULL: null */
void json_out_int(JsonOut *j, int64_t value);
void json_out_uint(JsonOut *j, uint64_t value);
void json_out_real(JsonOut *j, double value); /* null where it is not finite */
/* With the digits that tell it from every other double; null where it is not finite. */
void json_out_exact(JsonOut *j, double value);
void json_out_bool(JsonOut *j, bool value);
void json_out_null(JsonOut *j);
/* JSON that is written already. */
void json_out_raw(JsonOut *j, const char *json, size_t n);

/* A key and its value; json_out_open: the key and '{' or '['. */
void json_out_open(JsonOut *j, const char *key, char mark);
void json_out_key_text(JsonOut *j, const char *key, const char *text);
void json_out_key_int(JsonOut *j, const char *key, int64_t value);
void json_out_key_real(JsonOut *j, const char *key, double value);
void json_out_key_bool(JsonOut *j, const char *key, bool value);
void json_out_key_null(JsonOut *j, const char *key);

#endif

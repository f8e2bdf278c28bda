/* json_out.h - writes JSON directly into a buffer.
 *
 * Answers and events are written once and never read again, so no tree of values is built for them: a stream writes
 * thousands of small objects per second. (Documents that commands build up, merge and indent are trees of jansson;
 * cli/json_memory.h.) Commas are written automatically. If memory or the buffer's limit runs out, `failed` is set,
 * which is checked once at the end. */
#ifndef SERVE_JSON_OUT_H
#define SERVE_JSON_OUT_H

#include "base/mem.h"

#include <stdint.h>

typedef struct JsonOut {
    Buf *to;
    size_t start; /* where the document begins in *to */
    bool failed;
} JsonOut;

JsonOut json_out_begin(Buf *to);
/* Writes '{', '}', '[' or ']'. */
void json_out_mark(JsonOut *j, char mark);
void json_out_key(JsonOut *j, const char *key);
void json_out_key_bytes(JsonOut *j, const char *key, size_t n);
/* Returns whether bytes [n] are UTF-8, so that they are written without replacements. */
bool json_out_is_text(const char *bytes, size_t n);
/* Writes a text [n]; bytes that are not UTF-8 become U+FFFD. */
void json_out_bytes(JsonOut *j, const char *text, size_t n);
void json_out_text(JsonOut *j, const char *text); /* NULL is written as null */
void json_out_int(JsonOut *j, int64_t value);
void json_out_uint(JsonOut *j, uint64_t value);
void json_out_real(JsonOut *j, double value); /* 7 digits; null if it is not finite */
/* Writes enough digits to distinguish the value from all other doubles; null if it is not finite. */
void json_out_exact(JsonOut *j, double value);
void json_out_bool(JsonOut *j, bool value);
void json_out_null(JsonOut *j);
/* Writes a value that is JSON already. */
void json_out_raw(JsonOut *j, const char *json, size_t n);

/* Write a key and its value; json_out_open writes a key and '{' or '['. */
void json_out_open(JsonOut *j, const char *key, char mark);
void json_out_key_text(JsonOut *j, const char *key, const char *text);
void json_out_key_int(JsonOut *j, const char *key, int64_t value);
void json_out_key_real(JsonOut *j, const char *key, double value);
void json_out_key_bool(JsonOut *j, const char *key, bool value);
void json_out_key_null(JsonOut *j, const char *key);

#endif

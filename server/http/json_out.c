/* json_out.c - writes JSON into a buffer. Whether a comma is needed follows from the last byte: there is none after
 * '{', '[', ',' and ':', and none at the beginning of a document. */
#include "server/http/json_out.h"

#include "text/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(JsonOut *j, const char *bytes, size_t n) {
    if (!j->failed && n && !buf_append(j->to, bytes, n)) j->failed = true;
}

static void put_comma(JsonOut *j) {
    if (j->to->n == j->start) return;
    char last = j->to->data[j->to->n - 1];
    if (last != '{' && last != '[' && last != ',' && last != ':') put(j, ",", 1);
}

JsonOut json_out_begin(Buf *to) { return (JsonOut){.to = to, .start = to->n}; }

void json_out_mark(JsonOut *j, char mark) {
    if (mark == '{' || mark == '[') put_comma(j);
    put(j, &mark, 1);
}

static void put_escaped(JsonOut *j, unsigned char c) {
    char escape[8];
    const char *short_form = c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : c == '"' ? "\\\"" : "\\\\";
    if (c == '\n' || c == '\t' || c == '\r' || c == '"' || c == '\\') {
        put(j, short_form, 2);
        return;
    }
    snprintf(escape, sizeof escape, "\\u%04x", c);
    put(j, escape, 6);
}

static void put_string(JsonOut *j, const char *text, size_t n) {
    put(j, "\"", 1);
    for (size_t i = 0, plain = 0; i <= n; i++) { /* [plain, i) needs no escapes and has not been written yet */
        unsigned char c = i < n ? (unsigned char)text[i] : 0;
        size_t need = 1, got = i < n && c >= 0x80 ? utf8_scan(text + i, n - i, &need) : 1;
        bool is_valid = c < 0x80 || (need > 0 && got == need);
        if (i < n && c >= 0x80 && is_valid) {
            i += need - 1;
            continue;
        }
        if (i < n && is_valid && c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) continue;
        put(j, text + plain, i - plain);
        plain = i + 1;
        if (i == n) break;
        if (is_valid) put_escaped(j, c);
        else put(j, "\xEF\xBF\xBD", 3);
    }
    put(j, "\"", 1);
}

void json_out_key_bytes(JsonOut *j, const char *key, size_t n) {
    put_comma(j);
    put_string(j, key, n);
    put(j, ":", 1);
}

void json_out_key(JsonOut *j, const char *key) { json_out_key_bytes(j, key, strlen(key)); }

bool json_out_is_text(const char *bytes, size_t n) {
    for (size_t i = 0, need = 1; i < n; i += need) {
        need = 1;
        if ((unsigned char)bytes[i] >= 0x80 && (utf8_scan(bytes + i, n - i, &need) != need || need == 0)) return false;
    }
    return true;
}

void json_out_bytes(JsonOut *j, const char *text, size_t n) {
    put_comma(j);
    put_string(j, text, n);
}

void json_out_raw(JsonOut *j, const char *json, size_t n) {
    put_comma(j);
    put(j, json, n);
}

void json_out_null(JsonOut *j) { json_out_raw(j, "null", 4); }

void json_out_text(JsonOut *j, const char *text) {
    if (text) json_out_bytes(j, text, strlen(text));
    else json_out_null(j);
}

void json_out_int(JsonOut *j, int64_t value) {
    char text[32];
    json_out_raw(j, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

void json_out_uint(JsonOut *j, uint64_t value) {
    char text[32];
    json_out_raw(j, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, value));
}

void json_out_real(JsonOut *j, double value) {
    char text[32];
    if (isfinite(value)) json_out_raw(j, text, (size_t)snprintf(text, sizeof text, "%.7g", value));
    else json_out_null(j);
}

void json_out_exact(JsonOut *j, double value) {
    char text[32];
    int n = snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value) n = snprintf(text, sizeof text, "%.17g", value);
    if (isfinite(value)) json_out_raw(j, text, (size_t)n);
    else json_out_null(j);
}

void json_out_bool(JsonOut *j, bool value) { json_out_raw(j, value ? "true" : "false", value ? 4 : 5); }

void json_out_open(JsonOut *j, const char *key, char mark) {
    json_out_key(j, key);
    json_out_mark(j, mark);
}

void json_out_key_text(JsonOut *j, const char *key, const char *text) {
    json_out_key(j, key);
    json_out_text(j, text);
}

void json_out_key_int(JsonOut *j, const char *key, int64_t value) {
    json_out_key(j, key);
    json_out_int(j, value);
}

void json_out_key_real(JsonOut *j, const char *key, double value) {
    json_out_key(j, key);
    json_out_real(j, value);
}

void json_out_key_bool(JsonOut *j, const char *key, bool value) {
    json_out_key(j, key);
    json_out_bool(j, value);
}

void json_out_key_null(JsonOut *j, const char *key) {
    json_out_key(j, key);
    json_out_null(j);
}

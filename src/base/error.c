/* error.c - fills fr_error, makes names from files printable, and reports failed assertions.
 *
 * Messages are printed on terminals, and many contain names from files. The functions that write them escape these
 * names with printable(). So that a forgotten call does no harm, error_set makes every message one line of UTF-8
 * without control characters. */
#include "base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef error_set /* error.h redefines these two for the analyzer */
#undef error_memory

/* Returns the bytes of the UTF-8 character at s, up to 4; 0: it is malformed, or a control character (C0, DEL, C1). */
static size_t plain_character(const unsigned char *s) {
    if (s[0] < 0x80) return s[0] >= 0x20 && s[0] != 0x7f;
    size_t n = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++) /* stops at '\0' */
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool is_overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool is_outside = (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90); /* surrogates, above U+10FFFF */
    bool is_c1 = s[0] == 0xc2 && s[1] < 0xa0;
    return is_overlong || is_outside || is_c1 ? 0 : n;
}

/* Copies text into out, with everything else escaped as \n and \xNN; cut where it does not fit. */
static void copy_plain(char *out, size_t room, const char *text) {
    size_t at = 0;
    while (*text) {
        char escape[8];
        size_t n = plain_character((const unsigned char *)text), n_escape = 0;
        if (n == 0)
            n_escape = (size_t)snprintf(escape, sizeof escape, *text == '\n' ? "\\n" : "\\x%02x", (unsigned char)*text);
        if (at + n + n_escape >= room) break;
        memcpy(out + at, n ? text : escape, n + n_escape);
        at += n + n_escape;
        text += n ? n : 1;
    }
    out[at] = '\0';
}

fr_code error_set(fr_error *err, fr_code code, const char *fmt, ...) {
    if (err) {
        err->code = code;
        va_list ap;
        va_start(ap, fmt);
        char text[sizeof err->message];
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        copy_plain(err->message, sizeof err->message, text);
    }
    return code;
}

fr_code error_memory(fr_error *err, const char *what, size_t bytes) {
    return error_set(err, FR_ERR_MEMORY, "out of memory: cannot allocate %zu bytes for %s", bytes, what);
}

void error_assert_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "forerun: bug: %s:%d: %s does not hold\n", file, line, cond);
    abort();
}

/* ---- names from files ---------------------------------------------------------------------------------------- */

/* Writes the escape of one byte to out[5]; returns its length. */
static size_t escape(unsigned char c, char out[5]) {
    if (c >= 0x20 && c < 0x7f && c != '\\') {
        out[0] = (char)c;
        return 1;
    }
    const char *letter = c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : NULL;
    if (letter) {
        memcpy(out, letter, 2);
        return 2;
    }
    return (size_t)snprintf(out, 5, "\\x%02x", c);
}

const char *printable(Printable *p, const char *s, size_t n) {
    enum { ROOM = PRINTABLE_MAX - 4 }; /* "..." and '\0' always fit after it */
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char bytes[5];
        size_t len = escape((unsigned char)s[i], bytes);
        if (at + len > ROOM) {
            memcpy(p->text + at, "...", 3);
            at += 3;
            break;
        }
        memcpy(p->text + at, bytes, len);
        at += len;
    }
    p->text[at] = '\0';
    return p->text;
}

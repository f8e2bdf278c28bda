/* printable.c - escapes what a terminal might obey or a line cannot hold, and cuts what is too long. */
#include "gguf/printable.h"

#include <stdio.h>
#include <string.h>

/* The escape of one byte into out[5]; returns its length. */
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

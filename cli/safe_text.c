/* safe_text.c - escapes the characters that a terminal must not get, by their Unicode categories. */
#include "cli/safe_text.h"

#include <string.h>
#include <utf8proc.h>

/* Returns whether a terminal shows the code point, and does not obey it, change the direction of writing, or show
 * nothing. */
static bool is_shown(utf8proc_int32_t c) {
    utf8proc_category_t category = utf8proc_category(c);
    return category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF && category != UTF8PROC_CATEGORY_CN &&
           category != UTF8PROC_CATEGORY_CS && category != UTF8PROC_CATEGORY_CO && category != UTF8PROC_CATEGORY_ZL &&
           category != UTF8PROC_CATEGORY_ZP;
}

/* Returns whether the character changes the direction of writing, which can show a line in a different order. */
static bool changes_direction(utf8proc_int32_t c) {
    return c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/* Returns whether a character of a text stays as it is. Invisible characters do, because some join emoji. */
static bool is_plain(utf8proc_int32_t c) {
    return c == '\n' || c == '\t' || (utf8proc_category(c) != UTF8PROC_CATEGORY_CC && !changes_direction(c));
}

/* Writes the character at s[0..n) to out: its own bytes if it is allowed, otherwise its first byte, escaped. *n_out:
 * bytes written. Returns the number of bytes of s that were read. */
static size_t next(const char *s, size_t n, bool (*allowed)(utf8proc_int32_t), char out[8], size_t *n_out) {
    utf8proc_int32_t c;
    utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)s, n > 4 ? 4 : (utf8proc_ssize_t)n, &c);
    if (length > 0 && allowed(c)) {
        memcpy(out, s, (size_t)length);
        return *n_out = (size_t)length;
    }
    *n_out = (size_t)snprintf(out, 8, *s == '\n' ? "\\n" : "\\x%02x", (unsigned char)*s);
    return 1;
}

void safe_text_write(FILE *out, const char *s, size_t n, size_t max) {
    char bytes[8];
    size_t i = 0, n_bytes;
    while (i < n && i < max) {
        i += next(s + i, n - i, is_shown, bytes, &n_bytes);
        fwrite(bytes, 1, n_bytes, out);
    }
    if (i < n) fprintf(out, "... (%zu bytes)", n);
}

bool safe_text_append_lines(Buf *out, const char *s, size_t n) {
    char bytes[8];
    size_t n_bytes;
    bool fits = true;
    for (size_t i = 0; i < n && fits;) {
        i += next(s + i, n - i, is_plain, bytes, &n_bytes);
        fits = buf_append(out, bytes, n_bytes);
    }
    return fits;
}

const char *safe_text(SafeText *t, const char *s) {
    size_t at = 0, n = strlen(s);
    for (size_t i = 0; i < n;) {
        char bytes[8];
        size_t n_bytes;
        i += next(s + i, n - i, is_shown, bytes, &n_bytes);
        if (at + n_bytes + sizeof "..." > sizeof t->text) {
            memcpy(t->text + at, "...", 3);
            at += 3;
            break;
        }
        memcpy(t->text + at, bytes, n_bytes);
        at += n_bytes;
    }
    t->text[at] = '\0';
    return t->text;
}

/* safe_text.c - decides by the Unicode category of a character whether a terminal may get it. */
#include "cli/safe_text.h"

#include <string.h>
#include <utf8proc.h>

/* Whether a terminal prints the code point, rather than obeying it, changing the direction of writing, or showing
 * nothing. */
static bool is_shown(utf8proc_int32_t c) {
    utf8proc_category_t category = utf8proc_category(c);
    return category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF && category != UTF8PROC_CATEGORY_CN &&
           category != UTF8PROC_CATEGORY_CS && category != UTF8PROC_CATEGORY_CO && category != UTF8PROC_CATEGORY_ZL &&
           category != UTF8PROC_CATEGORY_ZP;
}

/* The characters that change the direction of writing: they can show a line in another order than it has. */
static bool changes_direction(utf8proc_int32_t c) {
    return c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/* Whether a character of a text stays: other invisible characters do, because emoji are joined by them. */
static bool is_plain(utf8proc_int32_t c) {
    return c == '\n' || c == '\t' || (utf8proc_category(c) != UTF8PROC_CATEGORY_CC && !changes_direction(c));
}

/* The character at s[0..n): its own bytes where `allowed`, else its first byte escaped. Returns the bytes of s that it
 * stands for; *n_out of them go to out. */
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

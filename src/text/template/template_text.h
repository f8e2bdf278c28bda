/* template_text.h - the strings of a template. A string knows which of its bytes are data (template.h), is built by
 * a TextBuilder, and is read by code points, as in Python. */
#ifndef TEXT_TEMPLATE_TEMPLATE_TEXT_H
#define TEXT_TEMPLATE_TEMPLATE_TEXT_H

#include "base/work.h"

/* Immutable. A slice shares the bytes of the text that it is a part of. */
typedef struct Text {
    const char *data; /* UTF-8; a byte that is not is kept, and counts as one character */
    size_t n;
    const unsigned char *marks; /* [n] 1: data, 0: the template's own. NULL: is_data holds for all */
    bool is_data;
    bool is_safe; /* it is the result of `safe` or `escape`: + escapes what is added to it */
} Text;

const Text *text_new(Work *w, const char *bytes, size_t n, bool is_data); /* borrows the bytes */
const Text *text_copy(Work *w, const char *bytes, size_t n, bool is_data);
const Text *text_slice(Work *w, const Text *t, size_t from, size_t to); /* from, to: bytes */
bool text_equal(const Text *a, const Text *b);
bool text_same(Work *w, const Text *a, const Text *b); /* the same, and counts the work */
bool text_is(const Text *t, const char *literal);
int text_order(const Text *a, const Text *b);
bool text_has_data(Work *w, const Text *t); /* whether any byte is data */
/* Returns the byte offset of the first `part` in t at or after `from`, or of the last one. t->n + 1: there is none. */
size_t text_find(Work *w, const Text *t, const Text *part, size_t from);
size_t text_find_last(Work *w, const Text *t, const Text *part);
static inline bool text_byte_is_data(const Text *t, size_t i) { return t->marks ? t->marks[i] : t->is_data; }

typedef struct TextBuilder {
    Work *w;
    char *data;
    unsigned char *marks;
    size_t n, capacity, max_bytes;
} TextBuilder;

TextBuilder builder_new(Work *w);
void builder_add(TextBuilder *b, const Text *t);
void builder_add_slice(TextBuilder *b, const Text *t, size_t from, size_t to);
void builder_add_bytes(TextBuilder *b, const char *bytes, size_t n, bool is_data);
void builder_add_literal(TextBuilder *b, const char *text); /* the template's own */
void builder_add_repeated(TextBuilder *b, const Text *t, int64_t times);
const Text *builder_text(TextBuilder *b); /* the whole text; ends the use of the builder */

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* Returns the length in bytes of the character at data[at..n), and its code point. For a byte that is not UTF-8, *code
 * is 0xDC00 + the byte. */
size_t char_next(const char *data, size_t n, size_t at, int32_t *code);
/* Returns the offset of the character that ends at `at`. */
size_t char_previous(const char *data, size_t at);
size_t text_n_chars(Work *w, const Text *t);
/* Returns the byte offset of character i, which is at most text_n_chars. */
size_t text_char_offset(Work *w, const Text *t, size_t i);

bool code_is_space(int32_t code);     /* str.isspace */
bool code_is_printable(int32_t code); /* str.isprintable */
bool code_is_alpha(int32_t code);
bool code_is_digit(int32_t code);
bool code_is_upper(int32_t code);
bool code_is_lower(int32_t code);
void builder_add_code(TextBuilder *b, int32_t code, bool is_data);

/* Returns the text without white space at its left or right end, or, if `chars` is not NULL, without the characters in
 * it. */
const Text *text_strip(Work *w, const Text *t, const Text *chars, bool left, bool right);

typedef enum TextCase { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP } TextCase;
/* Maps the case of each character to one character, and the German sharp s to SS. Other characters stay as they are
 * if their other case consists of several characters. */
const Text *text_with_case(Work *w, const Text *t, TextCase text_case);

#endif

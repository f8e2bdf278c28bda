/* marked_text.h - strings that remember which of their bytes are data (template.h), and the builder of such strings. */
#ifndef TEXT_TEMPLATE_TEMPLATE_TEXT_H
#define TEXT_TEMPLATE_TEMPLATE_TEXT_H

#include "base/work.h"

/* Immutable. Slices share the bytes of what they were cut from. */
typedef struct Text {
    const char *data; /* UTF-8; broken bytes are kept, and each counts as one character */
    size_t n;
    const unsigned char *marks; /* [n] 1: data, 0: the template's own; NULL: all bytes are as is_data says */
    bool is_data;
    bool is_safe; /* it passed `safe` or `escape`: what is added to it with + is escaped */
} Text;

const Text *text_new(Work *w, const char *bytes, size_t n, bool is_data); /* borrows the bytes */
const Text *text_copy(Work *w, const char *bytes, size_t n, bool is_data);
const Text *text_slice(Work *w, const Text *t, size_t from, size_t to); /* bytes */
bool text_equal(const Text *a, const Text *b);
bool text_same(Work *w, const Text *a, const Text *b); /* the same, and counts the work */
bool text_is(const Text *t, const char *literal);
int text_order(const Text *a, const Text *b);
bool text_has_data(Work *w, const Text *t); /* any byte is data */
/* The byte offset of `part` in t at or after `from`; t->n + 1: not there. */
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
const Text *builder_text(TextBuilder *b); /* what was added so far; the builder must not be used any more */

/* unicode_text.h - characters of a text as Python's str sees them: by code points, with Unicode's white space and case. */

/* Bytes of the character at data[at..n); *code is its code point, or 0xDC00 + the byte where it is not UTF-8. */
size_t char_next(const char *data, size_t n, size_t at, int32_t *code);
/* Where the character that ends at `at` begins. */
size_t char_previous(const char *data, size_t at);
size_t text_n_chars(Work *w, const Text *t);
/* The byte offset of character i <= n_chars. */
size_t text_char_offset(Work *w, const Text *t, size_t i);

bool code_is_space(int32_t code);     /* str.isspace */
bool code_is_printable(int32_t code); /* str.isprintable */
bool code_is_alpha(int32_t code);
bool code_is_digit(int32_t code);
bool code_is_upper(int32_t code);
bool code_is_lower(int32_t code);
void builder_add_code(TextBuilder *b, int32_t code, bool is_data);

/* text[*from..*to) without white space, or without the characters of `chars` (not NULL), at its left or right end. */
const Text *text_strip(Work *w, const Text *t, const Text *chars, bool left, bool right);

typedef enum TextCase { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP } TextCase;
/* Case mapping of one character to one, and of the German sharp s to SS; other characters whose other case has several are kept. */
const Text *text_with_case(Work *w, const Text *t, TextCase text_case);

#endif

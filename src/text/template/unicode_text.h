/* unicode_text.h - characters of a text as Python's str sees them: by code points, with Unicode's white space and case. */
#ifndef TEMPLATE_UNICODE_TEXT_H
#define TEMPLATE_UNICODE_TEXT_H

#include "text/template/marked_text.h"

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

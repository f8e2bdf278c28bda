/* marked_text.h - strings that remember which of their bytes are data (template.h), and the builder of such strings. */
#ifndef TEMPLATE_MARKED_TEXT_H
#define TEMPLATE_MARKED_TEXT_H

#include "text/template/work.h"

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
bool text_is(const Text *t, const char *literal);
int text_order(const Text *a, const Text *b);
bool text_has_data(const Text *t); /* any byte is data */
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

#endif

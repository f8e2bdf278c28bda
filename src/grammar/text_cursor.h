/* text_cursor.h - reading a text from left to right: what the readers of GBNF and of regular expressions share. Errors leave
 * the Work and name line and column. */
#ifndef GRAMMAR_TEXT_CURSOR_H
#define GRAMMAR_TEXT_CURSOR_H

#include "base/hash.h"
#include "grammar/expr.h"
#include "text/template/template_text.h"

typedef struct Cursor {
    Work *w;
    const char *text;
    size_t n, at;
    const char *what; /* for errors: "grammar" */
} Cursor;

int cursor_peek(const Cursor *c);              /* the byte here; -1: the end */
int cursor_peek_at(const Cursor *c, size_t n); /* n bytes further */
bool cursor_skip(Cursor *c, char byte);        /* if it is there */
bool cursor_skip_text(Cursor *c, const char *text);
uint32_t cursor_code(Cursor *c);              /* reads one character of UTF-8; refuses what is not UTF-8 */
uint32_t cursor_hex(Cursor *c, int n_digits); /* exactly so many; refuses what is no character */
/* Reads *, +, ?, {m}, {m,} or {m,n}; false: there is none. */
bool cursor_quantifier(Cursor *c, int32_t *min, int32_t *max);
const char *cursor_copy(Cursor *c, size_t from, size_t to); /* with '\0' */
__attribute__((noreturn)) void cursor_fail(const Cursor *c, const char *what);

/* Numbers by name. Zero-initialise. */
typedef struct KeyedName {
    const char *name;
    int32_t value;
} KeyedName;

typedef struct KeyedNames {
    KeyedName *slots; /* [n_slots] a power of two */
    size_t n_slots, n;
    HashKey key;
} KeyedNames;

int32_t keyed_names_find(const KeyedNames *names, const char *name);               /* -1: not there */
void keyed_names_add(Work *w, KeyedNames *names, const char *name, int32_t value); /* borrows the name */

#endif

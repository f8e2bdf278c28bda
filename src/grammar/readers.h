/* readers.h - the three notations of a grammar, and the cursor by which they are read. A reader leaves the Work of
 * the grammar with an error that names the place. */
#ifndef GRAMMAR_READERS_H
#define GRAMMAR_READERS_H

#include "base/hash.h"
#include "grammar/expr.h"
#include "text/template/template_text.h"

/* Each fills the rules of an empty grammar and its root. Where valid texts are not quite those of a schema, a
 * sentence about it is written into notice[notice_size]. */
void gbnf_read(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size);
void regex_read(ExprGrammar *g, const char *text, size_t n);
void schema_read(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size);

/* Returns the expression of a schema that is part of another grammar. */
const Expr *schema_text(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size);
/* Returns the expression of a regular expression for a whole text. is_json: for a JSON string, whose characters are
 * written as JSON writes them; the expression may then match anywhere in the string unless ^ and $ say otherwise. */
const Expr *regex_expr(ExprGrammar *g, const char *text, size_t n, bool is_json);
/* One character of a set as it is written in a JSON string: quotes, backslashes and control characters have their
 * shortest escapes. */
const Expr *json_character(Work *w, const CodeSet *set);

/* ---- reading a text from left to right ------------------------------------------------------------------- */

typedef struct Cursor {
    Work *w;
    const char *text;
    size_t n, at;
    const char *what; /* what the text is, for errors; such as "grammar" */
} Cursor;

int cursor_peek(const Cursor *c);              /* the byte here; -1: the end */
int cursor_peek_at(const Cursor *c, size_t n); /* the byte n bytes further; -1: the text ends before it */
bool cursor_skip(Cursor *c, char byte);        /* false: the next byte is another one */
bool cursor_skip_text(Cursor *c, const char *text);
uint32_t cursor_code(Cursor *c);              /* reads one character; what is not UTF-8 is refused */
uint32_t cursor_hex(Cursor *c, int n_digits); /* reads a code point of n digits; what is no character is refused */
/* Reads a quantifier: *, +, ?, {m}, {m,}, {,n} or {m,n}. False: there is none here. */
bool cursor_quantifier(Cursor *c, int32_t *min, int32_t *max);
const char *cursor_copy(Cursor *c, size_t from, size_t to); /* the text between, followed by '\0' */
__attribute__((noreturn)) void cursor_fail(const Cursor *c, const char *what);

/* A hash table of numbers by name. Zero-initialise it. */
typedef struct KeyedName {
    const char *name;
    int32_t value;
} KeyedName;

typedef struct KeyedNames {
    KeyedName *slots; /* [n_slots] a power of two */
    size_t n_slots, n;
    HashKey key;
} KeyedNames;

int32_t keyed_names_find(const KeyedNames *names, const char *name);               /* -1: the name is not there */
void keyed_names_add(Work *w, KeyedNames *names, const char *name, int32_t value); /* the name is borrowed */

#endif

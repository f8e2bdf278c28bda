/* readers.h - the three notations that a grammar can be given in. A reader leaves the Work of the grammar with an error that
 * names the place. */
#ifndef GRAMMAR_READERS_H
#define GRAMMAR_READERS_H

#include "grammar/expr.h"

/* Each fills the rules of an empty grammar and its root. *notice: a sentence about what is not quite as a schema says, or
 * unchanged; [size]. */
void gbnf_read(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size);
void regex_read(ExprGrammar *g, const char *text, size_t n);
void schema_read(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size);

/* A schema as part of another grammar. */
const Expr *schema_text(ExprGrammar *g, const char *text, size_t n, char *notice, size_t notice_size);

/* A regular expression for the whole text. In a JSON string (is_json) its characters are written as JSON writes them, and
 * it need not match the whole string unless ^ and $ say so. */
const Expr *regex_expr(ExprGrammar *g, const char *text, size_t n, bool is_json);
/* One character of a set as it stands in a JSON string: quotes, backslashes and control characters by their shortest
 * escapes. */
const Expr *json_character(Work *w, const CodeSet *set);

#endif

/* parser.h - what the files of the parser share: its place in the list of tokens, and expressions for statements. All
 * functions end the work with an error (work_fail) where the template is wrong. */
#ifndef TEMPLATE_PARSER_H
#define TEMPLATE_PARSER_H

#include "text/template/render.h"

/* A position in the list of tokens, and what surrounds it. */
typedef struct Parser {
    Work *w;
    const Token *now; /* the current token */
    int *macro_uses;  /* the MACRO_* flags of the macro or call block whose body is parsed, or NULL */
    int n_loops;      /* the number of loops that {% break %} could leave */
} Parser;

/* ---- parser_tokens.c ---------------------------------------------------------------------------------- */

/* Returns a node of the current line. */
Node *parser_node(Parser *p, NodeKind kind);
void parser_next(Parser *p);
/* These return whether the current token is that operator or name; `skip` moves on if it is. */
bool parser_at_op(const Parser *p, int op);
bool parser_at_name(const Parser *p, const char *name);
bool parser_skip_op(Parser *p, int op);
bool parser_skip_name(Parser *p, const char *name);
/* Fails with the current token; `wanted` may be NULL. */
__attribute__((noreturn)) void parser_unexpected(Parser *p, const char *wanted);
void parser_expect_op(Parser *p, int op);
const Text *parser_expect_name(Parser *p);

/* ---- parser_expressions.c ----------------------------------------------------------------------------- */

/* Parses an expression; with_condition: it may be `a if b else c`. */
Node *parser_expression(Parser *p, bool with_condition);
/* Parses expressions with commas between them; a single one is itself. The name `end` ends it, too; it may be NULL. */
Node *parser_tuple(Parser *p, bool with_condition, const char *end);
Node *parser_primary(Parser *p);
/* Parses the filters that follow `subject`. If starts_inline, the first one has no '|' before it. */
Node *parser_filters(Parser *p, Node *subject, bool starts_inline);

#endif

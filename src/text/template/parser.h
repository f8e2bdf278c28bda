/* parser.h - what parse_expression.c and parse_statement.c share: a place in the list of tokens. */
#ifndef TEMPLATE_PARSER_H
#define TEMPLATE_PARSER_H

#include "text/template/syntax.h"

typedef struct Parser {
    Work *w;
    const Token *now; /* the current token */
    int *macro_uses;  /* MACRO_* of the macro or call block whose body is parsed; NULL: none */
    int n_loops;      /* loops that {% break %} could leave */
} Parser;

Node *parser_node(Parser *p, NodeKind kind);
void parser_next(Parser *p);
bool parser_at_op(const Parser *p, int op);
bool parser_at_name(const Parser *p, const char *name);
bool parser_skip_op(Parser *p, int op);
bool parser_skip_name(Parser *p, const char *name);
void parser_expect_op(Parser *p, int op);
const Text *parser_expect_name(Parser *p);
__attribute__((noreturn)) void parser_unexpected(Parser *p, const char *wanted);

Node *parse_expression(Parser *p, bool with_condition);
/* An expression, or a tuple without parentheses. `end`: a name that ends it, or NULL. */
Node *parse_tuple(Parser *p, bool with_condition, const char *end);
Node *parse_primary(Parser *p);
/* The filters at a '|', or at the first name (starts_inline), on `subject`, which is NULL where they filter a block. */
Node *parse_filters(Parser *p, Node *subject, bool starts_inline);

#endif

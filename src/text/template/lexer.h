/* lexer.h - the tokens of a template, with Jinja's control of white space already done. */
#ifndef TEMPLATE_LEXER_H
#define TEMPLATE_LEXER_H

#include "text/template/value.h"

typedef enum TokenKind {
    TOKEN_END,
    TOKEN_DATA, /* value: the text between tags */
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END, /* {{ and }} */
    TOKEN_TAG_BEGIN,
    TOKEN_TAG_END,  /* {% and %} */
    TOKEN_NAME,     /* value: its spelling */
    TOKEN_LITERAL,  /* value: a string or number */
    TOKEN_OPERATOR, /* op */
} TokenKind;

/* Operators of one character are that character. */
typedef enum Operator {
    OP_NONE,
    OP_FLOOR_DIVIDE = 256,
    OP_POWER,
    OP_EQ,
    OP_NE,
    OP_GE,
    OP_LE,
    OP_IN,
    OP_NOT_IN
} Operator;

typedef struct Token {
    TokenKind kind;
    int line;
    int op;
    Value value;
} Token;

/* All tokens of the source, the last of which is TOKEN_END. They borrow nothing from it. */
const Token *lexer_run(Work *w, const char *source, size_t n);

#endif

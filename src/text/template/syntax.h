/* lexer.h - the tokens of a template, with Jinja's control of white space already done. */
#ifndef TEXT_TEMPLATE_SYNTAX_H
#define TEXT_TEMPLATE_SYNTAX_H

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

/* syntax.h - the tree of a compiled template.
 *
 * One struct serves all nodes; which fields a kind uses stands beside it. Lists of nodes are chained by `next`. */

typedef enum NodeKind {
    /* expressions */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_LIST,    /* list: items */
    NODE_TUPLE,   /* list: items */
    NODE_DICT,    /* list: keys and values in turn */
    NODE_NEGATE,  /* a */
    NODE_PLUS,    /* a */
    NODE_NOT,     /* a */
    NODE_AND,     /* a, b */
    NODE_OR,      /* a, b */
    NODE_BINARY,  /* op, a, b */
    NODE_CONCAT,  /* list: operands of ~ */
    NODE_COMPARE, /* a; list: NODE_OPERAND each with op, a */
    NODE_OPERAND,
    NODE_CONDITION, /* a if b else c; c may be NULL */
    NODE_ATTRIBUTE, /* a.name */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a:b:c inside [ ], each may be NULL */
    NODE_CALL,      /* a(list: arguments) */
    NODE_FILTER,    /* a | name(list); a is NULL where a block is filtered */
    NODE_TEST,      /* a is name(list) */
    NODE_ARGUMENT,  /* op: an ArgumentKind, a; name: of a keyword */

    /* statements */
    NODE_TEXT,  /* value */
    NODE_PRINT, /* a */
    NODE_IF,    /* list: NODE_BRANCH each with a (NULL: else), list */
    NODE_BRANCH,
    NODE_FOR,          /* for a in b if c; list: body, other: else; op: recursive */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = list, filtered by b (may be NULL) */
    NODE_MEMBER,       /* name.member as the target of a set: a is the NODE_NAME, name the member */
    NODE_MACRO,        /* name; other: parameters, list: body, op: MACRO_* */
    NODE_PARAMETER,    /* name, a: default or NULL */
    NODE_CALL_BLOCK,   /* a: the call; b: the NODE_MACRO that becomes `caller` */
    NODE_FILTER_BLOCK, /* b: filters; list: body */
    NODE_SCOPE,        /* other: NODE_SETs; list: body (with, generation, autoescape) */
    NODE_BREAK,
    NODE_CONTINUE,
} NodeKind;

typedef enum ArgumentKind { ARGUMENT_POSITIONAL, ARGUMENT_KEYWORD, ARGUMENT_STAR, ARGUMENT_STAR_STAR } ArgumentKind;

enum { MACRO_CALLER = 1, MACRO_VARARGS = 2, MACRO_KWARGS = 4 }; /* what the body of a macro uses */

typedef struct Node Node;
struct Node {
    NodeKind kind;
    int line;
    int op;
    const struct Builtin *builtin; /* of a filter or test; NULL: unknown, an error where it is reached */
    const Text *name;
    Value value;
    Node *a, *b, *c, *list, *other;
    Node *next;
};

/* The statements of a template. */
Node *syntax_parse(Work *w, const char *source, size_t n);

#endif

/* syntax.h - the tokens of a template, and the tree that the parser makes of them. */
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

/* An operator that is spelled with one character has that character as its number. */
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

/* Splits the source into tokens; Jinja's control of white space is applied. The last token is TOKEN_END. They do not
 * refer to the source. */
const Token *lexer_run(Work *w, const char *source, size_t n);

/* ---- the tree --------------------------------------------------------------------------------------------------- */

/* All nodes are of one struct. The comment beside each kind names the fields that it uses. `next` links the nodes of
 * a list. */

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
    NODE_CONDITION, /* a if b else c, where c may be NULL */
    NODE_ATTRIBUTE, /* a.name */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a:b:c inside [ ]; each may be NULL */
    NODE_CALL,      /* a(list: arguments) */
    NODE_FILTER,    /* a | name(list); a is NULL where a block is filtered */
    NODE_TEST,      /* a is name(list) */
    NODE_ARGUMENT,  /* op: an ArgumentKind, a; name: of a keyword */

    /* statements */
    NODE_TEXT,  /* value */
    NODE_PRINT, /* a */
    NODE_IF,    /* list: one NODE_BRANCH each, with its condition a (NULL: else) and its list */
    NODE_BRANCH,
    NODE_FOR,          /* for a in b if c; list: body, other: else; op: recursive */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = list, filtered by b (may be NULL) */
    NODE_MEMBER,       /* the target of {% set a.name = ... %}: a is a NODE_NAME */
    NODE_MACRO,        /* name; other: parameters, list: body, op: MACRO_* */
    NODE_PARAMETER,    /* name, a: default or NULL */
    NODE_CALL_BLOCK,   /* a: the call; b: the NODE_MACRO that becomes `caller` */
    NODE_FILTER_BLOCK, /* b: filters; list: body */
    NODE_SCOPE,        /* other: NODE_SETs; list: body (with, generation, autoescape) */
    NODE_BREAK,
    NODE_CONTINUE,
} NodeKind;

typedef enum ArgumentKind { ARGUMENT_POSITIONAL, ARGUMENT_KEYWORD, ARGUMENT_STAR, ARGUMENT_STAR_STAR } ArgumentKind;

enum { MACRO_CALLER = 1, MACRO_VARARGS = 2, MACRO_KWARGS = 4 }; /* which special names the body of a macro uses */

typedef struct Node Node;
struct Node {
    NodeKind kind;
    int line;
    int op;
    const struct Builtin *builtin; /* a filter or test; NULL: it is unknown, which is an error if it is reached */
    const Text *name;
    Value value;
    Node *a, *b, *c, *list, *other;
    Node *next;
};

/* Parses a template and returns the list of its statements. */
Node *syntax_parse(Work *w, const char *source, size_t n);

#endif

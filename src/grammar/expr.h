/* expr.h - a grammar as its readers write it down: rules whose right-hand sides are trees of expressions.
 *
 * The readers of GBNF, of regular expressions and of JSON schemas make the same expressions, and automaton_build.c turns
 * them into an automaton. Everything lies in a Work (template/work.h): an error leaves from any depth. */
#ifndef GRAMMAR_EXPR_H
#define GRAMMAR_EXPR_H

#include "grammar/code_set.h"

enum { EXPR_UNBOUNDED = -1, EXPR_MAX_COUNT = 1000000, EXPR_MAX_RULES = 200000 };

typedef enum ExprKind {
    EXPR_EMPTY,
    EXPR_NOTHING,
    EXPR_BYTES,
    EXPR_MARK,
    EXPR_TEXT,
    EXPR_CLASS,
    EXPR_SEQ,
    EXPR_ALT,
    EXPR_REPEAT,
    EXPR_RULE
} ExprKind;

typedef struct Expr Expr;
struct Expr {
    ExprKind kind;
    int32_t weight; /* roughly the states that it takes, at most INT32_MAX / 2 */
    union {
        struct { /* EXPR_BYTES; EXPR_MARK: bytes that a control token may stand for */
            const char *bytes;
            size_t n_bytes;
        };
        struct { /* EXPR_TEXT: any text without the mark, which does not begin with `beginning` */
            const char *mark, *beginning;
            int32_t n_mark, n_beginning; /* n_beginning 0: it may begin with anything */
        };
        CodeSet set; /* EXPR_CLASS */
        struct {     /* EXPR_SEQ, EXPR_ALT */
            const Expr **parts;
            int32_t n_parts, capacity;
        };
        struct { /* EXPR_REPEAT: min to max times; max may be EXPR_UNBOUNDED */
            const Expr *body;
            int32_t min, max;
        };
        int32_t rule; /* EXPR_RULE */
    };
};

typedef struct ExprRule {
    const char *name;
    const Expr *body; /* NULL: not defined (yet) */
} ExprRule;

typedef struct ExprGrammar {
    Work *w;
    ExprRule *rules; /* [n_rules] */
    int32_t n_rules, capacity;
    int32_t root;
} ExprGrammar;

int32_t expr_add_rule(ExprGrammar *g, const char *name); /* returns its number; its body is NULL */
const Expr *expr_empty(Work *w);
const Expr *expr_nothing(Work *w);                            /* matches no text */
const Expr *expr_bytes(Work *w, const char *bytes, size_t n); /* borrows them */
const Expr *expr_literal(Work *w, const char *text);          /* likewise */
const Expr *expr_mark(Work *w, const char *bytes, size_t n);  /* likewise, n > 0 */
/* Borrows both; the mark has bytes and is not in the beginning. */
const Expr *expr_text(Work *w, const char *mark, size_t n_mark, const char *beginning, size_t n_beginning);
const Expr *expr_class(Work *w, const CodeSet *set);       /* one character */
const Expr *expr_range(Work *w, uint32_t lo, uint32_t hi); /* likewise */
const Expr *expr_repeat(Work *w, const Expr *body, int32_t min, int32_t max);
const Expr *expr_optional(Work *w, const Expr *body);
const Expr *expr_rule(Work *w, int32_t rule);
Expr *expr_seq(Work *w); /* empty; then expr_add */
Expr *expr_alt(Work *w);
void expr_add(Work *w, Expr *list, const Expr *part);
const Expr *expr_seq_of(Work *w, const Expr *a, const Expr *b);
const Expr *expr_seq_of3(Work *w, const Expr *a, const Expr *b, const Expr *c);
const Expr *expr_alt_of(Work *w, const Expr *a, const Expr *b);

#endif

/* expr.h - a grammar as its readers write it down: rules whose right-hand sides are trees of expressions.
 *
 * The readers of GBNF, of regular expressions and of JSON schemas make the same expressions, and automaton_build.c
 * turns them into an automaton. All memory belongs to a Work (base/work.h), so an error can leave from any depth. */
#ifndef GRAMMAR_EXPR_H
#define GRAMMAR_EXPR_H

#include "base/work.h"

/* ---- sets of Unicode code points ------------------------------------------------------------------------- */

enum { CODE_MAX = 0x10FFFF };

typedef struct CodeRange {
    uint32_t lo, hi;
} CodeRange;

/* A set of code points as ascending ranges that do not touch each other. Zero-initialise it. A set may have
 * surrogates, but these have no byte sequences. */
typedef struct CodeSet {
    CodeRange *ranges;
    int32_t n, capacity;
} CodeSet;

void code_set_add(Work *w, CodeSet *s, uint32_t lo, uint32_t hi);
void code_set_add_set(Work *w, CodeSet *s, const CodeSet *more);
CodeSet code_set_negate(Work *w, const CodeSet *s);
CodeSet code_set_minus(Work *w, const CodeSet *a, const CodeSet *b);
bool code_set_has(const CodeSet *s, uint32_t code);

/* A sequence of 1 to 4 ranges of bytes. */
typedef struct ByteRanges {
    int n;
    uint8_t lo[4], hi[4];
} ByteRanges;

/* Calls emit for byte sequences that together are exactly the UTF-8 of the code points lo..hi. */
void code_range_bytes(uint32_t lo, uint32_t hi, void (*emit)(void *user, const ByteRanges *bytes), void *user);
/* Writes the UTF-8 of one code point and returns its length. A surrogate is written as U+FFFD. */
int code_write(uint32_t code, char out[4]);

/* ---- expressions ----------------------------------------------------------------------------------------- */

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
    int32_t weight; /* roughly the number of states that it takes, at most INT32_MAX / 2 */
    union {
        struct { /* EXPR_BYTES; EXPR_MARK: bytes that a control token with this spelling may replace */
            const char *bytes;
            size_t n_bytes;
        };
        struct { /* EXPR_TEXT: any text that does not contain the mark and does not begin with `beginning` */
            const char *mark, *beginning;
            int32_t n_mark, n_beginning; /* n_beginning 0: the text may begin with anything */
        };
        CodeSet set; /* EXPR_CLASS */
        struct {     /* EXPR_SEQ, EXPR_ALT */
            const Expr **parts;
            int32_t n_parts, capacity;
        };
        struct { /* EXPR_REPEAT: the body min to max times; max may be EXPR_UNBOUNDED */
            const Expr *body;
            int32_t min, max;
        };
        int32_t rule; /* EXPR_RULE */
    };
};

typedef struct ExprRule {
    const char *name;
    const Expr *body; /* NULL: not defined so far */
} ExprRule;

typedef struct ExprGrammar {
    Work *w;
    ExprRule *rules; /* [n_rules] */
    int32_t n_rules, capacity;
    int32_t root;
} ExprGrammar;

/* Adds a rule without a body and returns its number. */
int32_t expr_add_rule(ExprGrammar *g, const char *name);

/* Texts and lists of bytes are borrowed. */
const Expr *expr_empty(Work *w);
const Expr *expr_nothing(Work *w); /* matches no text */
const Expr *expr_bytes(Work *w, const char *bytes, size_t n);
const Expr *expr_literal(Work *w, const char *text);
const Expr *expr_mark(Work *w, const char *bytes, size_t n); /* n > 0 */
/* The mark has bytes and does not occur in the beginning. */
const Expr *expr_text(Work *w, const char *mark, size_t n_mark, const char *beginning, size_t n_beginning);
const Expr *expr_class(Work *w, const CodeSet *set);       /* one character */
const Expr *expr_range(Work *w, uint32_t lo, uint32_t hi); /* one character */
const Expr *expr_repeat(Work *w, const Expr *body, int32_t min, int32_t max);
const Expr *expr_optional(Work *w, const Expr *body);
const Expr *expr_rule(Work *w, int32_t rule);
Expr *expr_seq(Work *w); /* an empty list, which expr_add adds to */
Expr *expr_alt(Work *w);
void expr_add(Work *w, Expr *list, const Expr *part);
const Expr *expr_seq_of(Work *w, const Expr *a, const Expr *b);
const Expr *expr_seq_of3(Work *w, const Expr *a, const Expr *b, const Expr *c);
const Expr *expr_alt_of(Work *w, const Expr *a, const Expr *b);

#endif

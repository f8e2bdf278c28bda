/* expr.c - making the expressions of a grammar. */
#include "grammar/expr.h"

#include <string.h>

enum { MAX_WEIGHT = INT32_MAX / 2 };

static Expr *make(Work *w, ExprKind kind) {
    work_spend(w, 0);
    Expr *e = work_alloc(w, sizeof *e);
    e->kind = kind;
    return e;
}

static int32_t capped(int64_t weight) { return weight < MAX_WEIGHT ? (int32_t)weight : MAX_WEIGHT; }

int32_t expr_add_rule(ExprGrammar *g, const char *name) {
    if (g->n_rules == EXPR_MAX_RULES)
        work_fail(g->w, FR_ERR_ARGUMENT, "the grammar has more than %d rules, which is the limit", EXPR_MAX_RULES);
    if (g->n_rules == g->capacity) {
        int32_t capacity = g->capacity ? 2 * g->capacity : 32;
        g->rules = work_grow(g->w, g->rules, (size_t)g->n_rules * sizeof *g->rules,
                             (size_t)capacity * sizeof *g->rules);
        g->capacity = capacity;
    }
    g->rules[g->n_rules] = (ExprRule){.name = name};
    return g->n_rules++;
}

const Expr *expr_empty(Work *w) { return make(w, EXPR_EMPTY); }
const Expr *expr_nothing(Work *w) { return make(w, EXPR_NOTHING); }

const Expr *expr_bytes(Work *w, const char *bytes, size_t n) {
    Expr *e = make(w, EXPR_BYTES);
    e->bytes = bytes;
    e->n_bytes = n;
    e->weight = capped((int64_t)n);
    return e;
}

const Expr *expr_literal(Work *w, const char *text) { return expr_bytes(w, text, strlen(text)); }

const Expr *expr_mark(Work *w, const char *bytes, size_t n) {
    Expr *e = make(w, EXPR_MARK);
    e->bytes = bytes;
    e->n_bytes = n;
    e->weight = capped((int64_t)n);
    return e;
}

const Expr *expr_text(Work *w, const char *mark, size_t n_mark, const char *beginning, size_t n_beginning) {
    Expr *e = make(w, EXPR_TEXT);
    e->mark = mark;
    e->n_mark = (int32_t)n_mark;
    e->beginning = beginning;
    e->n_beginning = (int32_t)n_beginning;
    e->weight = capped(4 * (int64_t)(n_mark + n_beginning));
    return e;
}

const Expr *expr_class(Work *w, const CodeSet *set) {
    Expr *e = make(w, EXPR_CLASS);
    e->set = *set;
    bool is_ascii = set->n == 0 || set->ranges[set->n - 1].hi < 0x80;
    e->weight = is_ascii ? 1 : capped(8 + 2 * (int64_t)set->n);
    return e;
}

const Expr *expr_range(Work *w, uint32_t lo, uint32_t hi) {
    CodeSet set = {0};
    code_set_add(w, &set, lo, hi);
    return expr_class(w, &set);
}

/* One of ?, * and +. */
static bool is_simple(int32_t min, int32_t max) { return min <= 1 && (max == 1 || max == EXPR_UNBOUNDED); }

const Expr *expr_repeat(Work *w, const Expr *body, int32_t min, int32_t max) {
    if (max == 0) return expr_empty(w);
    if (min == 1 && max == 1) return body;
    if (body->kind == EXPR_REPEAT && is_simple(min, max) && is_simple(body->min, body->max)) { /* (a+)? is a* */
        min = min && body->min;
        max = max == 1 && body->max == 1 ? 1 : EXPR_UNBOUNDED;
        body = body->body;
    }
    Expr *e = make(w, EXPR_REPEAT);
    e->body = body;
    e->min = min;
    e->max = max;
    int64_t times = max == EXPR_UNBOUNDED ? min + 1 : max;
    e->weight = capped(times < 4 ? times * body->weight : 4 + (int64_t)body->weight);
    return e;
}

const Expr *expr_optional(Work *w, const Expr *body) { return expr_repeat(w, body, 0, 1); }

const Expr *expr_rule(Work *w, int32_t rule) {
    Expr *e = make(w, EXPR_RULE);
    e->rule = rule;
    e->weight = 1;
    return e;
}

Expr *expr_seq(Work *w) { return make(w, EXPR_SEQ); }
Expr *expr_alt(Work *w) { return make(w, EXPR_ALT); }

void expr_add(Work *w, Expr *list, const Expr *part) {
    if (list->n_parts == list->capacity) {
        int32_t capacity = list->capacity ? 2 * list->capacity : 4;
        list->parts = work_grow(w, list->parts, (size_t)list->n_parts * sizeof *list->parts,
                                (size_t)capacity * sizeof *list->parts);
        list->capacity = capacity;
    }
    list->parts[list->n_parts++] = part;
    list->weight = capped((int64_t)list->weight + part->weight);
}

const Expr *expr_seq_of(Work *w, const Expr *a, const Expr *b) {
    Expr *e = expr_seq(w);
    expr_add(w, e, a);
    expr_add(w, e, b);
    return e;
}

const Expr *expr_seq_of3(Work *w, const Expr *a, const Expr *b, const Expr *c) {
    Expr *e = expr_seq(w);
    expr_add(w, e, a);
    expr_add(w, e, b);
    expr_add(w, e, c);
    return e;
}

const Expr *expr_alt_of(Work *w, const Expr *a, const Expr *b) {
    Expr *e = expr_alt(w);
    expr_add(w, e, a);
    expr_add(w, e, b);
    return e;
}

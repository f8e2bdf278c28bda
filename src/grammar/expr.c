/* expr.c - makes the expressions of a grammar, and sets of code points as sorted ranges with their UTF-8.
 *
 * A range of code points is not always one sequence of byte ranges: U+0400..U+07FF is [D0-DF][80-BF], but
 * U+0450..U+0850 is D1 [90-BF], [D2-DF][80-BF] and E0 A1 [80-90]. code_range_bytes splits a range where the number
 * of bytes changes, at the surrogates, and wherever a lower byte does not run through all of 80..BF while a higher
 * one changes. */
#include "grammar/expr.h"

#include <string.h>

/* ---- sets of code points --------------------------------------------------------------------------------- */

/* Appends a range that begins after all others have begun. */
static void append(Work *w, CodeSet *s, uint32_t lo, uint32_t hi) {
    if (s->n > 0 && lo <= s->ranges[s->n - 1].hi + 1) {
        if (hi > s->ranges[s->n - 1].hi) s->ranges[s->n - 1].hi = hi;
        return;
    }
    if (s->n == s->capacity) {
        int32_t capacity = s->capacity ? 2 * s->capacity : 8;
        s->ranges = work_grow(w, s->ranges, (size_t)s->n * sizeof *s->ranges, (size_t)capacity * sizeof *s->ranges);
        s->capacity = capacity;
    }
    s->ranges[s->n++] = (CodeRange){lo, hi};
}

/* Unites two sets in one pass over their ranges. */
static CodeSet united(Work *w, const CodeSet *a, const CodeSet *b) {
    CodeSet out = {0};
    int32_t i = 0, k = 0;
    work_spend(w, (size_t)(a->n + b->n));
    while (i < a->n || k < b->n) {
        bool from_a = k == b->n || (i < a->n && a->ranges[i].lo <= b->ranges[k].lo);
        CodeRange r = from_a ? a->ranges[i++] : b->ranges[k++];
        append(w, &out, r.lo, r.hi);
    }
    return out;
}

void code_set_add(Work *w, CodeSet *s, uint32_t lo, uint32_t hi) {
    if (s->n == 0 || lo > s->ranges[s->n - 1].hi) {
        append(w, s, lo, hi);
        return;
    }
    CodeRange range = {lo, hi};
    *s = united(w, s, &(CodeSet){.ranges = &range, .n = 1});
}

void code_set_add_set(Work *w, CodeSet *s, const CodeSet *more) { *s = united(w, s, more); }

CodeSet code_set_negate(Work *w, const CodeSet *s) {
    CodeSet out = {0};
    uint32_t next = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > next) append(w, &out, next, s->ranges[i].lo - 1);
        next = s->ranges[i].hi + 1;
    }
    if (next <= CODE_MAX) append(w, &out, next, CODE_MAX);
    return out;
}

CodeSet code_set_minus(Work *w, const CodeSet *a, const CodeSet *b) {
    CodeSet not_a = code_set_negate(w, a);
    code_set_add_set(w, &not_a, b);
    return code_set_negate(w, &not_a);
}

bool code_set_has(const CodeSet *s, uint32_t code) {
    int32_t lo = 0, hi = s->n;
    while (lo < hi) {
        int32_t middle = lo + (hi - lo) / 2;
        if (s->ranges[middle].hi < code) lo = middle + 1;
        else hi = middle;
    }
    return lo < s->n && s->ranges[lo].lo <= code;
}

int code_write(uint32_t code, char out[4]) {
    if (code < 0x80) return out[0] = (char)code, 1;
    if (code < 0x800) return out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
    if (code >= 0xD800 && code <= 0xDFFF) code = 0xFFFD;
    int n = 0;
    if (code < 0x10000) out[n++] = (char)(0xE0 | code >> 12);
    else {
        out[n++] = (char)(0xF0 | code >> 18);
        out[n++] = (char)(0x80 | (code >> 12 & 63));
    }
    out[n++] = (char)(0x80 | (code >> 6 & 63));
    out[n++] = (char)(0x80 | (code & 63));
    return n;
}

typedef struct Emitter {
    void (*emit)(void *user, const ByteRanges *bytes);
    void *user;
} Emitter;

/* Emits the sequences of lo..hi, which have the same number of bytes. */
static void split(const Emitter *e, uint32_t lo, uint32_t hi) {
    for (int bits = 6; bits <= 18; bits += 6) {
        uint32_t low = (1u << bits) - 1;
        if ((lo & ~low) == (hi & ~low) || lo < 0x80) continue; /* the higher bytes are the same */
        if ((lo & low) != 0) {
            split(e, lo, lo | low);
            split(e, (lo | low) + 1, hi);
            return;
        }
        if ((hi & low) != low) {
            split(e, lo, (hi & ~low) - 1);
            split(e, hi & ~low, hi);
            return;
        }
    }
    char first[4] = {0}, last[4] = {0};
    ByteRanges r = {.n = code_write(lo, first)};
    code_write(hi, last);
    for (int i = 0; i < r.n; i++) r.lo[i] = (uint8_t)first[i], r.hi[i] = (uint8_t)last[i];
    e->emit(e->user, &r);
}

void code_range_bytes(uint32_t lo, uint32_t hi, void (*emit)(void *user, const ByteRanges *bytes), void *user) {
    static const CodeRange parts[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, CODE_MAX}};
    const Emitter e = {emit, user};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t from = lo > parts[i].lo ? lo : parts[i].lo, to = hi < parts[i].hi ? hi : parts[i].hi;
        if (from <= to) split(&e, from, to);
    }
}

/* ---- expressions ----------------------------------------------------------------------------------------- */

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

/* Returns whether a repetition is one of ?, * and +. */
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

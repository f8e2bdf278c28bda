/* grammar_rig.c - compiles grammars in tests, and matches texts by trying everything. */
#include "grammar_rig.h"

#include <stdlib.h>
#include <string.h>

typedef struct Source {
    GrammarRig *rig;
    GrammarKind kind;
    const char *text;
    void (*make)(ExprGrammar *g, void *user);
    void *user;
    Automaton *built;
} Source;

static void compile(void *subject) {
    Source *s = subject;
    ExprGrammar *g = &s->rig->g;
    size_t n = s->text ? strlen(s->text) : 0;
    if (s->make) s->make(g, s->user);
    else if (s->kind == GRAMMAR_JSON_SCHEMA) schema_read(g, s->text, n, s->rig->notice, sizeof s->rig->notice);
    else if (s->kind == GRAMMAR_GBNF) gbnf_read(g, s->text, n, s->rig->notice, sizeof s->rig->notice);
    else regex_read(g, s->text, n);
    s->built = automaton_build(g);
}

static bool open_source(GrammarRig *r, Source *s) {
    *r = (GrammarRig){.w = {.max_bytes = 256 << 20, .max_steps = 20000000, .max_depth = 400}};
    r->g.w = &r->w;
    s->rig = r;
    if (work_run(&r->w, compile, s, &r->err)) {
        work_free(&r->w);
        return false;
    }
    r->automaton = automaton_copy(s->built);
    r->states = r->automaton ? states_new(r->automaton) : NULL;
    assert_non_null(r->states);
    return true;
}

bool grammar_rig_open(GrammarRig *r, GrammarKind kind, const char *text) {
    Source s = {.kind = kind, .text = text};
    return open_source(r, &s);
}

bool grammar_rig_make(GrammarRig *r, void (*make)(ExprGrammar *g, void *user), void *user) {
    Source s = {.make = make, .user = user};
    return open_source(r, &s);
}

void grammar_rig_close(GrammarRig *r) {
    states_free(r->states);
    free(r->automaton);
    work_free(&r->w);
}

const GrammarState *state_after(GrammarStates *s, const GrammarState *state, uint8_t byte, fr_error *err) {
    const GrammarState *next;
    return states_read(s, state, byte, &next, err) ? NULL : next;
}

const GrammarState *grammar_rig_read(GrammarRig *r, const char *text, size_t n) {
    const GrammarState *state = states_start(r->states);
    for (size_t i = 0; i < n; i++) {
        state = state_after(r->states, state, (uint8_t)text[i], &r->err);
        if (!state) fail_msg("%s", r->err.message);
    }
    return state;
}

bool grammar_rig_matches(GrammarRig *r, const char *text) { return grammar_rig_read(r, text, strlen(text))->accepts; }

/* ---- trying everything -------------------------------------------------------------------------------------- */

typedef struct Naive {
    const ExprGrammar *g;
    const char *text;
    size_t n;
    uint32_t *memo;    /* [n_rules][n + 1] ends */
    uint8_t *is_known; /* [n_rules][n + 1] 1: being found, 2: known */
} Naive;

static uint32_t ends_of(Naive *x, const Expr *e, size_t at);

static uint32_t ends_from_all(Naive *x, const Expr *e, uint32_t starts) {
    uint32_t ends = 0;
    for (size_t i = 0; i <= x->n; i++)
        if (starts >> i & 1) ends |= ends_of(x, e, i);
    return ends;
}

static uint32_t ends_of_class(const Naive *x, const CodeSet *set, size_t at) {
    uint32_t ends = 0;
    for (int32_t i = 0; i < set->n; i++)
        for (uint32_t code = set->ranges[i].lo; code <= set->ranges[i].hi && code < 0x200; code++) {
            char utf8[4];
            size_t n = (size_t)code_write(code, utf8);
            if (n <= x->n - at && memcmp(x->text + at, utf8, n) == 0) ends |= 1u << (at + n);
        }
    return ends;
}

static uint32_t ends_of_repeat(Naive *x, const Expr *e, size_t at) {
    uint32_t now = 1u << at, ends = e->min == 0 ? now : 0;
    for (int32_t i = 1; e->max == EXPR_UNBOUNDED ? i <= e->min + 40 : i <= e->max; i++) {
        now = ends_from_all(x, e->body, now);
        if (i >= e->min) ends |= now;
        if (!now) break;
    }
    return ends;
}

static uint32_t ends_of_rule(Naive *x, int32_t rule, size_t at) {
    size_t i = (size_t)rule * (x->n + 1) + at;
    if (x->is_known[i] == 2) return x->memo[i];
    if (x->is_known[i] == 1) return 0; /* left recursion, which is refused */
    x->is_known[i] = 1;
    x->memo[i] = ends_of(x, x->g->rules[rule].body, at);
    x->is_known[i] = 2;
    return x->memo[i];
}

/* Marks each end up to which the text has no mark and does not begin with the beginning. */
static uint32_t ends_of_text(const Naive *x, const Expr *e, size_t at) {
    uint32_t ends = 0;
    for (size_t end = at; end <= x->n; end++) {
        size_t n = end - at, n_mark = (size_t)e->n_mark, n_beginning = (size_t)e->n_beginning;
        if (memmem(x->text + at, n, e->mark, n_mark)) break;
        if (n_beginning && n >= n_beginning && memcmp(x->text + at, e->beginning, n_beginning) == 0) break;
        ends |= 1u << end;
    }
    return ends;
}

static uint32_t ends_of(Naive *x, const Expr *e, size_t at) {
    uint32_t ends = 0;
    switch (e->kind) {
    case EXPR_EMPTY: return 1u << at;
    case EXPR_NOTHING: return 0;
    case EXPR_TEXT: return ends_of_text(x, e, at);
    case EXPR_BYTES:
    case EXPR_MARK:
        return e->n_bytes <= x->n - at && memcmp(x->text + at, e->bytes, e->n_bytes) == 0 ? 1u << (at + e->n_bytes) : 0;
    case EXPR_CLASS: return ends_of_class(x, &e->set, at);
    case EXPR_SEQ:
        ends = 1u << at;
        for (int32_t i = 0; i < e->n_parts; i++) ends = ends_from_all(x, e->parts[i], ends);
        return ends;
    case EXPR_ALT:
        for (int32_t i = 0; i < e->n_parts; i++) ends |= ends_of(x, e->parts[i], at);
        return ends;
    case EXPR_REPEAT: return ends_of_repeat(x, e, at);
    case EXPR_RULE: return ends_of_rule(x, e->rule, at);
    }
    return 0;
}

bool grammar_rig_naive(const GrammarRig *r, const char *text, size_t n) {
    size_t n_memo = (size_t)r->g.n_rules * (n + 1);
    Naive x = {&r->g, text, n, calloc(n_memo, sizeof *x.memo), calloc(n_memo, 1)};
    assert_true(n <= 31 && x.memo && x.is_known);
    bool matches = ends_of_rule(&x, r->g.root, 0) >> n & 1;
    free(x.memo);
    free(x.is_known);
    return matches;
}

bool grammar_rig_can_end(GrammarRig *r, const GrammarState *from) {
    enum { MAX_STATES = 20000 };
    const GrammarState **found = malloc(MAX_STATES * sizeof *found);
    uint8_t *seen = calloc(1 << 22, 1);
    int n = 0;
    bool can_end = false;
    assert_true(found && seen);
    found[n++] = from;
    for (int i = 0; i < n && !can_end; i++) {
        can_end = found[i]->accepts;
        for (int c = 0; c < r->automaton->n_classes; c++) {
            const GrammarState *next = state_after(r->states, found[i], r->automaton->class_byte[c], &r->err);
            assert_non_null(next);
            if (next->n == 0 || next->id >= 1 << 22 || seen[next->id] || n == MAX_STATES) continue;
            seen[next->id] = 1;
            found[n++] = next;
        }
    }
    can_end = can_end || n == MAX_STATES;
    free(found);
    free(seen);
    return can_end;
}

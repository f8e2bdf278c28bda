/* automaton_raw.c - from expressions to nodes and edges, with empty moves (Thompson 1968), rule by rule.
 *
 * Only rules that the root needs are built. A repetition is built in one of three forms: without an upper bound as a
 * loop; a short one as copies of its body; any other as a counted call of a rule that is its body, so that
 * `[a-z]{0,4000}` takes two nodes and the count is kept on the stack (grammar_states.c). */
#include "grammar/automaton_parts.h"

#include <string.h>

enum { MAX_COPIED_WEIGHT = 8, MAX_NODES = 4000000, MAX_EDGES = 8000000, MAX_NESTING = 400 };

int32_t raw_new_node(RawAutomaton *raw) {
    if (raw->n_nodes == MAX_NODES)
        work_fail(raw->w, FR_ERR_ARGUMENT, "the grammar needs more than %d states, which is the limit", MAX_NODES);
    if (raw->n_nodes == raw->node_capacity) {
        int32_t capacity = raw->node_capacity ? 2 * raw->node_capacity : 256;
        raw->first = work_grow(raw->w, raw->first, (size_t)raw->n_nodes * sizeof *raw->first,
                               (size_t)capacity * sizeof *raw->first);
        raw->flags = work_grow(raw->w, raw->flags, (size_t)raw->n_nodes, (size_t)capacity);
        raw->node_capacity = capacity;
    }
    raw->first[raw->n_nodes] = -1;
    raw->flags[raw->n_nodes] = 0;
    return raw->n_nodes++;
}

void raw_add_edge(RawAutomaton *raw, RawEdge edge) {
    work_spend(raw->w, 0);
    if (raw->n_edges == MAX_EDGES)
        work_fail(raw->w, FR_ERR_ARGUMENT, "the grammar needs more than %d transitions, which is the limit", MAX_EDGES);
    if (raw->n_edges == raw->edge_capacity) {
        int32_t capacity = raw->edge_capacity ? 2 * raw->edge_capacity : 256;
        raw->edges = work_grow(raw->w, raw->edges, (size_t)raw->n_edges * sizeof *raw->edges,
                               (size_t)capacity * sizeof *raw->edges);
        raw->edge_capacity = capacity;
    }
    edge.next = raw->first[edge.from];
    raw->first[edge.from] = raw->n_edges;
    raw->edges[raw->n_edges++] = edge;
}

static void add_empty(RawAutomaton *raw, int32_t from, int32_t to) {
    if (from != to) raw_add_edge(raw, (RawEdge){.kind = RAW_EMPTY, .from = from, .to = to});
}

static void add_bytes(RawAutomaton *raw, int32_t from, int32_t to, uint8_t lo, uint8_t hi) {
    raw_add_edge(raw, (RawEdge){.kind = RAW_BYTES, .from = from, .to = to, .lo = lo, .hi = hi});
}

/* ---- rules ------------------------------------------------------------------------------------------- */

static bool is_nullable(const RawAutomaton *raw, const Expr *e) {
    work_spend(raw->w, 0);
    switch (e->kind) {
    case EXPR_EMPTY: return true;
    case EXPR_BYTES: return e->n_bytes == 0;
    case EXPR_TEXT: return true;
    case EXPR_REPEAT: return e->min == 0 || is_nullable(raw, e->body);
    case EXPR_RULE: return raw->source_nullable[e->rule];
    case EXPR_SEQ:
        for (int32_t i = 0; i < e->n_parts; i++)
            if (!is_nullable(raw, e->parts[i])) return false;
        return true;
    case EXPR_ALT:
        for (int32_t i = 0; i < e->n_parts; i++)
            if (is_nullable(raw, e->parts[i])) return true;
        return false;
    case EXPR_NOTHING:
    case EXPR_MARK:
    case EXPR_CLASS: break;
    }
    return false;
}

/* The least fixed point. Rules mostly call later ones, so passes go backwards. */
static void find_nullable(RawAutomaton *raw) {
    const ExprGrammar *g = raw->source;
    bool changed = true;
    while (changed) {
        changed = false;
        for (int32_t i = g->n_rules - 1; i >= 0; i--)
            if (!raw->source_nullable[i] && g->rules[i].body && is_nullable(raw, g->rules[i].body))
                raw->source_nullable[i] = changed = true;
    }
}

static int32_t add_rule(RawAutomaton *raw, const char *name, const Expr *body, bool nullable) {
    if (raw->n_rules == raw->rule_capacity) {
        int32_t capacity = raw->rule_capacity ? 2 * raw->rule_capacity : 64;
        raw->rules = work_grow(raw->w, raw->rules, (size_t)raw->n_rules * sizeof *raw->rules,
                               (size_t)capacity * sizeof *raw->rules);
        raw->rule_capacity = capacity;
    }
    int32_t start = raw_new_node(raw), end = raw_new_node(raw);
    raw->rules[raw->n_rules] =
        (RawRule){.name = name, .body = body, .start = start, .end = end, .is_nullable = nullable};
    return raw->n_rules++;
}

static int32_t rule_for(RawAutomaton *raw, int32_t source) {
    const ExprRule *r = &raw->source->rules[source];
    if (!r->body) work_fail(raw->w, FR_ERR_ARGUMENT, "the rule '%.80s' is used, but not defined", r->name);
    if (raw->rule_of[source] < 0) {
        int32_t rule = add_rule(raw, r->name, r->body, raw->source_nullable[source]);
        raw->rule_of[source] = rule;
    }
    return raw->rule_of[source];
}

/* ---- expressions -------------------------------------------------------------------------------------- */

static void build(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth);

typedef struct ClassBuild {
    RawAutomaton *raw;
    int32_t from, to;
    int32_t tail[4]; /* nodes behind which 1, 2 or 3 bytes 80..BF lead to `to`; -1: none so far */
} ClassBuild;

static int32_t tail_of(ClassBuild *c, int n) {
    if (n == 0) return c->to;
    if (c->tail[n] < 0) {
        int32_t next = tail_of(c, n - 1);
        c->tail[n] = raw_new_node(c->raw);
        add_bytes(c->raw, c->tail[n], next, 0x80, 0xBF);
    }
    return c->tail[n];
}

static void add_sequence(void *user, const ByteRanges *r) {
    ClassBuild *c = user;
    int32_t at = c->from;
    for (int i = 0; i < r->n; i++) {
        int rest = r->n - i - 1, n_whole = 0;
        for (int k = i + 1; k < r->n; k++) n_whole += r->lo[k] == 0x80 && r->hi[k] == 0xBF;
        int32_t next = n_whole == rest ? tail_of(c, rest) : raw_new_node(c->raw);
        add_bytes(c->raw, at, next, r->lo[i], r->hi[i]);
        if (n_whole == rest) return;
        at = next;
    }
}

static void build_class(RawAutomaton *raw, const CodeSet *set, int32_t from, int32_t to) {
    ClassBuild c = {.raw = raw, .from = from, .to = to, .tail = {-1, -1, -1, -1}};
    for (int32_t i = 0; i < set->n; i++) code_range_bytes(set->ranges[i].lo, set->ranges[i].hi, add_sequence, &c);
}

static void build_bytes(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    if (e->n_bytes == 0) add_empty(raw, from, to);
    for (size_t i = 0; i < e->n_bytes; i++) {
        int32_t next = i + 1 == e->n_bytes ? to : raw_new_node(raw);
        add_bytes(raw, from, next, (uint8_t)e->bytes[i], (uint8_t)e->bytes[i]);
        from = next;
    }
}

static void build_seq(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    if (e->n_parts == 0) add_empty(raw, from, to);
    for (int32_t i = 0; i < e->n_parts; i++) {
        int32_t next = i + 1 == e->n_parts ? to : raw_new_node(raw);
        build(raw, e->parts[i], from, next, depth);
        from = next;
    }
}

/* min copies, then a loop. The nodes of the loop are its own. */
static void build_loop(RawAutomaton *raw, const Expr *body, int32_t n_before, int32_t from, int32_t to, int depth) {
    for (int32_t i = 0; i < n_before; i++) {
        int32_t next = raw_new_node(raw);
        build(raw, body, from, next, depth);
        from = next;
    }
    int32_t loop = raw_new_node(raw);
    add_empty(raw, from, loop);
    build(raw, body, loop, loop, depth);
    add_empty(raw, loop, to);
}

static void build_copies(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    for (int32_t i = 0; i < e->max; i++) {
        if (i >= e->min) add_empty(raw, from, to);
        int32_t next = i + 1 == e->max ? to : raw_new_node(raw);
        build(raw, e->body, from, next, depth);
        from = next;
    }
}

static void build_counted(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    bool nullable = is_nullable(raw, e->body);
    int32_t min = nullable ? 0 : e->min, rule;
    if (e->body->kind == EXPR_RULE) rule = rule_for(raw, e->body->rule);
    else rule = add_rule(raw, "a repetition", e->body, nullable);
    if (min == 0) add_empty(raw, from, to);
    raw_add_edge(raw, (RawEdge){.kind = RAW_CALL, .from = from, .to = to, .rule = rule, .min = min, .max = e->max});
}

static void build_repeat(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    int64_t weight = e->body->kind == EXPR_RULE ? MAX_COPIED_WEIGHT : e->body->weight;
    if (e->max == EXPR_UNBOUNDED && (int64_t)e->min * weight <= MAX_COPIED_WEIGHT)
        build_loop(raw, e->body, e->min, from, to, depth);
    else if (e->max != EXPR_UNBOUNDED && ((int64_t)e->max * weight <= MAX_COPIED_WEIGHT || e->max == 1))
        build_copies(raw, e, from, to, depth);
    else build_counted(raw, e, from, to);
}

static void build(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    if (depth > MAX_NESTING)
        work_fail(raw->w, FR_ERR_ARGUMENT, "the grammar is nested deeper than %d, which is the limit", MAX_NESTING);
    switch (e->kind) {
    case EXPR_EMPTY: add_empty(raw, from, to); break;
    case EXPR_NOTHING: break;
    case EXPR_BYTES: build_bytes(raw, e, from, to); break;
    case EXPR_MARK:
        raw->flags[from] |= RAW_READS_CONTROLS;
        build_bytes(raw, e, from, to);
        break;
    case EXPR_TEXT: raw_build_text(raw, e, from, to); break;
    case EXPR_CLASS: build_class(raw, &e->set, from, to); break;
    case EXPR_SEQ: build_seq(raw, e, from, to, depth + 1); break;
    case EXPR_ALT:
        for (int32_t i = 0; i < e->n_parts; i++) build(raw, e->parts[i], from, to, depth + 1);
        break;
    case EXPR_REPEAT: build_repeat(raw, e, from, to, depth + 1); break;
    case EXPR_RULE: {
        int32_t rule = rule_for(raw, e->rule);
        if (raw->source_nullable[e->rule]) add_empty(raw, from, to);
        raw_add_edge(raw, (RawEdge){.kind = RAW_CALL, .from = from, .to = to, .rule = rule});
    }
    }
}

void raw_build(RawAutomaton *raw, const ExprGrammar *g) {
    *raw = (RawAutomaton){.w = g->w, .source = g};
    raw->rule_of = work_array(g->w, (size_t)g->n_rules, sizeof *raw->rule_of);
    memset(raw->rule_of, -1, (size_t)g->n_rules * sizeof *raw->rule_of);
    raw->source_nullable = work_array(g->w, (size_t)g->n_rules, sizeof *raw->source_nullable);
    find_nullable(raw);
    rule_for(raw, g->root);
    for (int32_t i = 0; i < raw->n_rules; i++) {
        const RawRule r = raw->rules[i];
        build(raw, r.body, r.start, r.end, 0);
    }
}

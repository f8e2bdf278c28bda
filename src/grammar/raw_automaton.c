/* raw_automaton.c - step 1 of automaton_build.c: makes nodes and edges of the expressions of a grammar.
 *
 * A repetition is built in one of three forms: without an upper bound it is a loop; a short one is a row of copies of
 * its body; any other one is a counted call of a rule that has the body. So `[a-z]{0,4000}` takes two nodes, and the
 * count is kept in the state of the text (states.c).
 *
 * Alternatives that are plain texts, such as the 30,000 values of an enumeration, share their beginnings in a trie, so
 * that a text that is being read is in one place instead of thousands. */
#include "grammar/raw_automaton.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COPIED_WEIGHT = 8, MAX_NESTING = 400 };

int32_t *raw_automaton_heads(Work *w, int32_t n) {
    int32_t *heads = work_array(w, (size_t)n, sizeof *heads);
    if (n) memset(heads, -1, (size_t)n * sizeof *heads);
    return heads;
}

static int32_t new_node(RawAutomaton *raw) {
    if (raw->n_nodes == RAW_MAX_NODES)
        work_fail(raw->w, FR_ERR_ARGUMENT, "the grammar needs more than %d states, which is the limit", RAW_MAX_NODES);
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

void raw_automaton_fail_of_edges(Work *w) {
    work_fail(w, FR_ERR_ARGUMENT, "the grammar needs more than %d transitions, which is the limit", RAW_MAX_EDGES);
}

void raw_automaton_add_edge(RawAutomaton *raw, RawEdge edge) {
    work_spend(raw->w, 0);
    if (raw->n_edges == RAW_MAX_EDGES) raw_automaton_fail_of_edges(raw->w);
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

void raw_automaton_add_empty(RawAutomaton *raw, int32_t from, int32_t to) {
    if (from != to) raw_automaton_add_edge(raw, (RawEdge){.kind = RAW_EMPTY, .from = from, .to = to});
}

static void add_bytes(RawAutomaton *raw, int32_t from, int32_t to, uint8_t lo, uint8_t hi) {
    raw_automaton_add_edge(raw, (RawEdge){.kind = RAW_BYTES, .from = from, .to = to, .lo = lo, .hi = hi});
}

static int32_t add_rule(RawAutomaton *raw, const char *name, const Expr *body) {
    if (raw->n_rules == raw->rule_capacity) {
        int32_t capacity = raw->rule_capacity ? 2 * raw->rule_capacity : 64;
        raw->rules = work_grow(raw->w, raw->rules, (size_t)raw->n_rules * sizeof *raw->rules,
                               (size_t)capacity * sizeof *raw->rules);
        raw->rule_capacity = capacity;
    }
    int32_t start = new_node(raw), end = new_node(raw);
    raw->rules[raw->n_rules] = (RawRule){.name = name, .body = body, .start = start, .end = end};
    return raw->n_rules++;
}

static int32_t rule_for(RawAutomaton *raw, int32_t source) {
    const ExprRule *r = &raw->source->rules[source];
    if (!r->body) work_fail(raw->w, FR_ERR_ARGUMENT, "the rule '%.80s' is used, but not defined", r->name);
    if (raw->rule_of[source] < 0) {
        int32_t rule = add_rule(raw, r->name, r->body);
        raw->rule_of[source] = rule;
    }
    return raw->rule_of[source];
}

/* ---- characters and free text -------------------------------------------------------------------- */

typedef struct ClassBuild {
    RawAutomaton *raw;
    int32_t from, to;
    int32_t tail[4]; /* the nodes from which 1, 2 or 3 bytes 80..BF lead to `to`; -1: none so far */
} ClassBuild;

static int32_t tail_of(ClassBuild *c, int n) {
    if (n == 0) return c->to;
    if (c->tail[n] < 0) {
        int32_t next = tail_of(c, n - 1);
        c->tail[n] = new_node(c->raw);
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
        int32_t next = n_whole == rest ? tail_of(c, rest) : new_node(c->raw);
        add_bytes(c->raw, at, next, r->lo[i], r->hi[i]);
        if (n_whole == rest) return;
        at = next;
    }
}

static void build_class(RawAutomaton *raw, const CodeSet *set, int32_t from, int32_t to) {
    ClassBuild c = {.raw = raw, .from = from, .to = to, .tail = {-1, -1, -1, -1}};
    for (int32_t i = 0; i < set->n; i++) code_range_bytes(set->ranges[i].lo, set->ranges[i].hi, add_sequence, &c);
}

/* EXPR_TEXT is any text in which a mark does not occur. A model that may call tools writes such text until it writes
 * the mark of a call, from which on the grammar holds:
 *
 *     root ::= %text "<call>" (%mark "<call>" call %mark "</call>" %text "<call>")*
 *
 * The nodes of the text are the states of a matcher for the mark, and the text may end in each of them. The byte that
 * would complete the mark leads nowhere, so after a mark only what the grammar wants there can follow.
 *
 * Some model families write calls without a mark, as an answer that begins with {"name": . The text before a mark must
 * then not begin so: a second row of nodes reads that beginning, and each byte that departs from it leads to the
 * matcher. */
typedef struct TextBuild {
    RawAutomaton *raw;
    TextMatcher matcher;
    int32_t first; /* the node of the matcher's state 0 */
} TextBuild;

/* Adds the edges of a node in a state of the matcher; the byte `special` (-1: none) leads to its own target (-1:
 * nowhere). */
static void add_text_edges(const TextBuild *b, int32_t node, int32_t state, int special, int32_t special_to) {
    int32_t last = -1, begin = 0;
    work_spend(b->raw->w, 1024);
    for (int byte = 0; byte <= 256; byte++) {
        int32_t to = -1;
        if (byte < 256) {
            int32_t next = text_matcher_next(&b->matcher, state, (uint8_t)byte);
            to = byte == special ? special_to : next == b->matcher.n ? -1 : b->first + next;
        }
        if (byte == 256 || to != last) {
            if (last >= 0) add_bytes(b->raw, node, last, (uint8_t)begin, (uint8_t)(byte - 1));
            last = to, begin = byte;
        }
    }
}

static void build_text(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    TextBuild b = {.raw = raw, .first = raw->n_nodes};
    int32_t own = b.first + e->n_mark, state = 0;
    text_matcher_init(&b.matcher, e->mark, e->n_mark,
                      work_array(raw->w, (size_t)e->n_mark + 1, sizeof *b.matcher.border));
    for (int32_t i = 0; i < e->n_mark + e->n_beginning; i++) {
        int32_t node = new_node(raw);
        raw->flags[node] = RAW_IS_FREE | RAW_READS_CONTROLS;
        raw_automaton_add_empty(raw, node, to);
    }
    for (int32_t k = 0; k < e->n_mark; k++) add_text_edges(&b, b.first + k, k, -1, -1);
    for (int32_t k = 0; k < e->n_beginning; k++) {
        uint8_t byte = (uint8_t)e->beginning[k];
        add_text_edges(&b, own + k, state, byte, k + 1 < e->n_beginning ? own + k + 1 : -1);
        state = text_matcher_next(&b.matcher, state, byte);
    }
    raw_automaton_add_empty(raw, from, e->n_beginning ? own : b.first);
}

static void build_bytes(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    if (e->n_bytes == 0) raw_automaton_add_empty(raw, from, to);
    for (size_t i = 0; i < e->n_bytes; i++) {
        int32_t next = i + 1 == e->n_bytes ? to : new_node(raw);
        add_bytes(raw, from, next, (uint8_t)e->bytes[i], (uint8_t)e->bytes[i]);
        from = next;
    }
}

/* ---- alternatives that are plain texts ----------------------------------------------------------- */

typedef struct Literal {
    const char *bytes;
    size_t n;
} Literal;

/* Returns the number of bytes of an expression that matches exactly one text, which has bytes; otherwise 0. */
static size_t literal_size(const Expr *e) {
    char utf8[4];
    size_t n = 0;
    if (e->kind == EXPR_BYTES) return e->n_bytes;
    if (e->kind == EXPR_CLASS) {
        bool is_one = e->set.n == 1 && e->set.ranges[0].lo == e->set.ranges[0].hi &&
                      (e->set.ranges[0].lo < 0xD800 || e->set.ranges[0].lo > 0xDFFF);
        return is_one ? (size_t)code_write(e->set.ranges[0].lo, utf8) : 0;
    }
    for (int32_t i = 0; e->kind == EXPR_SEQ && i < e->n_parts; i++) {
        size_t n_part = literal_size(e->parts[i]);
        if (n_part == 0) return 0;
        n += n_part;
    }
    return n;
}

static char *write_literal(const Expr *e, char *out) {
    if (e->kind == EXPR_BYTES) return (char *)memcpy(out, e->bytes, e->n_bytes) + e->n_bytes;
    if (e->kind == EXPR_CLASS) return out + code_write(e->set.ranges[0].lo, out);
    for (int32_t i = 0; i < e->n_parts; i++) out = write_literal(e->parts[i], out);
    return out;
}

static int by_bytes(const void *x, const void *y) {
    const Literal *a = x, *b = y;
    int order = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);
    return order ? order : a->n < b->n ? -1 : a->n > b->n;
}

static size_t n_common(const Literal *a, const Literal *b) {
    size_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* Builds sorted texts as a trie. The last byte of each text leads to `to`; where a longer text goes on from there,
 * the same byte also leads to a node of the trie. */
static void build_trie(RawAutomaton *raw, const Literal *texts, int32_t n, size_t longest, int32_t from, int32_t to) {
    int32_t *node = work_array(raw->w, longest + 1, sizeof *node); /* by the number of bytes that lead to it */
    size_t n_nodes = 1;                                            /* nodes of the text before that are still valid */
    node[0] = from;
    for (int32_t i = 0; i < n; i++) {
        const Literal *x = &texts[i];
        size_t same = i ? n_common(x - 1, x) : 0;
        if (i && same == x->n && same == x[-1].n) continue;
        work_spend(raw->w, x->n);
        if (same > n_nodes - 1) same = n_nodes - 1;
        for (size_t d = same; d + 1 < x->n; d++) {
            node[d + 1] = new_node(raw);
            add_bytes(raw, node[d], node[d + 1], (uint8_t)x->bytes[d], (uint8_t)x->bytes[d]);
        }
        add_bytes(raw, node[x->n - 1], to, (uint8_t)x->bytes[x->n - 1], (uint8_t)x->bytes[x->n - 1]);
        n_nodes = x->n;
    }
}

static void build(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth);

static void build_alternatives(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    Literal *texts = work_array(raw->w, (size_t)e->n_parts, sizeof *texts);
    int32_t n_texts = 0;
    size_t longest = 0, n_levels = 1;
    for (int32_t i = 0; i < e->n_parts; i++) {
        const Expr *part = e->parts[i];
        size_t n = literal_size(part);
        work_spend(raw->w, 16 * (n + (part->kind == EXPR_SEQ ? (size_t)part->n_parts : 0)));
        if (n == 0) {
            build(raw, part, from, to, depth);
            continue;
        }
        const char *bytes = part->bytes;
        if (part->kind != EXPR_BYTES) {
            char *copy = work_alloc(raw->w, n);
            write_literal(part, copy);
            bytes = copy;
        }
        texts[n_texts++] = (Literal){bytes, n};
        if (n > longest) longest = n;
    }
    while (n_texts >> n_levels) n_levels++;
    work_spend(raw->w, 16 * n_levels * (size_t)n_texts); /* the sort */
    if (n_texts > 1) qsort(texts, (size_t)n_texts, sizeof *texts, by_bytes);
    build_trie(raw, texts, n_texts, longest, from, to);
}

/* ---- sequences and repetitions ------------------------------------------------------------------- */

static void build_seq(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    if (e->n_parts == 0) raw_automaton_add_empty(raw, from, to);
    for (int32_t i = 0; i < e->n_parts; i++) {
        int32_t next = i + 1 == e->n_parts ? to : new_node(raw);
        build(raw, e->parts[i], from, next, depth);
        from = next;
    }
}

/* Builds n_before copies, and then a loop whose nodes are its own. */
static void build_loop(RawAutomaton *raw, const Expr *body, int32_t n_before, int32_t from, int32_t to, int depth) {
    for (int32_t i = 0; i < n_before; i++) {
        int32_t next = new_node(raw);
        build(raw, body, from, next, depth);
        from = next;
    }
    int32_t loop = new_node(raw);
    raw_automaton_add_empty(raw, from, loop);
    build(raw, body, loop, loop, depth);
    raw_automaton_add_empty(raw, loop, to);
}

static void build_copies(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    for (int32_t i = 0; i < e->max; i++) {
        if (i >= e->min) raw_automaton_add_empty(raw, from, to);
        int32_t next = i + 1 == e->max ? to : new_node(raw);
        build(raw, e->body, from, next, depth);
        from = next;
    }
}

static void build_counted(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    bool is_rule = e->body->kind == EXPR_RULE;
    int32_t rule = is_rule ? rule_for(raw, e->body->rule) : add_rule(raw, "a repetition", e->body);
    if (e->min == 0) raw_automaton_add_empty(raw, from, to);
    raw_automaton_add_edge(
        raw, (RawEdge){.kind = RAW_CALL, .from = from, .to = to, .rule = rule, .min = e->min, .max = e->max});
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
    case EXPR_EMPTY: raw_automaton_add_empty(raw, from, to); break;
    case EXPR_NOTHING: break;
    case EXPR_BYTES: build_bytes(raw, e, from, to); break;
    case EXPR_MARK:
        raw->flags[from] |= RAW_READS_CONTROLS;
        build_bytes(raw, e, from, to);
        break;
    case EXPR_TEXT: build_text(raw, e, from, to); break;
    case EXPR_CLASS: build_class(raw, &e->set, from, to); break;
    case EXPR_SEQ: build_seq(raw, e, from, to, depth + 1); break;
    case EXPR_ALT: build_alternatives(raw, e, from, to, depth + 1); break;
    case EXPR_REPEAT: build_repeat(raw, e, from, to, depth + 1); break;
    case EXPR_RULE: {
        int32_t rule = rule_for(raw, e->rule);
        raw_automaton_add_edge(raw, (RawEdge){.kind = RAW_CALL, .from = from, .to = to, .rule = rule});
    }
    }
}

/* ---- the whole ------------------------------------------------------------------------------------------- */

void raw_automaton_read(RawAutomaton *raw, const ExprGrammar *g) {
    *raw = (RawAutomaton){.w = g->w, .source = g, .rule_of = raw_automaton_heads(g->w, g->n_rules)};
    rule_for(raw, g->root);
    for (int32_t i = 0; i < raw->n_rules; i++) {
        const RawRule r = raw->rules[i];
        build(raw, r.body, r.start, r.end, 0);
    }
}

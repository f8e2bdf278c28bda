/* automaton_build.c - compiles the expressions of a grammar into an automaton over bytes.
 *
 * The work is done in four steps:
 *
 *   1. Expressions become nodes and edges with empty moves (Thompson 1968), one rule after the other. Only rules
 *      that the root needs are built.
 *   2. Two searches backwards from the ends of the rules find the rules that match the empty text, and the edges
 *      from which no end can be reached. Both visit each edge once.
 *   3. Empty moves are removed: a node takes over the edges of all nodes that its empty moves lead to. Only nodes
 *      that an edge or a call leads to are kept.
 *   4. Rules are ranked, which refuses left recursion, and the characters that a node can read repeatedly are found
 *      (automaton_runs.c).
 *
 * A repetition is built in one of three forms: without an upper bound it is a loop; a short one is a row of copies of
 * its body; any other one is a counted call of a rule that has the body. So `[a-z]{0,4000}` takes two nodes, and the
 * count is kept in the state of the text (states.c).
 *
 * Alternatives that are plain texts, such as the 30,000 values of an enumeration, share their beginnings in a trie, so
 * that a text that is being read is in one place instead of thousands.
 *
 * Cost: except for step 3, the time is linear in the size of the expressions, up to the logarithm of a sort. Step 3
 * writes what it copies, so its time is that of its output, of which the limits below allow eight million edges.
 * Everything is counted in steps of the Work. Proof: tests/grammar/test_grammar_states.c compares random grammars
 * with a matcher that tries everything, and tests/grammar/test_grammar_cost.c counts the steps of growing inputs. */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COPIED_WEIGHT = 8, MAX_NODES = 4000000, MAX_EDGES = 8000000, MAX_NESTING = 400 };

/* Flags of a node, which also hold for all nodes that reach it by empty moves. */
enum { RAW_IS_FREE = 1, RAW_READS_CONTROLS = 2 };

typedef enum RawKind { RAW_EMPTY, RAW_BYTES, RAW_CALL } RawKind;

/* An edge while empty moves are still allowed. */
typedef struct RawEdge {
    RawKind kind;
    uint8_t lo, hi;
    bool is_dead; /* no end can be reached through it */
    int32_t from, to;
    int32_t rule, min, max; /* RAW_CALL; max 0: the rule is called once */
    int32_t next;           /* the next edge of the same node; -1: none */
} RawEdge;

typedef struct RawRule {
    const char *name;
    const Expr *body;
    int32_t start, end; /* nodes */
    bool is_nullable;   /* it matches the empty text */
    bool is_productive; /* it matches some text */
} RawRule;

typedef struct RawAutomaton {
    Work *w;
    const ExprGrammar *source;
    RawEdge *edges;
    int32_t n_edges, edge_capacity;
    int32_t *first; /* [n_nodes] the node's first edge; -1: none */
    uint8_t *flags; /* [n_nodes] RAW_... */
    int32_t n_nodes, node_capacity;
    RawRule *rules; /* the root comes first */
    int32_t n_rules, rule_capacity;
    int32_t *rule_of; /* [source->n_rules] -1: not needed so far */
} RawAutomaton;

static int32_t new_node(RawAutomaton *raw) {
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

__attribute__((noreturn)) static void fail_of_edges(Work *w) {
    work_fail(w, FR_ERR_ARGUMENT, "the grammar needs more than %d transitions, which is the limit", MAX_EDGES);
}

static void add_edge(RawAutomaton *raw, RawEdge edge) {
    work_spend(raw->w, 0);
    if (raw->n_edges == MAX_EDGES) fail_of_edges(raw->w);
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
    if (from != to) add_edge(raw, (RawEdge){.kind = RAW_EMPTY, .from = from, .to = to});
}

static void add_bytes(RawAutomaton *raw, int32_t from, int32_t to, uint8_t lo, uint8_t hi) {
    add_edge(raw, (RawEdge){.kind = RAW_BYTES, .from = from, .to = to, .lo = lo, .hi = hi});
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

/* ---- step 1: characters and free text -------------------------------------------------------------------- */

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
        add_empty(raw, node, to);
    }
    for (int32_t k = 0; k < e->n_mark; k++) add_text_edges(&b, b.first + k, k, -1, -1);
    for (int32_t k = 0; k < e->n_beginning; k++) {
        uint8_t byte = (uint8_t)e->beginning[k];
        add_text_edges(&b, own + k, state, byte, k + 1 < e->n_beginning ? own + k + 1 : -1);
        state = text_matcher_next(&b.matcher, state, byte);
    }
    add_empty(raw, from, e->n_beginning ? own : b.first);
}

static void build_bytes(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    if (e->n_bytes == 0) add_empty(raw, from, to);
    for (size_t i = 0; i < e->n_bytes; i++) {
        int32_t next = i + 1 == e->n_bytes ? to : new_node(raw);
        add_bytes(raw, from, next, (uint8_t)e->bytes[i], (uint8_t)e->bytes[i]);
        from = next;
    }
}

/* ---- step 1: alternatives that are plain texts ----------------------------------------------------------- */

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

/* ---- step 1: sequences and repetitions ------------------------------------------------------------------- */

static void build_seq(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    if (e->n_parts == 0) add_empty(raw, from, to);
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
    add_empty(raw, from, loop);
    build(raw, body, loop, loop, depth);
    add_empty(raw, loop, to);
}

static void build_copies(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to, int depth) {
    for (int32_t i = 0; i < e->max; i++) {
        if (i >= e->min) add_empty(raw, from, to);
        int32_t next = i + 1 == e->max ? to : new_node(raw);
        build(raw, e->body, from, next, depth);
        from = next;
    }
}

static void build_counted(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    bool is_rule = e->body->kind == EXPR_RULE;
    int32_t rule = is_rule ? rule_for(raw, e->body->rule) : add_rule(raw, "a repetition", e->body);
    if (e->min == 0) add_empty(raw, from, to);
    add_edge(raw, (RawEdge){.kind = RAW_CALL, .from = from, .to = to, .rule = rule, .min = e->min, .max = e->max});
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
    case EXPR_TEXT: build_text(raw, e, from, to); break;
    case EXPR_CLASS: build_class(raw, &e->set, from, to); break;
    case EXPR_SEQ: build_seq(raw, e, from, to, depth + 1); break;
    case EXPR_ALT: build_alternatives(raw, e, from, to, depth + 1); break;
    case EXPR_REPEAT: build_repeat(raw, e, from, to, depth + 1); break;
    case EXPR_RULE: {
        int32_t rule = rule_for(raw, e->rule);
        add_edge(raw, (RawEdge){.kind = RAW_CALL, .from = from, .to = to, .rule = rule});
    }
    }
}

/* ---- step 2: what can be reached ------------------------------------------------------------------------- */

/* A search backwards from the ends of all rules. A call is passed once its rule is known to reach its own end. */
typedef struct Search {
    const RawAutomaton *raw;
    bool with_bytes;             /* edges that read bytes are passed, too */
    bool *node, *rule;           /* [n_nodes], [n_rules] the end can be reached */
    int32_t *into, *next_into;   /* [n_nodes], [n_edges] the edges that lead to a node; -1 ends a list */
    int32_t *calls, *next_call;  /* [n_rules], [n_edges] the edges that call a rule */
    int32_t *rule_at;            /* [n_nodes] the rule that starts at a node; -1: none */
    int32_t *waiting, n_waiting; /* reached nodes from which the search has not gone on */
} Search;

static int32_t *new_heads(Work *w, int32_t n) {
    int32_t *heads = work_array(w, (size_t)n, sizeof *heads);
    if (n) memset(heads, -1, (size_t)n * sizeof *heads);
    return heads;
}

static void reach(Search *s, int32_t node) {
    if (s->node[node]) return;
    s->node[node] = true;
    s->waiting[s->n_waiting++] = node;
}

static void go_back_from(Search *s, int32_t node) {
    const RawEdge *edges = s->raw->edges;
    int32_t rule = s->rule_at[node];
    for (int32_t k = s->into[node]; k >= 0; k = s->next_into[k]) {
        bool passes = edges[k].kind == RAW_CALL ? s->rule[edges[k].rule] : edges[k].kind == RAW_EMPTY || s->with_bytes;
        if (passes) reach(s, edges[k].from);
    }
    if (rule < 0) return;
    s->rule[rule] = true;
    for (int32_t k = s->calls[rule]; k >= 0; k = s->next_call[k])
        if (s->node[edges[k].to]) reach(s, edges[k].from);
}

static void search_backwards(Search *s, const RawAutomaton *raw, bool with_bytes) {
    Work *w = raw->w;
    size_t n_nodes = (size_t)raw->n_nodes, n_edges = (size_t)raw->n_edges;
    work_spend(w, 4 * (n_nodes + n_edges));
    *s = (Search){.raw = raw,
                  .with_bytes = with_bytes,
                  .node = work_array(w, n_nodes, sizeof *s->node),
                  .rule = work_array(w, (size_t)raw->n_rules, sizeof *s->rule),
                  .into = new_heads(w, raw->n_nodes),
                  .next_into = work_array(w, n_edges, sizeof *s->next_into),
                  .calls = new_heads(w, raw->n_rules),
                  .next_call = work_array(w, n_edges, sizeof *s->next_call),
                  .rule_at = new_heads(w, raw->n_nodes),
                  .waiting = work_array(w, n_nodes, sizeof *s->waiting)};
    for (int32_t k = 0; k < raw->n_edges; k++) {
        const RawEdge *e = &raw->edges[k];
        s->next_into[k] = s->into[e->to];
        s->into[e->to] = k;
        if (e->kind != RAW_CALL) continue;
        s->next_call[k] = s->calls[e->rule];
        s->calls[e->rule] = k;
    }
    for (int32_t r = 0; r < raw->n_rules; r++) {
        s->rule_at[raw->rules[r].start] = r;
        reach(s, raw->rules[r].end);
    }
    while (s->n_waiting > 0) go_back_from(s, s->waiting[--s->n_waiting]);
}

/* A call of a rule that matches the empty text can also be skipped. */
static void skip_nullable_calls(RawAutomaton *raw) {
    Search s;
    int32_t n_edges = raw->n_edges;
    search_backwards(&s, raw, false);
    for (int32_t r = 0; r < raw->n_rules; r++) raw->rules[r].is_nullable = s.rule[r];
    for (int32_t k = 0; k < n_edges; k++) {
        if (raw->edges[k].kind != RAW_CALL || !s.rule[raw->edges[k].rule]) continue;
        raw->edges[k].min = 0;
        add_empty(raw, raw->edges[k].from, raw->edges[k].to);
    }
}

/* An edge from which no end can be reached would let the model write texts that cannot be finished. */
static void mark_dead_edges(RawAutomaton *raw) {
    Search s;
    search_backwards(&s, raw, true);
    for (int32_t r = 0; r < raw->n_rules; r++) raw->rules[r].is_productive = s.rule[r];
    for (int32_t k = 0; k < raw->n_edges; k++) {
        RawEdge *e = &raw->edges[k];
        e->is_dead = !s.node[e->to] || (e->kind == RAW_CALL && !s.rule[e->rule]);
    }
    if (!s.rule[0]) work_fail(raw->w, FR_ERR_ARGUMENT, "no text matches the grammar: it never comes to an end");
}

static void build_raw(RawAutomaton *raw, const ExprGrammar *g) {
    *raw = (RawAutomaton){.w = g->w, .source = g, .rule_of = new_heads(g->w, g->n_rules)};
    rule_for(raw, g->root);
    for (int32_t i = 0; i < raw->n_rules; i++) {
        const RawRule r = raw->rules[i];
        build(raw, r.body, r.start, r.end, 0);
    }
    skip_nullable_calls(raw);
    mark_dead_edges(raw);
}

/* ---- step 3: without empty moves ------------------------------------------------------------------------- */

typedef struct Build {
    RawAutomaton raw;
    Automaton *a;
    int32_t node_capacity, edge_capacity, call_capacity;
    int32_t *number;  /* [raw.n_nodes] of the node in the automaton; -1: not kept so far */
    int32_t *waiting; /* [raw.n_nodes] kept nodes whose edges are to be written */
    int32_t n_waiting;
    int32_t *closure; /* [raw.n_nodes] scratch */
    uint32_t *seen;   /* [raw.n_nodes] the number of the closure in which the node was met last */
    uint32_t n_closures;
    bool *is_end; /* [raw.n_nodes] the end of a rule */
} Build;

#define GROW(b, array, n, capacity) \
    work_room((b)->raw.w, (b)->a->array, (size_t)(b)->a->n, &(b)->capacity, sizeof *(b)->a->array)

/* Returns the node that a node moves to if it does nothing but move on; otherwise the node itself. */
static int32_t moved_on(const Build *b, int32_t node) {
    for (int hops = 0; hops < 100; hops++) {
        int32_t first = b->raw.first[node];
        if (b->is_end[node] || first < 0) break;
        const RawEdge *e = &b->raw.edges[first];
        if (e->kind != RAW_EMPTY || e->next >= 0 || e->is_dead) break;
        node = e->to;
        work_spend(b->raw.w, 0);
    }
    return node;
}

static int32_t number_of(Build *b, int32_t node) {
    node = moved_on(b, node);
    if (b->number[node] < 0) {
        b->a->nodes = GROW(b, nodes, n_nodes, node_capacity);
        b->a->nodes[b->a->n_nodes] = (GrammarNode){.loop = -1, .once = -1};
        b->number[node] = b->a->n_nodes++;
        b->waiting[b->n_waiting++] = node;
    }
    return b->number[node];
}

static void visit(Build *b, int32_t node, int32_t *n) {
    if (b->seen[node] == b->n_closures) return;
    b->seen[node] = b->n_closures;
    b->closure[(*n)++] = node;
}

/* Fills b->closure with the node and the nodes that empty moves lead to; returns how many there are. */
static int32_t find_closure(Build *b, int32_t node) {
    int32_t n = 0;
    b->n_closures++;
    visit(b, node, &n);
    for (int32_t i = 0; i < n; i++) {
        work_spend(b->raw.w, 0);
        for (int32_t k = b->raw.first[b->closure[i]]; k >= 0; k = b->raw.edges[k].next)
            if (b->raw.edges[k].kind == RAW_EMPTY && !b->raw.edges[k].is_dead) visit(b, b->raw.edges[k].to, &n);
    }
    return n;
}

static void write_edge(Build *b, const RawEdge *e) {
    int32_t to = number_of(b, e->to);
    Automaton *a = b->a;
    work_spend(b->raw.w, 0);
    if (a->n_edges == MAX_EDGES || a->n_calls == MAX_EDGES) fail_of_edges(b->raw.w);
    if (e->kind == RAW_BYTES) {
        a->edges = GROW(b, edges, n_edges, edge_capacity);
        a->edges[a->n_edges++] = (GrammarEdge){e->lo, e->hi, to};
    } else {
        a->calls = GROW(b, calls, n_calls, call_capacity);
        a->calls[a->n_calls++] = (GrammarCall){.rule = e->rule, .to = to, .min = e->min, .max = e->max};
    }
}

static int by_target(const void *x, const void *y) {
    const GrammarEdge *a = x, *b = y;
    if (a->to != b->to) return a->to < b->to ? -1 : 1;
    return a->lo != b->lo ? a->lo - b->lo : a->hi - b->hi;
}

/* Sorts the edges of a node, which were written last, and joins ranges with the same target. */
static void join_edges(Automaton *a, GrammarNode *node) {
    if (node->n_edges < 2) return;
    GrammarEdge *e = a->edges + node->first_edge;
    int32_t n = 0;
    qsort(e, (size_t)node->n_edges, sizeof *e, by_target);
    for (int32_t i = 0; i < node->n_edges; i++)
        if (n > 0 && e[n - 1].to == e[i].to && e[i].lo <= e[n - 1].hi + 1) {
            if (e[i].hi > e[n - 1].hi) e[n - 1].hi = e[i].hi;
        } else e[n++] = e[i];
    a->n_edges -= node->n_edges - n;
    node->n_edges = n;
}

static int by_call(const void *x, const void *y) {
    const GrammarCall *a = x, *b = y;
    if (a->rule != b->rule) return a->rule < b->rule ? -1 : 1;
    if (a->to != b->to) return a->to < b->to ? -1 : 1;
    if (a->min != b->min) return a->min < b->min ? -1 : 1;
    return a->max == b->max ? 0 : a->max < b->max ? -1 : 1;
}

static void join_calls(Automaton *a, GrammarNode *node) {
    if (node->n_calls < 2) return;
    GrammarCall *c = a->calls + node->first_call;
    int32_t n = 0;
    qsort(c, (size_t)node->n_calls, sizeof *c, by_call);
    for (int32_t i = 0; i < node->n_calls; i++)
        if (n == 0 || by_call(&c[n - 1], &c[i]) != 0) c[n++] = c[i];
    a->n_calls -= node->n_calls - n;
    node->n_calls = n;
}

static void write_node(Build *b, int32_t raw_node) {
    Automaton *a = b->a;
    int32_t number = b->number[raw_node], n = find_closure(b, raw_node);
    GrammarNode node = {.first_edge = a->n_edges, .first_call = a->n_calls, .loop = -1, .once = -1};
    for (int32_t i = 0; i < n; i++) {
        int32_t from = b->closure[i];
        node.is_end |= b->is_end[from];
        node.is_free |= (b->raw.flags[from] & RAW_IS_FREE) != 0;
        node.reads_controls |= (b->raw.flags[from] & RAW_READS_CONTROLS) != 0;
        for (int32_t k = b->raw.first[from]; k >= 0; k = b->raw.edges[k].next)
            if (b->raw.edges[k].kind != RAW_EMPTY && !b->raw.edges[k].is_dead) write_edge(b, &b->raw.edges[k]);
    }
    node.n_edges = a->n_edges - node.first_edge;
    node.n_calls = a->n_calls - node.first_call;
    join_edges(a, &node);
    join_calls(a, &node);
    a->nodes[number] = node; /* write_edge may have moved the nodes */
}

static void write_nodes(Build *b) {
    Work *w = b->raw.w;
    size_t n = (size_t)b->raw.n_nodes;
    Automaton *a = b->a;
    b->number = new_heads(w, b->raw.n_nodes);
    b->waiting = work_array(w, n, sizeof *b->waiting);
    b->closure = work_array(w, n, sizeof *b->closure);
    b->seen = work_array(w, n, sizeof *b->seen);
    b->is_end = work_array(w, n, sizeof *b->is_end);
    for (int32_t r = 0; r < b->raw.n_rules; r++) b->is_end[b->raw.rules[r].end] = true;
    a->nodes = GROW(b, nodes, n_nodes, node_capacity);
    a->nodes[a->n_nodes++] = (GrammarNode){.loop = -1, .once = -1}; /* AUTOMATON_ACCEPT */
    a->n_rules = b->raw.n_rules;
    a->rules = work_array(w, (size_t)a->n_rules, sizeof *a->rules);
    for (int32_t r = 0; r < a->n_rules; r++)
        if (b->raw.rules[r].is_productive) a->rules[r].start = number_of(b, b->raw.rules[r].start);
    while (b->n_waiting > 0) write_node(b, b->waiting[--b->n_waiting]);
    a->root_is_optional = b->raw.n_rules > 0 && b->raw.rules[0].is_nullable;
}

/* ---- step 4: ranks --------------------------------------------------------------------------------------- */

typedef struct Visit {
    int32_t rule, i_call;
} Visit;

enum { NEW, OPEN, DONE };

/* Walks depth first over the calls that a rule makes before it reads a byte; rules get falling ranks as they are
 * left. A rule that calls itself so (`list ::= list "," item | item`) would do it for ever. It is refused, because
 * it can always be written as a repetition. */
static void rank_rules(Automaton *a, const RawAutomaton *raw) {
    uint8_t *state = work_array(raw->w, (size_t)a->n_rules, 1);
    Visit *stack = work_array(raw->w, (size_t)a->n_rules, sizeof *stack);
    int32_t next_rank = a->n_rules;
    for (int32_t first = 0; first < a->n_rules; first++) {
        int32_t n = 0;
        if (state[first] == NEW) stack[n++] = (Visit){first, 0}, state[first] = OPEN;
        while (n > 0) {
            Visit *v = &stack[n - 1];
            const GrammarNode *start = &a->nodes[a->rules[v->rule].start];
            work_spend(raw->w, 0);
            if (v->i_call == start->n_calls) {
                state[v->rule] = DONE;
                a->rules[v->rule].rank = --next_rank;
                n--;
                continue;
            }
            int32_t called = a->calls[start->first_call + v->i_call++].rule;
            if (state[called] == OPEN)
                work_fail(
                    raw->w, FR_ERR_ARGUMENT,
                    "the rule '%.80s' is left-recursive: it can call itself before it reads a character; write it as a "
                    "repetition, such as list ::= item (\",\" item)*",
                    raw->rules[called].name);
            if (state[called] == NEW) stack[n++] = (Visit){called, 0}, state[called] = OPEN;
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------------------- */

void automaton_set_classes(Automaton *a) {
    bool cut[257] = {false}; /* a class begins where some edge begins or has ended */
    for (int32_t i = 0; i < a->n_edges; i++) cut[a->edges[i].lo] = cut[a->edges[i].hi + 1] = true;
    int32_t class = 0;
    for (int byte = 0; byte < 256; byte++) {
        if (byte > 0 && cut[byte]) class ++;
        a->byte_class[byte] = (uint8_t) class;
        if (byte == 0 || cut[byte]) a->class_byte[class] = (uint8_t)byte;
    }
    a->n_classes = class + 1;
}

Automaton *automaton_build(const ExprGrammar *g) {
    Build b = {.a = work_alloc(g->w, sizeof *b.a)};
    build_raw(&b.raw, g);
    write_nodes(&b);
    rank_rules(b.a, &b.raw);
    work_spend(g->w, (size_t)b.a->n_edges);
    automaton_set_classes(b.a);
    automaton_find_runs(b.a, g->w);
    return b.a;
}

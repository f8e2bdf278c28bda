/* automaton_build.c - compiles the expressions of a grammar into an automaton over bytes.
 *
 * The work is done in four steps:
 *
 *   1. Expressions become nodes and edges with empty moves (Thompson 1968), one rule after the other. Only rules
 *      that the root needs are built (raw_automaton.c).
 *   2. Two searches backwards from the ends of the rules find the rules that match the empty text, and the edges
 *      from which no end can be reached (raw_automaton_search.c).
 *   3. Empty moves are removed: a node takes over the edges of all nodes that its empty moves lead to. Only nodes
 *      that an edge or a call leads to are kept.
 *   4. Rules are ranked, which refuses left recursion, and the characters that a node can read repeatedly are found
 *      (automaton_runs.c).
 *
 * Cost: except for step 3, the time is linear in the size of the expressions, up to the logarithm of a sort. Step 3
 * writes what it copies, so its time is that of its output, of which raw_automaton.h allows eight million edges.
 * Everything is counted in steps of the Work. Proof: tests/grammar/test_grammar_states.c compares random grammars
 * with a matcher that tries everything, and tests/grammar/test_grammar_cost.c counts the steps of growing inputs. */
#include "grammar/raw_automaton.h"

#include <stdlib.h>
#include <string.h>

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
    if (a->n_edges == RAW_MAX_EDGES || a->n_calls == RAW_MAX_EDGES) raw_automaton_fail_of_edges(b->raw.w);
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
    b->number = raw_automaton_heads(w, b->raw.n_nodes);
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
    raw_automaton_read(&b.raw, g);
    raw_automaton_search(&b.raw);
    write_nodes(&b);
    rank_rules(b.a, &b.raw);
    work_spend(g->w, (size_t)b.a->n_edges);
    automaton_set_classes(b.a);
    automaton_find_runs(b.a, g->w);
    return b.a;
}

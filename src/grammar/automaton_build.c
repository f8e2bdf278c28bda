/* automaton_build.c - removes the empty moves of an automaton, numbers what is left, and finds what follows from it.
 *
 * A node takes over the edges of all nodes that empty moves lead to. Only nodes that an edge or a call leads to are
 * kept. */
#include "grammar/automaton_parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_EDGES = 8000000 };

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
    grow((b)->raw.w, (b)->a->array, (size_t)(b)->a->n, &(b)->capacity, sizeof *(b)->a->array)

/* The array with room for one more. */
static void *grow(Work *w, void *array, size_t n, int32_t *capacity, size_t each) {
    if (n < (size_t)*capacity) return array;
    int32_t wanted = *capacity ? 2 * *capacity : 256;
    void *bigger = work_grow(w, array, n * each, (size_t)wanted * each);
    *capacity = wanted;
    return bigger;
}

/* Where a node does nothing but move on, the node that it moves to. */
static int32_t moved_on(const Build *b, int32_t node) {
    for (int hops = 0; hops < 100; hops++) {
        int32_t first = b->raw.first[node];
        if (b->is_end[node] || first < 0) break;
        const RawEdge *e = &b->raw.edges[first];
        if (e->kind != RAW_EMPTY || e->next >= 0 || e->is_dead) break;
        node = e->to;
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

/* Fills b->closure with the node and what empty moves lead to; returns how many. */
static int32_t find_closure(Build *b, int32_t node) {
    int32_t n = 0;
    b->n_closures++;
    visit(b, node, &n);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = b->raw.first[b->closure[i]]; k >= 0; k = b->raw.edges[k].next)
            if (b->raw.edges[k].kind == RAW_EMPTY && !b->raw.edges[k].is_dead) visit(b, b->raw.edges[k].to, &n);
    work_spend(b->raw.w, 16 * (size_t)n);
    return n;
}

static void write_edge(Build *b, const RawEdge *e) {
    int32_t to = number_of(b, e->to);
    Automaton *a = b->a;
    work_spend(b->raw.w, 0);
    if (a->n_edges == MAX_EDGES || a->n_calls == MAX_EDGES)
        work_fail(b->raw.w, FR_ERR_ARGUMENT, "the grammar needs more than %d transitions, which is the limit",
                  MAX_EDGES);
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

/* Sorts the edges of a node, the last one that was written, and joins ranges with one target. */
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

/* Bytes and calls are written one kind after the other, so that those of a node lie together. */
static void write_node(Build *b, int32_t raw_node) {
    Automaton *a = b->a;
    int32_t number = b->number[raw_node], n = find_closure(b, raw_node);
    GrammarNode node = {.first_edge = a->n_edges, .first_call = a->n_calls, .loop = -1, .once = -1};
    for (int32_t i = 0; i < n; i++) {
        node.is_end |= b->is_end[b->closure[i]];
        node.is_free |= (b->raw.flags[b->closure[i]] & RAW_IS_FREE) != 0;
        node.reads_controls |= (b->raw.flags[b->closure[i]] & RAW_READS_CONTROLS) != 0;
        for (int32_t k = b->raw.first[b->closure[i]]; k >= 0; k = b->raw.edges[k].next)
            if (b->raw.edges[k].kind != RAW_EMPTY && !b->raw.edges[k].is_dead) write_edge(b, &b->raw.edges[k]);
    }
    node.n_edges = a->n_edges - node.first_edge;
    node.n_calls = a->n_calls - node.first_call;
    join_edges(a, &node);
    join_calls(a, &node);
    a->nodes[number] = node; /* write_edge may have moved the nodes */
}

/* A class begins where some edge begins or has ended. */
void automaton_set_classes(Automaton *a) {
    bool cut[257] = {false};
    for (int32_t i = 0; i < a->n_edges; i++) cut[a->edges[i].lo] = cut[a->edges[i].hi + 1] = true;
    int32_t class = 0;
    for (int byte = 0; byte < 256; byte++) {
        if (byte > 0 && cut[byte]) class ++;
        a->byte_class[byte] = (uint8_t) class;
        if (byte == 0 || cut[byte]) a->class_byte[class] = (uint8_t)byte;
    }
    a->n_classes = class + 1;
}

static void take_arrays(Build *b) {
    Work *w = b->raw.w;
    size_t n = (size_t)b->raw.n_nodes;
    b->number = work_array(w, n, sizeof *b->number);
    memset(b->number, -1, n * sizeof *b->number);
    b->waiting = work_array(w, n, sizeof *b->waiting);
    b->closure = work_array(w, n, sizeof *b->closure);
    b->seen = work_array(w, n, sizeof *b->seen);
    b->is_end = work_array(w, n, sizeof *b->is_end);
    for (int32_t r = 0; r < b->raw.n_rules; r++) b->is_end[b->raw.rules[r].end] = true;
}

Automaton *automaton_build(const ExprGrammar *g) {
    Build b = {.a = work_alloc(g->w, sizeof *b.a)};
    raw_build(&b.raw, g);
    raw_trim(&b.raw);
    take_arrays(&b);
    Automaton *a = b.a;
    a->nodes = GROW(&b, nodes, n_nodes, node_capacity);
    a->nodes[a->n_nodes++] = (GrammarNode){.loop = -1, .once = -1}; /* AUTOMATON_ACCEPT */
    a->n_rules = b.raw.n_rules;
    a->rules = work_array(g->w, (size_t)a->n_rules, sizeof *a->rules);
    for (int32_t r = 0; r < a->n_rules; r++)
        if (b.raw.rules[r].is_productive) a->rules[r].start = number_of(&b, b.raw.rules[r].start);
    while (b.n_waiting > 0) write_node(&b, b.waiting[--b.n_waiting]);
    a->root_is_optional = b.raw.rules[0].is_nullable;
    automaton_rank(a, &b.raw);
    automaton_set_classes(a);
    automaton_find_runs(a, g->w);
    return a;
}

/* automaton_copy.c - an automaton out of its Work, into one block of memory; and one that begins after a text.
 *
 * A model that reasons first writes what it likes up to a text such as "</think>", and the grammar holds from there. That
 * is a phase of the same automaton: nodes 0..n-1 of a matcher for the text (Knuth, Morris and Pratt 1977) come before it. The
 * node k has read the first k bytes of the text, and has an edge for every byte; the last one calls the root. So the
 * beginning of the grammar is found at the byte where it is, in the middle of a token too. */
#include "grammar/automaton.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The same automaton with room for more, in one malloc'ed block. */
static Automaton *copy_with_room(const Automaton *a, int32_t more_nodes, int32_t more_edges) {
    const Automaton sizes = {.n_nodes = a->n_nodes + more_nodes,
                             .n_edges = a->n_edges + more_edges,
                             .n_calls = a->n_calls + (more_nodes > 0),
                             .n_rules = a->n_rules + (more_nodes > 0),
                             .n_runs = a->n_runs + (more_nodes > 0)};
    size_t runs = sizeof *a->runs * (size_t)sizes.n_runs, nodes = sizeof *a->nodes * (size_t)sizes.n_nodes,
           edges = sizeof *a->edges * (size_t)sizes.n_edges, calls = sizeof *a->calls * (size_t)sizes.n_calls,
           rules = sizeof *a->rules * (size_t)sizes.n_rules, all = sizeof *a + runs + nodes + edges + calls + rules;
    char *block = calloc(1, all);
    if (!block) return NULL;
    Automaton *copy = (Automaton *)block;
    *copy = *a;
    copy->n_bytes = all;
    copy->runs = (CharRun *)(block + sizeof *a); /* the elements with 8-byte numbers come first */
    copy->nodes = (GrammarNode *)(block + sizeof *a + runs);
    copy->edges = (GrammarEdge *)(block + sizeof *a + runs + nodes);
    copy->calls = (GrammarCall *)(block + sizeof *a + runs + nodes + edges);
    copy->rules = (GrammarRule *)(block + sizeof *a + runs + nodes + edges + calls);
    if (a->n_runs) memcpy(copy->runs, a->runs, sizeof *a->runs * (size_t)a->n_runs);
    memcpy(copy->nodes, a->nodes, sizeof *a->nodes * (size_t)a->n_nodes);
    if (a->n_edges) memcpy(copy->edges, a->edges, sizeof *a->edges * (size_t)a->n_edges);
    if (a->n_calls) memcpy(copy->calls, a->calls, sizeof *a->calls * (size_t)a->n_calls);
    memcpy(copy->rules, a->rules, sizeof *a->rules * (size_t)a->n_rules);
    return copy;
}

Automaton *automaton_copy(const Automaton *a) { return copy_with_room(a, 0, 0); }

/* The bytes of the text that have been read after k of them and one more byte. border[k]: of the first k bytes, the
 * longest proper beginning that is also their end. */
static int32_t next_matched(const char *text, const int32_t *border, int32_t k, int byte) {
    while (k > 0 && (unsigned char)text[k] != byte) k = border[k];
    return (unsigned char)text[k] == byte ? k + 1 : 0;
}

static void find_borders(const char *text, int32_t n, int32_t *border) {
    border[0] = 0;
    for (int32_t k = 1; k <= n; k++)
        border[k] = k == 1 ? 0 : next_matched(text, border, border[k - 1], (unsigned char)text[k - 1]);
}

/* Appends the node that has read k bytes, with an edge for each run of bytes that lead to the same node. */
static void add_matcher_node(Automaton *a, const char *text, const int32_t *border, int32_t k, int32_t first) {
    GrammarNode *node = &a->nodes[first + k];
    *node = (GrammarNode){.first_edge = a->n_edges, .first_call = a->n_calls, .is_free = true, .loop = -1, .once = -1};
    for (int byte = 0; byte < 256; byte++) {
        int32_t to = first + next_matched(text, border, k, byte);
        GrammarEdge *last = &a->edges[a->n_edges - 1];
        if (byte > 0 && last->to == to) last->hi = (uint8_t)byte;
        else a->edges[a->n_edges++] = (GrammarEdge){(uint8_t)byte, (uint8_t)byte, to};
    }
    node->n_edges = a->n_edges - node->first_edge;
}

/* The first node stays where it is with every byte but the first of the text. */
static void add_matcher_run(Automaton *a, unsigned char first_byte, GrammarNode *node) {
    CharRun all = {{~(uint64_t)0, ~(uint64_t)0}, true};
    if (first_byte < 128) all.ascii[first_byte / 64] &= ~((uint64_t)1 << first_byte % 64);
    else all.non_ascii = false;
    node->loop = a->n_runs;
    a->runs[a->n_runs++] = all;
}

Automaton *automaton_after(const Automaton *from, const char *text, size_t n_text) {
    int32_t n = (int32_t)n_text, *border = malloc((n_text + 1) * sizeof *border);
    Automaton *a = border ? copy_with_room(from, n + 2, 256 * n) : NULL;
    if (!a) {
        free(border);
        return NULL;
    }
    find_borders(text, n, border);
    int32_t first = a->n_nodes, call = first + n, end = call + 1;
    a->n_nodes += n + 2;
    for (int32_t k = 0; k < n; k++) add_matcher_node(a, text, border, k, first);
    add_matcher_run(a, (unsigned char)text[0], &a->nodes[first]);
    a->nodes[call] = (GrammarNode){.first_edge = a->n_edges,
                                   .first_call = a->n_calls,
                                   .n_calls = 1,
                                   .is_end = from->root_is_optional,
                                   .loop = -1,
                                   .once = -1};
    a->nodes[end] =
        (GrammarNode){.first_edge = a->n_edges, .first_call = a->n_calls, .is_end = true, .loop = -1, .once = -1};
    a->calls[a->n_calls++] = (GrammarCall){.rule = from->root, .to = end};
    a->root = a->n_rules++;
    a->rules[a->root] = (GrammarRule){.start = first, .rank = from->n_rules};
    a->root_is_optional = false;
    free(border);
    automaton_set_classes(a);
    return a;
}

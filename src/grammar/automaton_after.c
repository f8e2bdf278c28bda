/* automaton_after.c - copies an automaton out of its Work into one block of memory, and makes one for texts that begin
 * with something else, such as reasoning.
 *
 * A model that reasons first writes what it likes up to a text such as "</think>", and the grammar holds from there on.
 * Both parts are one automaton: the states of a matcher for the text become nodes that come before the grammar. Node k
 * has read the first k bytes of the text and has an edge for every byte; the last node calls the root. So the grammar
 * begins at the byte after the text, also in the middle of a token.
 *
 * For a model that decides by itself whether it reasons there is a node before all this, where a text either begins
 * with the opening of the reasoning, such as "<think>", or is one of the grammar:
 *
 *     begin --<--> . --t--> ... -->--> 0 --any--> ... --<-- /think> --> call ==root==> end
 *     begin ==root==> end                                                                    */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

/* Where a byte does not continue the text, the bytes that were read may still end with a shorter beginning of it:
 * "<</think>" reads "<" again after "<". The borders say which beginnings these are, so no byte is read twice. */
int32_t text_matcher_next(const TextMatcher *m, int32_t state, uint8_t byte) {
    while (state > 0 && (uint8_t)m->text[state] != byte) state = m->border[state];
    return (uint8_t)m->text[state] == byte ? state + 1 : 0;
}

void text_matcher_init(TextMatcher *m, const char *text, int32_t n, int32_t *border) {
    *m = (TextMatcher){.text = text, .n = n, .border = border};
    border[0] = border[1] = 0;
    for (int32_t k = 2; k <= n; k++) border[k] = text_matcher_next(m, border[k - 1], (uint8_t)text[k - 1]);
}

/* Copies the automaton into one malloc'ed block with room for more nodes and edges. */
static Automaton *copy_with_room(const Automaton *a, int32_t more_nodes, int32_t more_edges) {
    const Automaton sizes = {.n_nodes = a->n_nodes + more_nodes,
                             .n_edges = a->n_edges + more_edges,
                             .n_calls = a->n_calls + 2 * (more_nodes > 0),
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

/* Appends the node that has read k bytes, with an edge for each run of bytes that lead to the same node. */
static void add_matcher_node(Automaton *a, const TextMatcher *m, int32_t k, int32_t first) {
    a->nodes[first + k] = (GrammarNode){.first_edge = a->n_edges,
                                        .first_call = a->n_calls,
                                        .is_free = true,
                                        .reads_controls = true,
                                        .loop = -1,
                                        .once = -1};
    for (int byte = 0; byte < 256; byte++) {
        int32_t to = first + text_matcher_next(m, k, (uint8_t)byte);
        GrammarEdge *last = &a->edges[a->n_edges - 1];
        if (byte > 0 && last->to == to) last->hi = (uint8_t)byte;
        else a->edges[a->n_edges++] = (GrammarEdge){(uint8_t)byte, (uint8_t)byte, to};
    }
    a->nodes[first + k].n_edges = a->n_edges - a->nodes[first + k].first_edge;
}

/* Every byte but the first one of the text leads from the first node to itself. */
static void add_matcher_run(Automaton *a, unsigned char first_byte, GrammarNode *node) {
    CharRun all = {{~(uint64_t)0, ~(uint64_t)0}, true};
    if (first_byte < 128) all.ascii[first_byte / 64] &= ~((uint64_t)1 << first_byte % 64);
    else all.non_ascii = false;
    node->loop = a->n_runs;
    a->runs[a->n_runs++] = all;
}

/* Appends a node without edges, which calls the root of `from` if `calls` is true. */
static int32_t add_node(Automaton *a, const Automaton *from, bool calls, bool is_end, int32_t end) {
    a->nodes[a->n_nodes] = (GrammarNode){.first_edge = a->n_edges,
                                         .first_call = a->n_calls,
                                         .n_calls = calls,
                                         .is_end = is_end,
                                         .loop = -1,
                                         .once = -1};
    if (calls) a->calls[a->n_calls++] = (GrammarCall){.rule = from->root, .to = end};
    return a->n_nodes++;
}

/* Appends the node where every text begins, and the nodes that have read a part of the opening. An opening may have
 * several control tokens (gpt-oss: <|channel|>analysis<|message|>). */
static int32_t add_opening(Automaton *a, const Automaton *from, const char *text, size_t n, int32_t first,
                           int32_t end) {
    int32_t begin = add_node(a, from, true, false, end);
    for (size_t i = 0; i < n; i++) {
        int32_t at = i == 0 ? begin : add_node(a, from, false, false, end), to = i + 1 == n ? first : a->n_nodes;
        a->edges[a->n_edges++] = (GrammarEdge){(uint8_t)text[i], (uint8_t)text[i], to};
        a->nodes[at].n_edges = 1;
        a->nodes[at].reads_controls = true;
    }
    return begin;
}

Automaton *automaton_after(const Automaton *from, const char *opening, size_t n_opening, const char *after,
                           size_t n_after) {
    int32_t n = (int32_t)n_after, *border = malloc((n_after + 1) * sizeof *border);
    Automaton *a = border ? copy_with_room(from, n + 2 + (int32_t)n_opening, 256 * n + (int32_t)n_opening) : NULL;
    TextMatcher m;
    if (!a) {
        free(border);
        return NULL;
    }
    text_matcher_init(&m, after, n, border);
    int32_t first = a->n_nodes, call = first + n, end = call + 1, begin = first;
    for (int32_t k = 0; k < n; k++) add_matcher_node(a, &m, k, first);
    a->n_nodes += n;
    add_matcher_run(a, (unsigned char)after[0], &a->nodes[first]);
    (void)add_node(a, from, true, from->root_is_optional, end);
    (void)add_node(a, from, false, true, end);
    if (n_opening > 0) begin = add_opening(a, from, opening, n_opening, first, end);
    a->root = a->n_rules++;
    a->rules[a->root] = (GrammarRule){.start = begin, .rank = n_opening > 0 ? -1 : from->n_rules};
    a->root_is_optional = n_opening > 0 && from->root_is_optional;
    free(border);
    automaton_set_classes(a);
    return a;
}

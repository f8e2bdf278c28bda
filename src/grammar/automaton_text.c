/* automaton_text.c - text that a grammar leaves free, up to a mark.
 *
 * A model that may call tools writes what it likes until it writes the mark of a call; from there on the grammar holds:
 *
 *     root ::= %text "<call>" (%mark "<call>" call %mark "</call>" %text "<call>")*
 *
 * EXPR_TEXT is any text in which the mark does not occur. Its nodes are the states of a matcher for the mark
 * (text_matcher.h), each of which may be the last one; the byte that would complete the mark leads nowhere, so that behind a
 * mark nothing is left but what the grammar wants there.
 *
 * Some families write calls without a mark, as an answer that begins with {"name": . The text before a mark must then not begin
 * so: a second row of nodes reads that beginning, and each byte that departs from it leads back to the matcher. */
#include "grammar/automaton_parts.h"
#include "grammar/text_matcher.h"

typedef struct TextBuild {
    RawAutomaton *raw;
    TextMatcher matcher;
    int32_t first; /* the node of the matcher's state 0 */
} TextBuild;

/* The edges of a node in a state of the matcher; the byte `special` (-1: none) leads to its own target, -1: nowhere. */
static void add_edges(const TextBuild *b, int32_t node, int32_t state, int special, int32_t special_to) {
    int32_t last = -1, begin = 0;
    work_spend(b->raw->w, 1024);
    for (int byte = 0; byte <= 256; byte++) {
        int32_t to = -1;
        if (byte < 256) {
            int32_t next = text_matcher_next(&b->matcher, state, (uint8_t)byte);
            to = byte == special ? special_to : next == b->matcher.n ? -1 : b->first + next;
        }
        if (byte == 256 || to != last) {
            if (last >= 0)
                raw_add_edge(b->raw, (RawEdge){.kind = RAW_BYTES,
                                               .from = node,
                                               .to = last,
                                               .lo = (uint8_t)begin,
                                               .hi = (uint8_t)(byte - 1)});
            last = to, begin = byte;
        }
    }
}

static void add_nodes(const TextBuild *b, int32_t n, int32_t to) {
    for (int32_t i = 0; i < n; i++) {
        int32_t node = raw_new_node(b->raw);
        b->raw->flags[node] = RAW_IS_FREE | RAW_READS_CONTROLS;
        raw_add_edge(b->raw, (RawEdge){.kind = RAW_EMPTY, .from = node, .to = to});
    }
}

void raw_build_text(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to) {
    TextBuild b = {.raw = raw, .first = raw->n_nodes};
    int32_t own = b.first + e->n_mark, state = 0;
    text_matcher_init(&b.matcher, e->mark, e->n_mark,
                      work_array(raw->w, (size_t)e->n_mark + 1, sizeof *b.matcher.border));
    add_nodes(&b, e->n_mark + e->n_beginning, to);
    for (int32_t k = 0; k < e->n_mark; k++) add_edges(&b, b.first + k, k, -1, -1);
    for (int32_t k = 0; k < e->n_beginning; k++) {
        uint8_t byte = (uint8_t)e->beginning[k];
        add_edges(&b, own + k, state, byte, k + 1 < e->n_beginning ? own + k + 1 : -1);
        state = text_matcher_next(&b.matcher, state, byte);
    }
    raw_add_edge(raw, (RawEdge){.kind = RAW_EMPTY, .from = from, .to = e->n_beginning ? own : b.first});
}

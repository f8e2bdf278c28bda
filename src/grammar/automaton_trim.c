/* automaton_trim.c - two questions about a whole grammar: which edges lead to the end of their rule, and in which order
 * rules call each other before they read a byte.
 *
 * An edge that leads nowhere would let the model write texts that cannot be finished. And a rule that calls itself
 * before it reads a byte (`list ::= list "," item | item`) would call itself for ever; it is refused, because it can
 * always be written as a repetition (`list ::= item ("," item)*`). */
#include "grammar/automaton_parts.h"

/* One pass over all edges: nodes from which an end can be reached. */
static bool spread(const RawAutomaton *raw, bool *reaches_end) {
    bool changed = false;
    for (int32_t i = raw->n_edges - 1; i >= 0; i--) {
        const RawEdge *e = &raw->edges[i];
        if (reaches_end[e->from] || !reaches_end[e->to]) continue;
        if (e->kind == RAW_CALL && !raw->rules[e->rule].is_productive) continue;
        reaches_end[e->from] = changed = true;
    }
    work_spend(raw->w, (size_t)raw->n_edges);
    return changed;
}

void raw_trim(RawAutomaton *raw) {
    bool *reaches_end = work_array(raw->w, (size_t)raw->n_nodes, sizeof *reaches_end), changed = true;
    for (int32_t r = 0; r < raw->n_rules; r++) reaches_end[raw->rules[r].end] = true;
    while (changed) {
        changed = spread(raw, reaches_end);
        for (int32_t r = 0; r < raw->n_rules; r++)
            if (!raw->rules[r].is_productive && reaches_end[raw->rules[r].start])
                raw->rules[r].is_productive = changed = true;
    }
    for (int32_t i = 0; i < raw->n_edges; i++) {
        RawEdge *e = &raw->edges[i];
        e->is_dead = !reaches_end[e->to] || (e->kind == RAW_CALL && !raw->rules[e->rule].is_productive);
    }
    if (!raw->rules[0].is_productive)
        work_fail(raw->w, FR_ERR_ARGUMENT, "no text matches the grammar: it never comes to an end");
}

/* ---- ranks -------------------------------------------------------------------------------------------- */

typedef struct Visit {
    int32_t rule, i_call;
} Visit;

enum { NEW, OPEN, DONE };

/* Depth first over "calls before it reads a byte"; rules get falling ranks as they are left. */
void automaton_rank(Automaton *a, const RawAutomaton *raw) {
    uint8_t *state = work_array(raw->w, (size_t)a->n_rules, 1);
    Visit *stack = work_array(raw->w, (size_t)a->n_rules, sizeof *stack);
    int32_t next_rank = a->n_rules;
    for (int32_t first = 0; first < a->n_rules; first++) {
        int32_t n = 0;
        if (state[first] == NEW) stack[n++] = (Visit){first, 0}, state[first] = OPEN;
        while (n > 0) {
            Visit *v = &stack[n - 1];
            const GrammarNode *start = &a->nodes[a->rules[v->rule].start];
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

/* raw_automaton_search.c - step 2 of automaton_build.c: what can be reached. Two searches go backwards from the ends of
 * the rules, and each visits each edge once. */
#include "grammar/raw_automaton.h"

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
                  .into = raw_automaton_heads(w, raw->n_nodes),
                  .next_into = work_array(w, n_edges, sizeof *s->next_into),
                  .calls = raw_automaton_heads(w, raw->n_rules),
                  .next_call = work_array(w, n_edges, sizeof *s->next_call),
                  .rule_at = raw_automaton_heads(w, raw->n_nodes),
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
        raw_automaton_add_empty(raw, raw->edges[k].from, raw->edges[k].to);
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

void raw_automaton_search(RawAutomaton *raw) {
    skip_nullable_calls(raw);
    mark_dead_edges(raw);
}

/* automaton_parts.h - the steps of automaton_build, a file each. */
#ifndef GRAMMAR_AUTOMATON_PARTS_H
#define GRAMMAR_AUTOMATON_PARTS_H

#include "grammar/automaton.h"

/* Of a node, and of all nodes that reach it by empty moves: any token may come; control tokens may. */
enum { RAW_IS_FREE = 1, RAW_READS_CONTROLS = 2 };

typedef enum RawKind { RAW_EMPTY, RAW_BYTES, RAW_CALL } RawKind;

/* An edge of the automaton while empty moves are still allowed. */
typedef struct RawEdge {
    RawKind kind;
    uint8_t lo, hi;
    int32_t from, to;
    int32_t rule, min, max; /* RAW_CALL; max 0: once */
    int32_t next;           /* of the same node; -1: none */
    bool is_dead;           /* leads nowhere */
} RawEdge;

typedef struct RawRule {
    const char *name;
    const Expr *body;
    int32_t start, end; /* nodes */
    bool is_nullable;
    bool is_productive; /* matches some text */
} RawRule;

typedef struct RawAutomaton {
    Work *w;
    const ExprGrammar *source;
    RawEdge *edges;
    int32_t n_edges, edge_capacity;
    int32_t *first; /* [n_nodes] the node's first edge */
    uint8_t *flags; /* [n_nodes] RAW_... */
    int32_t n_nodes, node_capacity;
    RawRule *rules; /* the root first */
    int32_t n_rules, rule_capacity;
    int32_t *rule_of;      /* [source->n_rules] -1: not needed so far */
    bool *source_nullable; /* [source->n_rules] */
} RawAutomaton;

void raw_build(RawAutomaton *raw, const ExprGrammar *g); /* automaton_raw.c: expressions to nodes */
/* What raw_build calls for EXPR_TEXT (automaton_text.c), and that calls back. */
void raw_build_text(RawAutomaton *raw, const Expr *e, int32_t from, int32_t to);
int32_t raw_new_node(RawAutomaton *raw);
void raw_add_edge(RawAutomaton *raw, RawEdge edge);
void raw_trim(RawAutomaton *raw);                           /* automaton_trim.c: marks edges that lead nowhere */
void automaton_rank(Automaton *a, const RawAutomaton *raw); /* automaton_trim.c: ranks, refuses left recursion */
void automaton_find_runs(Automaton *a, Work *w);            /* automaton_runs.c */

#endif

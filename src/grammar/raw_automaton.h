/* raw_automaton.h - the automaton of a grammar while it has empty moves (automaton_build.c, steps 1 and 2). All memory
 * is the Work's; what is too large or wrong ends the work with an error (work_fail). */
#ifndef RAW_AUTOMATON_H
#define RAW_AUTOMATON_H

#include "grammar/automaton.h"

enum { RAW_MAX_NODES = 4000000, RAW_MAX_EDGES = 8000000 };

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

/* Step 1: builds the nodes and edges of the rules that the root needs. */
void raw_automaton_read(RawAutomaton *raw, const ExprGrammar *g);
/* Step 2: finds the rules that match the empty text, past which empty moves then lead, and the edges from which no end
 * can be reached. Fails if no text matches the grammar. */
void raw_automaton_search(RawAutomaton *raw);

/* Returns a list of n numbers, all -1. */
int32_t *raw_automaton_heads(Work *w, int32_t n);
void raw_automaton_add_edge(RawAutomaton *raw, RawEdge edge);
/* Adds an empty move between two nodes, unless they are one. */
void raw_automaton_add_empty(RawAutomaton *raw, int32_t from, int32_t to);
__attribute__((noreturn)) void raw_automaton_fail_of_edges(Work *w);

#endif

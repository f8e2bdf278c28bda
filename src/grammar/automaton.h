/* automaton.h - a grammar compiled: for each rule an automaton over bytes, whose edges may also call rules.
 *
 *     root ::= "[" item ("," item)* "]"        0 --[--> 1 ==item==> 2 --,--> 1
 *     item ::= [0-9]+ | root                                        2 --]--> end
 *
 * A node has edges, which read one byte, and calls, which run the automaton of a rule and go on at `to` when it ends; a
 * counted call runs it min to max times. There are no empty moves: what a node could reach by them, it has itself. So a
 * rule never ends where it begins (a rule that matches the empty text can also be skipped where it is called), and no
 * rule calls itself before it has read a byte. Every node can reach the end of its rule.
 *
 * Immutable after automaton_build. */
#ifndef GRAMMAR_AUTOMATON_H
#define GRAMMAR_AUTOMATON_H

#include "grammar/expr.h"

enum { AUTOMATON_ACCEPT = 0 }; /* the node where the whole text has been read */

typedef struct GrammarEdge {
    uint8_t lo, hi;
    int32_t to;
} GrammarEdge;

typedef struct GrammarCall {
    int32_t rule, to;
    int32_t min, max; /* of a counted call, max perhaps EXPR_UNBOUNDED; max 0: called once */
} GrammarCall;

/* Characters that a node can read again and again, as far as single bytes below 0x80 and whole characters above are
 * concerned. */
typedef struct CharRun {
    uint64_t ascii[2];
    bool non_ascii; /* and every character from U+0080 on */
} CharRun;

typedef struct GrammarNode {
    int32_t first_edge, n_edges, first_call, n_calls;
    bool is_end;         /* its rule may end here */
    bool is_free;        /* in text that the grammar leaves free (automaton_after): any token may come */
    bool reads_controls; /* control tokens may be read from here, as their spelling: free text and marks */
    int32_t loop, once;  /* index of a CharRun, -1: none. loop: read any number of times. once: leads to the end of the
                         * rule, so that a counted call reads it as often as it is counted */
} GrammarNode;

typedef struct GrammarRule {
    int32_t start; /* node */
    int32_t rank;  /* a rule that calls another one before it reads a byte has the smaller rank */
} GrammarRule;

typedef struct Automaton {
    GrammarNode *nodes;
    GrammarEdge *edges;
    GrammarCall *calls;
    GrammarRule *rules;
    CharRun *runs;
    int32_t n_nodes, n_edges, n_calls, n_rules, n_runs;
    int32_t root;            /* rule */
    bool root_is_optional;   /* the empty text matches */
    uint8_t byte_class[256]; /* bytes of one class are on the same edges */
    uint8_t class_byte[256]; /* one of each class */
    int32_t n_classes;
    size_t n_bytes; /* memory */
} Automaton;

/* Compiles the rules that the root needs. Leaves the Work of the grammar with an error that names the rule where one is
 * left-recursive or nothing matches. Everything lies in that Work. */
Automaton *automaton_build(const ExprGrammar *g);

/* A malloc'ed copy in one block; free() frees it. NULL: no memory. */
Automaton *automaton_copy(const Automaton *a);
/* Likewise, of the texts that contain `after` for the first time where one of `a` begins. With an opening: of the texts of `a`,
 * and of those that begin with the opening, behind which the first `after` comes where one of `a` begins. */
Automaton *automaton_after(const Automaton *a, const char *opening, size_t n_opening, const char *after,
                           size_t n_after);

/* Sets what follows from nodes and edges: the classes of bytes. */
void automaton_set_classes(Automaton *a);

#endif

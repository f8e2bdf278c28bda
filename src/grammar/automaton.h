/* automaton.h - a compiled grammar: for each rule an automaton over bytes, whose edges may also call rules.
 *
 *     root ::= "[" item ("," item)* "]"        0 --[--> 1 ==item==> 2 --,--> 1
 *     item ::= [0-9]+ | root                                        2 --]--> end
 *
 * A node has edges, which read one byte, and calls, which run the automaton of a rule and continue at `to` when it
 * ends; a counted call runs the rule min to max times. There are no empty moves: a node has all edges and calls that it
 * could reach by them. So a rule never ends where it begins (a rule that matches the empty text can also be skipped
 * where it is called), and no rule calls itself before it has read a byte. Every node can reach the end of its rule.
 *
 * An automaton does not change after automaton_build. */
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
    int32_t min, max; /* how often a counted call runs its rule; max may be EXPR_UNBOUNDED; max 0: an ordinary call */
} GrammarCall;

/* A set of characters that a node can read repeatedly. The characters from U+0080 on are in it all together or not
 * at all. */
typedef struct CharRun {
    uint64_t ascii[2];
    bool non_ascii; /* every character from U+0080 on is in the set */
} CharRun;

typedef struct GrammarNode {
    int32_t first_edge, n_edges, first_call, n_calls;
    bool is_end;         /* its rule may end here */
    bool is_free;        /* the node is in text that the grammar leaves free: any token may come */
    bool reads_controls; /* control tokens are read here by their spelling, as in free text and in marks */
    /* Each is the index of a CharRun, or -1. The characters of `loop` can be read any number of times. Those of
     * `once` lead to the end of the rule, so a counted call reads them as often as it may run the rule. */
    int32_t loop, once;
} GrammarNode;

typedef struct GrammarRule {
    int32_t start; /* node */
    int32_t rank;  /* a rule that calls another one before it reads a byte has a smaller rank than that one */
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
    uint8_t byte_class[256]; /* all bytes of a class are on the same edges */
    uint8_t class_byte[256]; /* one byte of each class */
    int32_t n_classes;
    size_t n_bytes; /* memory */
} Automaton;

/* Compiles the rules that the root needs, into memory of the grammar's Work. Leaves that Work with an error where
 * nothing matches, where a rule is left-recursive (the error names it), and where a limit is exceeded. */
Automaton *automaton_build(const ExprGrammar *g);

/* Finds the runs of all nodes; the last step of automaton_build (automaton_runs.c). */
void automaton_find_runs(Automaton *a, Work *w);

/* Returns a malloc'ed copy in one block, which free() frees. NULL: no memory. */
Automaton *automaton_copy(const Automaton *a);

/* Likewise, an automaton for longer texts: one of these is any text in which `after` occurs for the first time where
 * a text of `a` begins. With an opening, it is either a text of `a`, or one that begins with the opening, continues
 * to the first `after`, and ends with a text of `a`. */
Automaton *automaton_after(const Automaton *a, const char *opening, size_t n_opening, const char *after,
                           size_t n_after);

/* Finds the classes of bytes, which depend on the edges only. */
void automaton_set_classes(Automaton *a);

/* Finds the first occurrence of a text, byte by byte (Knuth, Morris and Pratt 1977). The state is the number of
 * bytes of the text that the bytes read so far end with; in state n the text has come. */
typedef struct TextMatcher {
    const char *text; /* [n] borrowed */
    int32_t n;
    int32_t *border; /* [n + 1] borrowed; of the first k bytes, the longest proper beginning that is also their end */
} TextMatcher;

void text_matcher_init(TextMatcher *m, const char *text, int32_t n, int32_t *border); /* n > 0 */
/* Returns the state after one more byte, from a state below n. */
int32_t text_matcher_next(const TextMatcher *m, int32_t state, uint8_t byte);

#endif

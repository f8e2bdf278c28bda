/* ngram_rules.h - the two rules of ngram-trie, which decide which continuations of the text's end become a tree.
 *
 * Both work on lists of places, that is, positions in the indexed text. A tree node stands for the places at which
 * its path occurs; splitting that list by the token that follows gives the node's children. The trie of the paper is
 * thus read off the text node by node, and never built.
 */
#ifndef TEXT_NGRAM_RULES_H
#define TEXT_NGRAM_RULES_H

#include "draft/text/ngram_text.h"
#include "tree/tree.h"

typedef struct NgramPlace {
    int32_t at;    /* position of the node's token */
    int32_t match; /* how many tokens up to it equal the node's path and the text before the path */
    double vote;   /* rule best: its weight for the token after it */
} NgramPlace;

typedef struct NgramGroup { /* places that continue with the same token */
    int32_t token;
    int32_t begin, n; /* in s->places */
} NgramGroup;

typedef struct NgramCandidate { /* a node that may still enter the tree */
    double score;
    int64_t tie; /* of equal scores the smaller one comes first */
    int32_t parent, token;
    int32_t begin, n; /* its places */
    int32_t rank;     /* rule best: the rank of a guess among the text's top tokens; -1: no guess, it has places */
    double p_accept;
} NgramCandidate;

/* Working memory of one drafter, shared by its sequences. */
typedef struct NgramScratch {
    int32_t n_vocab;
    int32_t *group_of; /* [n_vocab] the group of a token while a list is split; -1 otherwise */
    NgramPlace *places, *sorted;
    NgramGroup *groups;
    int32_t places_capacity, n_places;
    NgramCandidate *heap;
    int32_t heap_capacity, n_heap;
} NgramScratch;

int ngram_scratch_open(NgramScratch *s, int32_t n_vocab, fr_error *err);
void ngram_scratch_close(NgramScratch *s);
/* Makes room for `n` more places; false: no memory. */
bool ngram_scratch_reserve(NgramScratch *s, int64_t n);

/* Advances the places [begin, begin + n) by one token, dropping those at the end of the indexed text, and sorts them
 * by that token; `match` grows by one up to max_match. Groups come in the order of their first place in the list and
 * keep the order of places. Returns the number of groups in s->groups. */
int32_t ngram_split(NgramScratch *s, const NgramText *t, int32_t begin, int32_t n, int32_t max_match);

bool ngram_heap_push(NgramScratch *s, NgramCandidate c); /* false: no memory */
NgramCandidate ngram_heap_pop(NgramScratch *s);          /* n_heap > 0 */

enum { NGRAM_RULE_BEST, NGRAM_RULE_PAPER };

typedef struct NgramOptions { /* of ngram-trie */
    int rule;                 /* NGRAM_RULE_BEST, NGRAM_RULE_PAPER */
    int32_t n, prefix;        /* rule paper: window and longest prefix */
    bool live;                /* also drafts from generated tokens */
} NgramOptions;

/* Both add at most `budget` nodes below node 0, whose token is the last of the text. */
int ngram_rule_paper(NgramScratch *s, const NgramText *t, const NgramOptions *o, int32_t source, int32_t budget,
                     Tree *tree, fr_error *err);
int ngram_rule_best(NgramScratch *s, const NgramText *t, int32_t source, int32_t budget, Tree *tree, fr_error *err);

#endif

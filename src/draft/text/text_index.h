/* text_index.h - how drafters store text so that parts of it are found again: the text of a sequence with chains of
 * equal tokens, a trie of strings with counts, a pool of the latest n-grams, and lists of places in an indexed text. */
#ifndef DRAFT_TEXT_TEXT_INDEX_H
#define DRAFT_TEXT_TEXT_INDEX_H

#include "base/error.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- the text of a sequence ------------------------------------------------------------------------------ */

/* The text is indexed so that the positions of a token are found at once.
 *
 *   position   0    1    2    3    4    5           entry of "a": last = 4, n_contexts = 2
 *   tokens     a    b    c    b    a    b           (its left neighbours: the start of the text, and b)
 *   previous  -1   -1   -1    1    0    3           positions of "b": 5, 3, 1
 *
 * `previous` links the positions of equal tokens from the latest backwards; the head of each chain and a count are in
 * a hash table of the distinct tokens. Appending takes constant time. */
enum { NGRAM_N_TOP = 32 };

typedef struct NgramEntry {
    int32_t token;      /* -1: free slot */
    int32_t last;       /* its latest indexed position */
    int32_t n_contexts; /* positions at which its left neighbour differs from that at its previous position */
} NgramEntry;

typedef struct NgramText {
    int32_t *tokens, *previous; /* [capacity] */
    int32_t n, capacity;
    int32_t n_indexed; /* positions below it are in the chains */
    int32_t n_prompt;  /* tokens of the prompt, set by the owner; the rest was generated */
    NgramEntry *table; /* open addressing, at most half full */
    int32_t n_entries, n_slots;
    HashKey key;                 /* the key under which tokens are hashed; set with the first slots */
    int64_t n_contexts;          /* the sum over all entries */
    NgramEntry top[NGRAM_N_TOP]; /* the tokens with the most contexts; ties go to the one counted last. `last` is
                                  * not kept up to date here */
    int32_t n_top;
} NgramText;

/* A new text is a zeroed struct. ngram_text_reserve allocates memory for n tokens at once, so that appending them
 * allocates nothing. */
int ngram_text_reserve(NgramText *t, int64_t n, int32_t n_vocab, fr_error *err);
/* Appends tokens, which must be in [0, n_vocab). With `indexed` they enter the chains, and all earlier tokens must have
 * entered the chains before. After a failure the text is unchanged, or a part of the tokens was appended. */
int ngram_text_append(NgramText *t, const int32_t *tokens, int64_t n, int32_t n_vocab, bool indexed, fr_error *err);
/* Writes to the reserved memory, so that the process does not grow later, when it is used. */
void ngram_text_touch(NgramText *t);
/* Drops all but the last `keep` tokens and indexes these again, in the memory that the text has. */
void ngram_text_keep_last(NgramText *t, int32_t keep);
void ngram_text_free(NgramText *t); /* back to the zero state */
size_t ngram_text_bytes(const NgramText *t);

/* Returns the latest indexed position of a token, or -1. t->previous[position] is its position before that. */
int32_t ngram_text_last(const NgramText *t, int32_t token);
/* Returns the token's share of all contexts, which estimates its probability if nothing else is known (Kneser-Ney). */
double ngram_text_share(const NgramText *t, int32_t token);
/* Returns how many tokens up to and including `place` equal the end of the text, at most max. */
int32_t ngram_text_match(const NgramText *t, int32_t place, int32_t max);

/* ---- a trie with counts ---------------------------------------------------------------------------------- */

/* A bounded trie of token strings with counts. When it is full, it forgets what is rare.
 *
 * Node 0 is the root. Nodes are stored in an array, parents before children, at 20 bytes each, and take 8 to 16 bytes
 * more in a hash table of (parent, token), which finds a child in constant time however many siblings it has.
 *
 *   strings "a b", "a b", "a c"      node    1  2  3
 *                                    token   a  b  c
 *                                    parent  0  1  1
 *                                    count   3  2  1
 */
typedef struct CountNode {
    int32_t token, parent;
    int32_t count; /* strings that pass through it; never above the parent's, except below the root */
    int32_t first_child, next_sibling; /* 0: none; the newest child comes first */
} CountNode;

typedef struct CountTrie {
    CountNode *nodes;
    int32_t n, capacity, max; /* max: the limit of nodes */
    int32_t *slots;           /* open addressing, at most half full; 0: free */
    int32_t n_slots;
    HashKey key; /* the key under which (parent, token) is hashed */
} CountTrie;

/* Makes an empty trie, which has only the root. Memory grows with use up to `max` nodes. */
int count_trie_open(CountTrie *t, int32_t max, fr_error *err);
/* Takes and writes to the memory of all `max` nodes now, so that the process does not grow, or wait for memory,
 * later. */
int count_trie_take_all(CountTrie *t, fr_error *err);
void count_trie_free(CountTrie *t);
void count_trie_clear(CountTrie *t); /* leaves only the root, and keeps the memory */

/* Returns the child of a node, or 0. */
int32_t count_trie_child(const CountTrie *t, int32_t parent, int32_t token);
/* Counts a child once more, creating it if necessary (count_trie_reserve must have made room); returns it. */
int32_t count_trie_touch(CountTrie *t, int32_t parent, int32_t token);

/* Makes room for n more nodes, n <= max / 4. When the trie is full, strings counted once are dropped and all other
 * counts halved, until a quarter is free. `cursors` are nodes that the caller holds (-1: none): each is changed to
 * the new index of its node, or to -1 if the node was dropped. False: no memory; the trie is unchanged. */
bool count_trie_reserve(CountTrie *t, int32_t n, int32_t *cursors, int64_t n_cursors);

/* ---- a pool of n-grams ----------------------------------------------------------------------------------- */

/* A pool of fixed size holds the latest n-grams, which are looked up by their first token.
 *
 * The pool is a ring of n-grams; each points to the previous one with the same hash of the first token. A chain ends
 * at the first n-gram that the ring has overwritten, so that nothing is ever deleted. The memory is fixed. */
typedef struct PoolGram {
    int32_t key, n;        /* first token; number of tokens after it, 1 to `longest` */
    const int32_t *tokens; /* [n], valid until the next ngram_pool_add */
} PoolGram;

typedef struct NgramPool {
    int32_t capacity, longest; /* the n-grams that the ring holds; the most tokens after the first one of an n-gram */
    int64_t n_added;
    int32_t *tokens;         /* [capacity][longest] */
    int32_t *keys, *lengths; /* [capacity] */
    int64_t *before;         /* [capacity] number of the previous n-gram of its chain, or -1 */
    int64_t *heads;          /* [capacity] for each hash of a key, the number of the latest n-gram, or -1 */
} NgramPool;

/* capacity: a power of two. After a failure ngram_pool_close is safe. */
int ngram_pool_open(NgramPool *p, int32_t capacity, int32_t longest, fr_error *err);
void ngram_pool_close(NgramPool *p);
void ngram_pool_clear(NgramPool *p);

/* Adds an n-gram, 1 <= n <= longest. If the pool is full, it replaces the oldest one. */
void ngram_pool_add(NgramPool *p, int32_t key, const int32_t *tokens, int32_t n);

/* Writes the latest n-grams with this key to out, the latest first, at most `max`, and returns how many. One that
 * equals an n-gram already found, or is a prefix of it, is left out. Visits at most the POOL_MAX_VISITS latest of the
 * chain. */
enum { POOL_MAX_VISITS = 128 };
int32_t ngram_pool_find(const NgramPool *p, int32_t key, int32_t max, PoolGram *out);

/* ---- lists of places --------------------------------------------------------------------------------- */

/* A node of a tree has the list of places at which its path occurs in an indexed text. Splitting this list by the token
 * that follows gives the node's children. A heap holds the nodes that may still enter the tree. */
typedef struct NgramPlace {
    int32_t at;    /* position of the node's token */
    int32_t match; /* how many tokens up to it equal the node's path and the text before the path */
    double vote;   /* rule=best: its weight for the token after it */
} NgramPlace;

/* Places that continue with the same token. */
typedef struct NgramGroup {
    int32_t token;
    int32_t begin, n; /* where they are in NgramScratch.places */
} NgramGroup;

/* A node that may still enter the tree. */
typedef struct NgramCandidate {
    double score;
    int64_t tie; /* candidates of equal scores come in ascending order of this number */
    int32_t parent, token;
    int32_t begin, n; /* where its places are in NgramScratch.places */
    int32_t rank;     /* rule=best: the rank of a guess among the text's top tokens; -1: not a guess, has places */
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
/* Makes room for n more places; false: no memory. */
bool ngram_scratch_reserve(NgramScratch *s, int64_t n);
/* Advances the places [begin, begin + n) by one token, dropping those at the end of the indexed text, and sorts them
 * by that token; `match` grows by one up to max_match. Groups come in the order of their first place in the list and
 * keep the order of places. Returns the number of groups in s->groups. */
int32_t ngram_split(NgramScratch *s, const NgramText *t, int32_t begin, int32_t n, int32_t max_match);
bool ngram_heap_push(NgramScratch *s, NgramCandidate c); /* false: no memory */
NgramCandidate ngram_heap_pop(NgramScratch *s);          /* takes out the best one; the heap must not be empty */

#endif

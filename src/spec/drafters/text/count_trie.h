/* count_trie.h - a trie of token strings with counts, bounded, that forgets what is rare when it is full.
 *
 * Node 0 is the root. Nodes stand in an array, parents before children, 20 bytes each and 8 to 16 in a hash
 * table of (parent, token), which finds a child at once however many siblings it has.
 *
 *   strings "a b", "a b", "a c"      node    1  2  3
 *                                    token   a  b  c
 *                                    parent  0  1  1
 *                                    count   3  2  1
 */
#ifndef TEXT_COUNT_TRIE_H
#define TEXT_COUNT_TRIE_H

#include "base/error.h"

#include <stdbool.h>

typedef struct CountNode {
    int32_t token, parent;
    int32_t count;                     /* of strings that pass; never above the parent's, root excepted */
    int32_t first_child, next_sibling; /* 0: none; the child made last first */
} CountNode;

typedef struct CountTrie {
    CountNode *nodes;
    int32_t n, capacity, max; /* max: nodes at most */
    int32_t *slots;           /* open addressing, at most half full; 0: free */
    int32_t n_slots;
} CountTrie;

/* Empty: the root alone. Memory grows with use up to `max` nodes. */
int count_trie_open(CountTrie *t, int32_t max, fr_error *err);
void count_trie_free(CountTrie *t);
void count_trie_clear(CountTrie *t); /* the root alone; memory is kept */

/* The child of a node, or 0. */
int32_t count_trie_child(const CountTrie *t, int32_t parent, int32_t token);
/* The child with its count one higher, made where it is not there; needs room. */
int32_t count_trie_touch(CountTrie *t, int32_t parent, int32_t token);

/* Makes room for n more nodes, n <= max / 4. When the trie is full, strings counted once are dropped and all
 * other counts halved, until a quarter is free. `cursors` are nodes the caller holds (-1: none): each is
 * moved to where its node went, or becomes -1 where it was dropped. False: no memory; the trie is as it was.
 */
bool count_trie_reserve(CountTrie *t, int32_t n, int32_t *cursors, int64_t n_cursors);

#endif

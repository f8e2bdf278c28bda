/* count_trie.h - a bounded trie of token strings with counts, which forgets what is rare when it is full.
 *
 * Node 0 is the root. Nodes are stored in an array, parents before children, at 20 bytes each, and take 8 to 16 bytes
 * more in a hash table of (parent, token), which finds a child in constant time however many siblings it has.
 *
 *   strings "a b", "a b", "a c"      node    1  2  3
 *                                    token   a  b  c
 *                                    parent  0  1  1
 *                                    count   3  2  1
 */
#ifndef TEXT_COUNT_TRIE_H
#define TEXT_COUNT_TRIE_H

#include "base/error.h"
#include "base/hash.h"

#include <stdbool.h>

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
    HashKey key; /* of the hashes of (parent, token) */
} CountTrie;

/* Makes an empty trie: the root alone. Memory grows with use up to `max` nodes. */
int count_trie_open(CountTrie *t, int32_t max, fr_error *err);
/* Takes and touches the memory of all `max` nodes now, so that the process does not grow later, nor wait while it does. */
int count_trie_take_all(CountTrie *t, fr_error *err);
void count_trie_free(CountTrie *t);
void count_trie_clear(CountTrie *t); /* leaves the root alone and keeps the memory */

/* The child of a node, or 0. */
int32_t count_trie_child(const CountTrie *t, int32_t parent, int32_t token);
/* Counts a child once more, creating it if necessary (count_trie_reserve must have made room); returns it. */
int32_t count_trie_touch(CountTrie *t, int32_t parent, int32_t token);

/* Makes room for n more nodes, n <= max / 4. When the trie is full, strings counted once are dropped and all other
 * counts halved, until a quarter is free. `cursors` are nodes that the caller holds (-1: none): each is changed to
 * the new index of its node, or to -1 if the node was dropped. False: no memory; the trie is unchanged. */
bool count_trie_reserve(CountTrie *t, int32_t n, int32_t *cursors, int64_t n_cursors);

#endif

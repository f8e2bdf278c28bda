/* count_trie.c - a bounded trie of token strings with counts; count_trie.h describes the layout.
 *
 * Forgetting (decay) compacts the array in place: it needs no memory, so a full trie can always make room. The hash
 * table and the lists of children are rebuilt afterwards. */
#include "draft/text/count_trie.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_CAPACITY = 1024 };

/* The slot of (parent, token), or the free slot where it belongs. */
static int32_t slot_of(const CountTrie *t, int32_t parent, int32_t token) {
    uint32_t mask = (uint32_t)t->n_slots - 1;
    for (uint32_t i = (uint32_t)(keyed_hash_pair(&t->key, parent, token) >> 32);; i++) {
        int32_t node = t->slots[i & mask];
        if (node == 0 || (t->nodes[node].parent == parent && t->nodes[node].token == token)) return (int32_t)(i & mask);
    }
}

/* Enters the nodes into a cleared table and links them as children. */
static void link_all(CountTrie *t) {
    memset(t->slots, 0, (size_t)t->n_slots * sizeof *t->slots);
    for (int32_t i = 0; i < t->n; i++) t->nodes[i].first_child = 0;
    for (int32_t i = 1; i < t->n; i++) {
        CountNode *node = &t->nodes[i];
        t->slots[slot_of(t, node->parent, node->token)] = i;
        node->next_sibling = t->nodes[node->parent].first_child;
        t->nodes[node->parent].first_child = i;
    }
}

static bool grow(CountTrie *t, int32_t capacity) {
    int32_t n_slots = t->n_slots ? t->n_slots : 2 * MIN_CAPACITY;
    while (n_slots < 2 * capacity) n_slots *= 2;
    CountNode *nodes = realloc(t->nodes, (size_t)capacity * sizeof *nodes);
    if (nodes) t->nodes = nodes;
    if (!nodes) return false;
    if (n_slots > t->n_slots) {
        int32_t *slots = malloc((size_t)n_slots * sizeof *slots);
        if (!slots) return false;
        free(t->slots);
        t->slots = slots;
        t->n_slots = n_slots;
        link_all(t);
    }
    t->capacity = capacity;
    return true;
}

int count_trie_open(CountTrie *t, int32_t max, fr_error *err) {
    fr_assert(max > 0 && max <= INT32_MAX / 8);
    *t = (CountTrie){.max = max, .key = hash_key_new()};
    if (!grow(t, max < MIN_CAPACITY ? max : MIN_CAPACITY)) {
        count_trie_free(t);
        return error_memory(err, "a trie", MIN_CAPACITY * sizeof *t->nodes);
    }
    count_trie_clear(t);
    return FR_OK;
}

int count_trie_take_all(CountTrie *t, fr_error *err) {
    if (t->capacity < t->max && !grow(t, t->max)) return error_memory(err, "a trie", (size_t)t->max * sizeof *t->nodes);
    memset(t->nodes + t->n, 0, (size_t)(t->max - t->n) * sizeof *t->nodes);
    return FR_OK;
}

void count_trie_free(CountTrie *t) {
    free(t->nodes);
    free(t->slots);
    *t = (CountTrie){.n = 0};
}

void count_trie_clear(CountTrie *t) {
    t->n = 1;
    t->nodes[0] = (CountNode){.token = -1, .parent = -1};
    link_all(t);
}

int32_t count_trie_child(const CountTrie *t, int32_t parent, int32_t token) {
    return t->slots[slot_of(t, parent, token)];
}

int32_t count_trie_touch(CountTrie *t, int32_t parent, int32_t token) {
    int32_t slot = slot_of(t, parent, token), i = t->slots[slot];
    if (i == 0) {
        fr_assert(t->n < t->capacity);
        i = t->slots[slot] = t->n++;
        t->nodes[i] = (CountNode){.token = token, .parent = parent, .next_sibling = t->nodes[parent].first_child};
        t->nodes[parent].first_child = i;
    }
    if (t->nodes[i].count < INT32_MAX) t->nodes[i].count++;
    return i;
}

/* Drops the nodes counted once and halves the other counts. A child is never counted more often than its parent, so
 * what remains is a trie; parents come first, so the parent's new index is known when a child moves. Meanwhile the
 * new index of a node is kept in first_child of its old slot, since the links are rebuilt afterwards: no memory is
 * needed. */
static void decay(CountTrie *t, int32_t *cursors, int64_t n_cursors) {
    int32_t n = 1;
    CountNode *nodes = t->nodes;
    nodes[0].first_child = 0;
    for (int32_t i = 1; i < t->n; i++) {
        CountNode node = nodes[i];
        nodes[i].first_child = node.count > 1 ? n : -1;
        if (node.count <= 1) continue;
        nodes[n].token = node.token;
        nodes[n].parent = nodes[node.parent].first_child;
        nodes[n++].count = node.count / 2;
    }
    for (int64_t i = 0; i < n_cursors; i++)
        if (cursors[i] >= 0) cursors[i] = nodes[cursors[i]].first_child;
    t->n = n;
}

bool count_trie_reserve(CountTrie *t, int32_t n, int32_t *cursors, int64_t n_cursors) {
    if (t->n + n <= t->capacity) return true;
    if (t->n + n <= t->max) {
        int32_t capacity = t->capacity < t->max / 2 ? 2 * t->capacity : t->max;
        return grow(t, capacity < t->n + n ? t->n + n : capacity);
    }
    while (t->n > t->max - t->max / 4) decay(t, cursors, n_cursors);
    link_all(t);
    return true;
}

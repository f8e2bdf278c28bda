/* pair_merge.c - the core of byte-pair encoding: neighbours are merged, the best pair first, until no pair is left.
 *
 * The problem. A text starts as a row of small symbols (characters or bytes). A vocabulary defines which pairs of
 * neighbours may become one symbol, and with which priority: SentencePiece by the score of the resulting piece, GPT-2
 * by the rank of the pair. The best pair of the whole row is merged, and of equal pairs the leftmost. The result forms
 * new pairs with its neighbours. Searching the row for the best pair before each merge takes O(n^2) time, which is far
 * too slow for a text of 200 KB without a space.
 *
 * The idea. The row is a doubly linked list in an array, so a merge is four stores; pairs wait in a binary
 * heap. A merge does not search for the waiting pairs that it makes invalid. They are recognised when they
 * are popped: a candidate stores the number of bytes that both sides had together. Sides only grow, so it is valid if
 * and only if its left side still exists, its right side follows the left, and their bytes add up to the same number.
 *
 * Papers: Gage 1994 (pair replacement), Sennrich, Haddow and Birch 2016 (arXiv 1508.07909, algorithm 1:
 * merges in the order learned), Kudo and Richardson 2018 (arXiv 1808.06226, section 3.1: the heap, O(n log
 * n)).
 *
 * Layout. The heap key is one number, priority << 32 | index of the left symbol, so "best, then leftmost" is
 * one comparison. A merged symbol keeps the index of its left part.
 *
 *     symbols  [0] h  <->  [1] u  <->  [2] g      heap  (rank 1, left 1) u+g   (rank 7, left 0) h+u
 *     pop u+g: [0] h  <->  [1] ug                 heap  (rank 7, left 0) h+u   (rank 4, left 0) h+ug
 *     pop h+ug: [0] hug                           heap  (rank 7, left 0) h+u, stale: 2 bytes, now 3
 *
 * Invariants. symbols[0] is never merged into another; the spans of the remaining symbols tile the text; each merge
 * adds at most two candidates, so at most 3n are ever pushed.
 *
 * Cost. O(n log n) time and 20 n + 24 n bytes. The plain O(n^2) search is slightly faster for words of a few letters,
 * which is not worth a second implementation.
 *
 * Proof. tests/text/test_tokenizer.c compares it with the plain search on random rows, and times 200 KB. */
#include "text/encoder.h"
#include "text/utf8.h"

#include <stdlib.h>

void merger_clear(Merger *m) { m->n_symbols = m->n_heap = 0; }

void merger_close(Merger *m) {
    free(m->symbols);
    free(m->heap);
    *m = (Merger){0};
}

/* Makes room for one more element of `bytes_each`; a full array is doubled. */
static bool make_room(void **array, size_t n, size_t *capacity, size_t bytes_each) {
    if (n < *capacity) return true;
    size_t wanted = *capacity ? 2 * *capacity : 64;
    void *bigger = realloc(*array, wanted * bytes_each);
    if (!bigger) return false;
    *array = bigger;
    *capacity = wanted;
    return true;
}

bool merger_add(Merger *m, uint32_t at, uint32_t n, int32_t id) {
    void *array = m->symbols;
    bool fits = make_room(&array, m->n_symbols, &m->symbols_capacity, sizeof *m->symbols);
    m->symbols = array;
    if (!fits) return false;
    int32_t i = (int32_t)m->n_symbols++;
    m->symbols[i] = (MergeSymbol){at, n, i - 1, -1, id};
    if (i > 0) m->symbols[i - 1].next = i;
    return true;
}

bool merger_add_characters(Merger *m, const Vocab *v, const char *text, size_t at, size_t end) {
    merger_clear(m);
    for (size_t n; at < end; at += n) {
        size_t need, got = utf8_scan(text + at, end - at, &need);
        n = need > 0 && got == need ? need : 1;
        if (!merger_add(m, (uint32_t)at, (uint32_t)n, hash_table_find(&v->by_text, text + at, n))) return false;
    }
    return true;
}

static bool push(Merger *m, MergeCandidate c) {
    void *array = m->heap;
    bool fits = make_room(&array, m->n_heap, &m->heap_capacity, sizeof *m->heap);
    m->heap = array;
    if (!fits) return false;
    size_t i = m->n_heap++;
    for (; i > 0 && m->heap[(i - 1) / 2].key > c.key; i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = c;
    return true;
}

static MergeCandidate pop(Merger *m) {
    MergeCandidate top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0, n = m->n_heap;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && m->heap[child + 1].key < m->heap[child].key) child++;
        if (last.key <= m->heap[child].key) break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return top;
}

/* Pushes the pair of `left` and the symbol after it, if they may be merged. */
static bool propose(Merger *m, const char *text, int32_t left, MergePairFn pair, const void *ctx) {
    if (left < 0 || m->symbols[left].next < 0) return true;
    const MergeSymbol *l = &m->symbols[left], *r = &m->symbols[l->next];
    uint32_t priority;
    int32_t result;
    if (!pair(ctx, text, l, r, &priority, &result)) return true;
    return push(m, (MergeCandidate){(uint64_t)priority << 32 | (uint32_t)left, l->next, result, l->n + r->n});
}

bool merger_run(Merger *m, const char *text, MergePairFn pair, const void *ctx) {
    m->n_heap = 0;
    for (int32_t i = 0; i + 1 < (int32_t)m->n_symbols; i++)
        if (!propose(m, text, i, pair, ctx)) return false;
    while (m->n_heap > 0) {
        MergeCandidate c = pop(m);
        int32_t left = (int32_t)(c.key & UINT32_MAX);
        MergeSymbol *l = &m->symbols[left], *r = &m->symbols[c.right];
        if (l->n == 0 || l->next != c.right || l->n + r->n != c.n) continue;
        l->n = c.n;
        l->id = c.result;
        l->next = r->next;
        if (l->next >= 0) m->symbols[l->next].prev = left;
        r->n = 0;
        if (!propose(m, text, l->prev, pair, ctx) || !propose(m, text, left, pair, ctx)) return false;
    }
    return true;
}

/* pair_merge.h - greedy merging of neighbours, which both kinds of BPE consist of (essay in pair_merge.c). */
#ifndef TEXT_PAIR_MERGE_H
#define TEXT_PAIR_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A span text[at..at+n) of the text that is being merged; n = 0: it was merged into its left neighbour. */
typedef struct MergeSymbol {
    uint32_t at, n;
    int32_t prev, next; /* indices; -1: none */
    int32_t id;         /* given by the caller; -1: none */
} MergeSymbol;

typedef struct MergeCandidate {
    uint64_t key; /* priority << 32 | left: the smallest goes first */
    int32_t right, result;
    uint32_t n; /* bytes of both together: the candidate is stale when they no longer add up */
} MergeCandidate;

/* Scratch for one thread, reused from word to word. Zero-initialise; after merger_run the result is the list
 * from symbols[0] along next. */
typedef struct Merger {
    MergeSymbol *symbols;
    MergeCandidate *heap;
    size_t n_symbols, symbols_capacity;
    size_t n_heap, heap_capacity;
} Merger;

/* Whether the neighbours left and right (left.at + left.n == right.at) may be merged. If so, sets *priority (the
 * smallest is merged first) and *result, the id of the merged symbol. */
typedef bool (*MergePairFn)(const void *ctx, const char *text, const MergeSymbol *left, const MergeSymbol *right,
                            uint32_t *priority, int32_t *result);

void merger_clear(Merger *m);
bool merger_add(Merger *m, uint32_t at, uint32_t n, int32_t id); /* appends a symbol; false: no memory */
bool merger_run(Merger *m, const char *text, MergePairFn pair, const void *ctx); /* false: no memory */
void merger_close(Merger *m);

#endif

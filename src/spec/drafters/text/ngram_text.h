/* ngram_text.h - the text of one sequence, so kept that the places of a token are found at once.
 *
 *   position   0    1    2    3    4    5           entry of "a": last = 4, n_contexts = 2
 *   tokens     a    b    c    b    a    b           (its left neighbours: the start, b)
 *   previous  -1   -1   -1    1    0    3           places of "b": 5, 3, 1
 *
 * `previous` chains the places of equal tokens from the latest backwards; the head of each chain and a
 * count stand in a hash table of the distinct tokens. Appending is O(1).
 */
#ifndef TEXT_NGRAM_TEXT_H
#define TEXT_NGRAM_TEXT_H

#include "base/error.h"

#include <stdbool.h>

enum { NGRAM_N_TOP = 32 };

typedef struct NgramEntry {
    int32_t token;      /* -1: free slot */
    int32_t last;       /* its latest indexed place */
    int32_t n_contexts; /* places where its left neighbour differs from that of its place before */
} NgramEntry;

typedef struct NgramText {
    int32_t *tokens, *previous; /* [capacity] */
    int32_t n, capacity;
    int32_t n_indexed; /* places below it are in the chains */
    int32_t n_prompt;  /* tokens of the prompt, the rest was generated; set by the owner */
    NgramEntry *table; /* open addressing, at most half full */
    int32_t n_entries, n_slots;
    int64_t n_contexts;          /* over all entries */
    NgramEntry top[NGRAM_N_TOP]; /* the tokens of most contexts, of equals the one counted last first; `last`
                                    is not kept */
    int32_t n_top;
} NgramText;

/* Zero-initialise; appending takes tokens in [0, n_vocab). With `indexed` they enter the chains, which
 * must have been so for all tokens before. On failure the text is as it was or a part was appended. */
/* Takes the memory of n tokens at once, so that appending them allocates nothing. */
int ngram_text_reserve(NgramText *t, int64_t n, int32_t n_vocab, fr_error *err);
int ngram_text_append(NgramText *t, const int32_t *tokens, int64_t n, int32_t n_vocab, bool indexed,
                      fr_error *err);
void ngram_text_free(NgramText *t); /* back to the zero state */
size_t ngram_text_bytes(const NgramText *t);

/* The latest indexed place of a token, or -1; t->previous[place] leads on. */
int32_t ngram_text_last(const NgramText *t, int32_t token);
/* The share of the token in all contexts: how likely it is where nothing else is known (Kneser-Ney). */
double ngram_text_share(const NgramText *t, int32_t token);
/* How many tokens before and at `place` equal the end of the text, at most max. */
int32_t ngram_text_match(const NgramText *t, int32_t place, int32_t max);

#endif

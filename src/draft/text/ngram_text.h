/* ngram_text.h - the text of one sequence, indexed so that the positions of a token are found at once.
 *
 *   position   0    1    2    3    4    5           entry of "a": last = 4, n_contexts = 2
 *   tokens     a    b    c    b    a    b           (its left neighbours: the start of the text, and b)
 *   previous  -1   -1   -1    1    0    3           positions of "b": 5, 3, 1
 *
 * `previous` links the positions of equal tokens from the latest backwards; the head of each chain and a count are in
 * a hash table of the distinct tokens. Appending is O(1).
 */
#ifndef TEXT_NGRAM_TEXT_H
#define TEXT_NGRAM_TEXT_H

#include "base/error.h"
#include "base/hash.h"

#include <stdbool.h>

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
    int32_t n_prompt;  /* tokens of the prompt; the rest was generated. Set by the owner */
    NgramEntry *table; /* open addressing, at most half full */
    int32_t n_entries, n_slots;
    HashKey key;                 /* of the tokens' hashes; set with the first slots */
    int64_t n_contexts;          /* over all entries */
    NgramEntry top[NGRAM_N_TOP]; /* the tokens with the most contexts, of equals the one counted last first; `last` is not
                                  * kept up to date here */
    int32_t n_top;
} NgramText;

/* A text starts zero-initialised. ngram_text_reserve allocates memory for n tokens at once, so that appending them
 * allocates nothing. */
int ngram_text_reserve(NgramText *t, int64_t n, int32_t n_vocab, fr_error *err);
/* Appends tokens, which must be in [0, n_vocab). With `indexed` they enter the chains; all earlier tokens must have
 * entered them, too. After a failure the text is unchanged, or a part was appended. */
int ngram_text_append(NgramText *t, const int32_t *tokens, int64_t n, int32_t n_vocab, bool indexed, fr_error *err);
/* Touches the memory that is reserved, so that the process does not grow when it is used. */
void ngram_text_touch(NgramText *t);
/* Drops all but the last `keep` tokens and indexes these again, in the memory that the text has. */
void ngram_text_keep_last(NgramText *t, int32_t keep);
void ngram_text_free(NgramText *t); /* back to the zero state */
size_t ngram_text_bytes(const NgramText *t);

/* The latest indexed position of a token, or -1; t->previous[position] is the one before it. */
int32_t ngram_text_last(const NgramText *t, int32_t token);
/* The token's share of all contexts: its probability if nothing else is known (Kneser-Ney). */
double ngram_text_share(const NgramText *t, int32_t token);
/* How many tokens up to and including `place` equal the end of the text, at most max. */
int32_t ngram_text_match(const NgramText *t, int32_t place, int32_t max);

#endif

/* token_subset.h - the tokens that consist of given characters, and a trie of all others: the middle of a string, once for a
 * model. */
#ifndef GRAMMAR_TOKEN_SUBSET_H
#define GRAMMAR_TOKEN_SUBSET_H

#include "grammar/token_trie.h"

enum { SUBSET_MAX_CHARS = 64 };

/* Tokens of whole characters that are all in a set. */
typedef struct TokenSubset {
    CharRun characters;
    uint64_t *bits; /* [n_words] */
    uint32_t n_tokens;
    int32_t *longest;                        /* [n_tokens] the same tokens, those of most characters first */
    uint32_t n_longer[SUBSET_MAX_CHARS + 1]; /* how many of them have more characters than the index */
    TrieLevel others;                        /* the remaining tokens with a text */
} TokenSubset;

typedef struct TokenSubsets TokenSubsets;

TokenSubsets *token_subsets_new(void); /* NULL: no memory */
void token_subsets_free(TokenSubsets *s);
/* The subset of these characters, made when it is first asked for. NULL: there is none, because most tokens have other
 * characters, or too many sets have been asked for, or memory ran out. For any number of threads. */
const TokenSubset *token_subset_of(const TokenTrie *t, const CharRun *characters);

#endif

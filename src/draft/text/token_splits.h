/* token_splits.h - the ways in which a model may split a known text into tokens, as a tree. */
#ifndef TEXT_TOKEN_SPLITS_H
#define TEXT_TOKEN_SPLITS_H

#include "grammar/token_trie.h"
#include "tree/tree.h"

enum { SPLIT_LENGTHS = 4, SPLIT_MAX_BYTES = 192 };

/* Counts how often the model wrote the token that the tokenizer would write, and how often another one. */
typedef struct SplitCounts {
    double as_tokenizer, otherwise;
    double by_length[SPLIT_LENGTHS]; /* the other ones by their length: 1, 2, 3, and 4 or more bytes */
} SplitCounts;

/* A text that will probably be written next. */
typedef struct KnownText {
    char bytes[SPLIT_MAX_BYTES];
    double chance[SPLIT_MAX_BYTES]; /* the probability that the text follows these bytes up to and including this one */
    size_t n;
} KnownText;

void split_counts_begin(SplitCounts *c);
/* Counts a token of n bytes with which the model wrote the beginning of a known text. */
void split_counts_add(SplitCounts *c, size_t n, bool is_as_tokenizer);

/* Finds the token that the tokenizer writes at byte `at` of the known text; -1 if no token begins there. */
int split_as_tokenizer(const Tokenizer *tokenizer, const KnownText *x, size_t at, int32_t *token, fr_error *err);
/* Adds at most `budget` nodes below node 0, the most probable ones. */
int split_tree(Tree *t, int32_t budget, int32_t source, const TokenTrie *trie, const SplitCounts *c, const KnownText *x,
               fr_error *err);

#endif

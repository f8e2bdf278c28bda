/* token_splits.h - the tokens by which a model may write a text that is known, as a tree. */
#ifndef TEXT_TOKEN_SPLITS_H
#define TEXT_TOKEN_SPLITS_H

#include "grammar/token_trie.h"
#include "tree/tree.h"

enum { SPLIT_LENGTHS = 4, SPLIT_MAX_BYTES = 192 };

/* How often the model wrote the tokenizer's token, and of how many bytes its own choice was otherwise. */
typedef struct SplitCounts {
    double as_tokenizer, otherwise;
    double by_length[SPLIT_LENGTHS]; /* 1, 2, 3, 4 bytes and more */
} SplitCounts;

/* What is known: n bytes, at most SPLIT_MAX_BYTES, and the chance that the text goes on so up to and with each of them. */
typedef struct KnownText {
    char bytes[SPLIT_MAX_BYTES];
    double chance[SPLIT_MAX_BYTES];
    size_t n;
} KnownText;

void split_counts_begin(SplitCounts *c);
/* The model wrote n bytes of a known text with one token. */
void split_counts_add(SplitCounts *c, size_t n, bool is_as_tokenizer);

/* The token that the tokenizer writes at byte `at` of the known text; -1: none that begins there. */
int split_as_tokenizer(const Tokenizer *tokenizer, const KnownText *x, size_t at, int32_t *token, fr_error *err);
/* Adds at most `budget` nodes below node 0, the most probable ones. */
int split_tree(Tree *t, int32_t budget, int32_t source, const TokenTrie *trie, const SplitCounts *c, const KnownText *x,
               fr_error *err);

#endif

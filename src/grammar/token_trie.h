/* token_trie.h - the vocabulary as a trie of bytes, in the order in which a walk visits it. Masks are computed from
 * it. It is made once for a model. */
#ifndef GRAMMAR_TOKEN_TRIE_H
#define GRAMMAR_TOKEN_TRIE_H

#include "grammar/automaton.h"
#include "text/tokenizer.h"

/* A node is the bytes on the path to it. Nodes are in the order of a walk that visits a node before those below it.
 * Tokens are ranked in the same order: those with ranks from first_rank of node i to first_rank of node i + 1 end at
 * node i, and those up to first_rank of node `end` end at it or below it. */
typedef struct TrieNode {
    uint32_t end; /* the first node that comes after those below this one */
    uint32_t first_rank;
    uint32_t branch; /* index of a TrieBranch; 0: few nodes are below */
    uint16_t depth;  /* the number of bytes on the path */
    uint8_t byte;    /* the last of these bytes */
} TrieNode;

/* What the texts below a node consist of. */
typedef struct TrieBranch {
    CharRun characters; /* the union of their characters */
    int32_t max_chars;  /* in one text */
    bool is_whole;      /* all texts are whole characters of UTF-8 */
} TrieBranch;

/* Tokens in the order of their bytes, and the trie over them. */
typedef struct TrieLevel {
    TrieNode *nodes; /* [n_nodes + 1]; the last one ends the ranks */
    uint32_t n_nodes;
    int32_t *ranked; /* [n_ranked] tokens by rank */
    uint32_t n_ranked;
} TrieLevel;

typedef struct TokenTrie {
    const Tokenizer *tokenizer; /* borrowed */
    int32_t n_vocab;            /* tokens of the model, which may be more than those of the tokenizer */
    TrieLevel all;              /* ordinary tokens that have a text */
    TrieBranch *branches;       /* [n_branches]; 0 is unused */
    uint32_t n_branches;
    struct TokenSubsets *subsets; /* made when they are first needed */
    uint64_t *is_text;            /* [n_words] bit i: token i is in `all` */
    uint64_t *is_end;             /* [n_words] bit i: token i ends a text */
    int32_t *controls;            /* [n_controls] control tokens that do not end a text */
    int32_t n_controls, n_ends;
    size_t n_words;
    size_t n_bytes; /* memory */
} TokenTrie;

/* The tokenizer must outlive the trie. */
int token_trie_open(TokenTrie **out, const Tokenizer *tokenizer, int32_t n_vocab, fr_error *err);
void token_trie_close(TokenTrie *t); /* NULL is fine */

enum { SUBSET_MAX_CHARS = 64 };

/* The tokens that consist of characters of a set, and a trie of all others. */
typedef struct TokenSubset {
    CharRun characters;
    uint64_t *bits; /* [n_words] */
    uint32_t n_tokens;
    int32_t *longest;                        /* [n_tokens] the same tokens, those with most characters first */
    uint32_t n_longer[SUBSET_MAX_CHARS + 1]; /* how many of them have more characters than the index */
    TrieLevel others;                        /* the remaining tokens that have a text */
} TokenSubset;

/* Returns the subset of these characters. NULL: there is none, because most tokens have other characters, or too many
 * sets have been asked for, or memory ran out. Called by any number of threads. */
const TokenSubset *token_subset_of(const TokenTrie *t, const CharRun *characters);

#endif

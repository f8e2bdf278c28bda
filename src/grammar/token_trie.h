/* token_trie.h - the vocabulary as a trie of bytes, in the order in which a walk visits it: what masks are read from.
 * Made once for a model, and immutable. */
#ifndef GRAMMAR_TOKEN_TRIE_H
#define GRAMMAR_TOKEN_TRIE_H

#include "grammar/automaton.h"
#include "text/tokenizer.h"

/* A node stands for the bytes of its path. Nodes lie in the order of a walk that visits a node before those below it. */
typedef struct TrieNode {
    uint32_t end;        /* the node behind all those below this one */
    uint32_t first_rank; /* tokens have ranks in this order too: [first_rank of i, first_rank of i + 1) end at node i, and
                          * those up to first_rank of `end` are at or below it */
    uint32_t branch;     /* index of a TrieBranch; 0: few nodes are below */
    uint16_t depth;      /* bytes of the path */
    uint8_t byte;        /* the last of them */
} TrieNode;

/* What the texts below a node consist of. */
typedef struct TrieBranch {
    CharRun characters; /* the union */
    int32_t max_chars;  /* of one text */
    bool is_whole;      /* all are whole characters of UTF-8 */
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
    int32_t n_vocab;            /* of the model, which may have more than the tokenizer */
    TrieLevel all;              /* ordinary tokens with a text */
    TrieBranch *branches;       /* [n_branches]; 0 is unused */
    uint32_t n_branches;
    struct TokenSubsets *subsets; /* token_subset.h */
    uint64_t *is_text;            /* [n_words] bit i: token i is ordinary and has a text */
    uint64_t *is_end;             /* [n_words] likewise: ends a text */
    int32_t *controls;            /* [n_controls] control tokens that do not end a text */
    int32_t n_controls, n_ends;
    size_t n_words;
    size_t n_bytes; /* memory */
} TokenTrie;

/* The tokenizer must outlive the trie. */
int token_trie_open(TokenTrie **out, const Tokenizer *tokenizer, int32_t n_vocab, fr_error *err);
void token_trie_close(TokenTrie *t); /* NULL is fine */

/* Makes the nodes over `ranked`, which is sorted by bytes. False: no memory. */
bool trie_level_make(TrieLevel *l, const Tokenizer *tokenizer);
void trie_level_free(TrieLevel *l);

#endif

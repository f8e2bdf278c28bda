/* draft_ngram_trie.h - drafts from the text itself: what followed, where the same words stood before. */
#ifndef TEXT_DRAFT_NGRAM_TRIE_H
#define TEXT_DRAFT_NGRAM_TRIE_H

#include "spec/drafter/drafter.h"

extern const DrafterClass draft_ngram_trie_class;

/* Bytes held for one sequence; for measurements. */
size_t draft_ngram_trie_bytes(const Drafter *d, int32_t sequence);

#endif

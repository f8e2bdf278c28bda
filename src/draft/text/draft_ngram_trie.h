/* draft_ngram_trie.h - the drafter `ngram-trie`, for tests and measurements that need more than its class. */
#ifndef TEXT_DRAFT_NGRAM_TRIE_H
#define TEXT_DRAFT_NGRAM_TRIE_H

#include "draft/drafter.h"

extern const DrafterClass draft_ngram_trie_class;

/* Bytes held for one sequence. */
size_t draft_ngram_trie_bytes(const Drafter *d, int32_t sequence);

#endif

/* bpe.h - byte-level BPE (tokenizer.ggml.model = "gpt2"). */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "base/hash.h"
#include "text/encoding.h"
#include "text/pretokenizer.h"

typedef struct BpePair {
    int32_t left, right; /* symbols; left -1: a free slot */
    uint32_t rank;
    int32_t result;
} BpePair;

/* A symbol below n_vocab is a token id; those from n_vocab on are strings that occur only while merging towards a
 * token. Zero-initialise. */
typedef struct Bpe {
    Pretokenizer *pre;
    BpePair *pairs; /* open addressing, n_slots is a power of two */
    size_t n_slots;
    HashKey key; /* of the pairs' hashes */
    char *bytes; /* the texts of the merges; keys of v->by_text point here too, so do not use the vocabulary after
                    bpe_close */
    int32_t n_symbols;
    int32_t byte_symbol[256];
} Bpe;

/* Reads tokenizer.ggml.merges and .pre. Adds the strings that are no tokens to v->by_text, and sets v->adds_bos where
 * the file leaves it to the pre-tokenizer. */
int bpe_open(Bpe *b, Vocab *v, const Gguf *g, fr_error *err);
void bpe_close(Bpe *b);

/* Appends the tokens of text[0..n), 0 < n < 2^31. */
int bpe_encode(const Bpe *b, const Vocab *v, const char *text, size_t n, Encoding *e, fr_error *err);

#endif

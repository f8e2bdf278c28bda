/* bpe.h - byte-level BPE (tokenizer.ggml.model = "gpt2"). */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "text/encoding.h"
#include "text/pretokenizer.h"

typedef struct BpePair {
    int32_t left, right; /* symbols; left -1: a free slot */
    uint32_t rank;
    int32_t result;
} BpePair;

/* Symbols are token ids, and from n_vocab on strings that only occur on the way to a token. Zeroed before. */
typedef struct Bpe {
    Pretokenizer *pre;
    BpePair *pairs; /* open addressing, n_slots is a power of two */
    size_t n_slots;
    char *bytes; /* the texts of the merges; keys of v->by_text point here too: encode no more once it is
                    closed */
    int32_t n_symbols;
    int32_t byte_symbol[256];
} Bpe;

/* Reads tokenizer.ggml.merges and .pre; adds the strings in between to v->by_text, sets v->adds_bos where the
 * file leaves it to the pre-tokenizer. */
int bpe_open(Bpe *b, Vocab *v, const Gguf *g, fr_error *err);
void bpe_close(Bpe *b);

/* Appends the tokens of text[0..n), 0 < n < 2^31. */
int bpe_encode(const Bpe *b, const Vocab *v, const char *text, size_t n, Encoding *e, fr_error *err);

#endif

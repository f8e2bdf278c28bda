/* convert_vocab.h - the vocabulary of a published model, on its way into a GGUF file. */
#ifndef CONVERT_CONVERT_VOCAB_H
#define CONVERT_CONVERT_VOCAB_H

#include "base/hash.h"
#include "cli/convert/hub_folder.h"
#include "gguf/gguf_write.h"
#include "text/vocab.h"

typedef struct ConvertVocab {
    VocabKind kind;
    char pre[32];       /* tokenizer.ggml.pre of byte-level BPE */
    int64_t n;          /* tokens, as many as the model has embeddings */
    GgufString *pieces; /* [n] spellings; data NULL: no token has this id yet. Borrowed, from `memory` or the JSON */
    float *scores;      /* [n] SentencePiece only */
    int32_t *types;     /* [n] TokenType */
    GgufString *merges; /* [n_merges] byte-level BPE only */
    int64_t n_merges;
    int32_t bos, eos, unknown, pad; /* -1: none */
    bool adds_bos, adds_eos, adds_space_prefix;
    bool says_bos; /* the files say whether texts begin with BOS; else the reader decides by the pre-tokenizer */
    HashTable by_piece;
    char *file;    /* tokenizer.model as it was read; pieces point into it */
    void **memory; /* [n_memory] strings that were made */
    int64_t n_memory, memory_capacity;
} ConvertVocab;

/* Reads tokenizer.json or tokenizer.model, whichever is the more exact. n_vocab: embeddings of the model; ids beyond are
 * refused, and ids without a token become unused tokens. */
int convert_vocab_read(ConvertVocab *v, const HubFolder *c, int64_t n_vocab, fr_error *err);
/* Writes the tokenizer.* keys, with special tokens and the chat template. */
int convert_vocab_write(const ConvertVocab *v, const HubFolder *c, GgufWriter *w, fr_error *err);
void convert_vocab_close(ConvertVocab *v); /* of a zeroed one too */

/* ---- for the readers ------------------------------------------------------------------------------- */

/* Gives id its token. Refuses an id that is out of range or has another token already. */
int convert_vocab_set(ConvertVocab *v, const HubFolder *c, int64_t id, const char *piece, size_t n, TokenType type,
                      fr_error *err);
/* The id of a spelling, or -1. */
int32_t convert_vocab_find(const ConvertVocab *v, const char *piece, size_t n);
/* Memory that lives as long as the vocabulary; NULL: there is none. */
char *convert_vocab_memory(ConvertVocab *v, size_t n);

int tokens_json_read(ConvertVocab *v, const HubFolder *c, fr_error *err);
int tokens_spm_read(ConvertVocab *v, const HubFolder *c, fr_error *err);
/* Whether tokenizer.json describes byte-level BPE, not one over characters with byte tokens. */
bool tokens_json_is_byte_level(const json_t *tokenizer);

#endif

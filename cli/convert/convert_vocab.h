/* convert_vocab.h - the vocabulary of a published model: read from its files, and written into a GGUF file. */
#ifndef CONVERT_CONVERT_VOCAB_H
#define CONVERT_CONVERT_VOCAB_H

#include "base/hash.h"
#include "cli/convert/hub_folder.h"
#include "gguf/gguf_write.h"
#include "text/vocab.h"

typedef struct ConvertVocab {
    VocabKind kind;
    char pre[32]; /* tokenizer.ggml.pre, for byte-level BPE */
    int64_t n;    /* tokens, as many as the model has embeddings */
    /* [n] spellings, borrowed from `memory`, `file` or the JSON; data NULL: no token has this id yet */
    GgufString *pieces;
    float *scores;      /* [n] SentencePiece only */
    int32_t *types;     /* [n] TokenType */
    GgufString *merges; /* [n_merges] byte-level BPE only */
    int64_t n_merges;
    int32_t bos, eos, unknown, pad; /* -1: none */
    bool adds_bos, adds_eos, adds_space_prefix;
    bool says_bos; /* the files state whether texts begin with BOS; otherwise readers of the GGUF file decide */
    HashTable by_piece;
    char *file;    /* tokenizer.model as it was read; pieces point into it */
    void **memory; /* [n_memory] allocated strings */
    int64_t n_memory, memory_capacity;
} ConvertVocab;

/* Reads tokenizer.json or tokenizer.model, whichever is more exact. n_vocab is the number of embeddings: greater ids
 * are refused, and ids without a token become unused tokens. */
int convert_vocab_read(ConvertVocab *v, const HubFolder *c, int64_t n_vocab, fr_error *err);
/* Writes the tokenizer.* keys, with special tokens and the chat template. */
int convert_vocab_write(const ConvertVocab *v, const HubFolder *c, GgufWriter *w, fr_error *err);
void convert_vocab_close(ConvertVocab *v); /* safe for a zeroed one */

/* ---- for the readers ------------------------------------------------------------------------------- */

/* Sets the token of an id. Refuses an id that is out of range or already has another token. */
int convert_vocab_set(ConvertVocab *v, const HubFolder *c, int64_t id, const char *piece, size_t n, TokenType type,
                      fr_error *err);
/* Returns the id of a spelling; -1: no token has it. */
int32_t convert_vocab_find(const ConvertVocab *v, const char *piece, size_t n);
/* Allocates memory that lives as long as the vocabulary; NULL: there is none. */
char *convert_vocab_memory(ConvertVocab *v, size_t n);

int tokens_json_read(ConvertVocab *v, const HubFolder *c, fr_error *err);
int tokens_spm_read(ConvertVocab *v, const HubFolder *c, fr_error *err);
/* Returns whether tokenizer.json describes byte-level BPE, rather than BPE over characters with byte tokens. */
bool tokens_json_is_byte_level(const json_t *tokenizer);

/* ---- the wire format of protocol buffers (tokens_spm.c) ----------------------------------------------- */

/* Reads a message field by field, without a schema. */
typedef struct Wire {
    const unsigned char *at, *end;
    bool broken; /* the bytes are not a message; nothing more is read */
} Wire;

typedef struct WireField {
    uint32_t number;
    int kind;          /* 0: an integer in value; 1 and 5: 8 and 4 bytes in value; 2: bytes */
    uint64_t value;    /* kinds 0, 1 and 5 */
    const char *bytes; /* kind 2: [n], in the message */
    size_t n;
} WireField;

Wire wire_begin(const void *bytes, size_t n);
/* Reads the next field; false at the end, or where the bytes are not a message. */
bool wire_next(Wire *w, WireField *out);
/* Returns a field of kind 5 as a float. */
float wire_float(const WireField *f);

#endif

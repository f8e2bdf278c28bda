/* vocab.h - the vocabulary of a GGUF file, checked and copied: pieces, types, scores and special tokens.
 *
 * Each token has a spelling, which is how the file writes it, and a text, which is what it means: marks of the
 * beginning of a word are spaces, and spelled bytes are bytes. Encoding looks up texts, so the input need not be
 * escaped. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/error.h"
#include "base/hash.h"
#include "gguf/gguf.h"

#include <stdbool.h>
#include <stddef.h>

/* The largest number of bytes in a spelling. It bounds the buffer of the detokenizer, and the cost of look-ups in a
 * hostile file. */
enum { VOCAB_MAX_PIECE = 1024 };

typedef enum VocabKind {
    VOCAB_SPM,           /* SentencePiece BPE */
    VOCAB_BPE,           /* byte-level BPE */
    VOCAB_CHARACTER_BPE, /* BPE over characters by a list of merges; pieces are spelled as in SentencePiece */
} VocabKind;

/* tokenizer.ggml.token_type, with the numbers of the format. */
typedef enum TokenType {
    TOKEN_UNDEFINED = 0,
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
} TokenType;

typedef struct Piece {
    const char *data;
    uint32_t n;
} Piece;

typedef struct Vocab {
    VocabKind kind;
    int32_t n;
    char *bytes;            /* memory of the pieces */
    Piece *spelling, *text; /* [n] */
    float *score;           /* [n] for SPM; never NaN */
    uint8_t *type;          /* [n] TokenType */
    bool *is_eog;           /* [n] */
    bool *strips_after;     /* [n] as a special token it includes the white space after it (Phi-3) */
    int32_t *suppressed;    /* [n_suppressed] tokens that are never generated, each once */
    int32_t n_suppressed;
    int32_t bos, eos, unknown; /* -1: none */
    bool adds_bos, adds_eos, adds_space_prefix;
    bool space_within;       /* some ordinary token has a space after another character */
    int32_t byte_token[256]; /* the token of a byte that belongs to no other piece; -1: there is none */
    HashTable by_spelling;   /* all tokens; of equal spellings the lowest id */
    HashTable by_text;       /* the tokens for ordinary text: no control, unknown, byte or user-defined tokens */
} Vocab;

/* Zero-initialise v. Call vocab_close even if this fails. If a BPE file has no key for adds_bos, bpe_open sets it,
 * because it depends on the pre-tokenizer. */
int vocab_open(Vocab *v, const Gguf *g, fr_error *err);
void vocab_close(Vocab *v);

/* A model can draft for another one only if every token means the same in both. FR_OK: both files have the same kind
 * of vocabulary, number of tokens, spellings, types, BOS, EOS and tokens that end a text. FR_ERR_MISMATCH: the error
 * names the first difference. Another error: a file has no valid vocabulary. */
int vocab_match(const Gguf *draft, const Gguf *target, fr_error *err);

/* Finds the tokens that two vocabularies share: those with the same text, control tokens with the same spelling, BOS
 * and EOS. to_draft [n] receives for each token of `target` the token of `draft`, or -1; no token of `draft` occurs
 * twice. *n_shared is their number. *same_ids: one vocabulary is the beginning of the other one, as in files that
 * differ only in padding; shared tokens then have the same ids. Errors are those of invalid vocabularies. */
int vocab_shared(const Gguf *draft, const Gguf *target, int32_t *to_draft, int32_t n, int32_t *n_shared, bool *same_ids,
                 fr_error *err);

/* Computes a hash of everything that vocab_match compares, for files of tokens that are stored without their
 * vocabulary. */
int vocab_fingerprint(const Gguf *g, uint64_t *out, fr_error *err);

/* Byte-level BPE spells every byte as one visible character, so that a JSON file can contain its pieces: the
 * printable bytes of Latin-1 are spelled as themselves, and the other 68, in the order of their values, as U+0100 +
 * k (a space is U+0120). This function writes the bytes of a spelling to out, which needs room for n bytes, and
 * returns their number. A character outside this alphabet is copied unchanged and makes *pure false: no text is
 * encoded as such a piece. */
size_t byte_map_decode(const char *spelling, size_t n, char *out, bool *pure);

#endif

/* vocab.h - the vocabulary of a GGUF file, checked and copied: pieces, types, scores, special ids.
 *
 * A token has a spelling (as the file writes it) and a text (its meaning: word-start marks are spaces, spelled bytes
 * are bytes). Encoding looks up texts, so the input need not be escaped. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/error.h"
#include "gguf/gguf.h"
#include "base/hash.h"

/* Most bytes of a spelling: bounds the detokenizer's buffer, and the cost of look-ups in a hostile file. */
enum { VOCAB_MAX_PIECE = 1024 };

typedef enum VocabKind {
    VOCAB_SPM,           /* SentencePiece BPE */
    VOCAB_BPE,           /* byte-level BPE */
    VOCAB_CHARACTER_BPE, /* BPE by a list of merges over characters, whose pieces are spelled as SentencePiece spells them */
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
    char *bytes;               /* memory of the pieces */
    Piece *spelling, *text;    /* [n] */
    float *score;              /* [n], SPM only; no NaN */
    uint8_t *type;             /* [n] TokenType */
    bool *is_eog;              /* [n] */
    bool *strips_after;        /* [n]: as a special token it swallows the white space behind it (Phi-3) */
    int32_t bos, eos, unknown; /* -1: none */
    bool adds_bos, adds_eos, adds_space_prefix;
    bool space_within;       /* some ordinary token has a space behind another character */
    int32_t byte_token[256]; /* the token that stands for a byte where no other piece does; -1: none */
    HashTable by_spelling;   /* every token; of duplicates the lowest id */
    HashTable by_text; /* the tokens that ordinary text may become: not control, unknown, byte or user-defined ones */
} Vocab;

/* Reads everything but adds_bos of BPE files without the key, which depends on the pre-tokenizer. Zero-initialise; the
 * caller calls vocab_close in any case. */
int vocab_open(Vocab *v, const Gguf *g, fr_error *err);
void vocab_close(Vocab *v);

/* Part of vocab_open, in vocab_special.c: BOS, EOS, unknown and end-of-generation tokens. May change types, so it runs
 * before the tables are built. */
int vocab_read_special(Vocab *v, const Gguf *g, bool types_given, fr_error *err);

#endif

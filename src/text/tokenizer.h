/* tokenizer.h - turns text into tokens and tokens into text, by the vocabulary of a GGUF file. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/error.h"
#include "gguf/gguf.h"
#include "text/template/template.h"

typedef struct Tokenizer Tokenizer; /* immutable after open; safe to share between threads */

/* Copies what it needs, so that the Gguf may be closed afterwards. Refuses a file without a vocabulary, with an
 * unknown kind of tokenizer or pre-tokenizer, or with a damaged vocabulary. */
int tokenizer_open(Tokenizer **out, const Gguf *g, fr_error *err);
void tokenizer_close(Tokenizer *t);

enum {
    TOKENIZE_BOS = 1,       /* begin with BOS if the vocabulary has one */
    TOKENIZE_EOS = 2,       /* end with EOS if the vocabulary has one */
    TOKENIZE_SPECIAL = 4,   /* text such as <|im_end|> becomes the special token */
    TOKENIZE_CONTINUED = 8, /* the text continues another one: no space is put before its first word */
};

/* Encodes text[0..n), which may be any bytes, including '\0' and invalid UTF-8. *out_tokens has *out_n elements and
 * is malloc'ed; the caller frees it. It is NULL if there are none. A run of bytes for which the vocabulary has
 * neither pieces nor byte tokens becomes one unknown token, or nothing if there is no such token. */
int tokenizer_encode(const Tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **out_tokens,
                     int64_t *out_n, fr_error *err);

typedef TemplateSpan TextSpan;
/* The same, but TOKENIZE_SPECIAL does not apply to the spans `data`, which are ascending and not adjacent: no
 * special token overlaps one. Apart from that, the tokens are those of the whole text, and pieces may cross the ends
 * of spans. User-defined tokens are no control tokens; they are found everywhere, even without TOKENIZE_SPECIAL. */
int tokenizer_encode_marked(const Tokenizer *t, const char *text, size_t n, const TextSpan *data, size_t n_data,
                            unsigned flags, int32_t **out_tokens, int64_t *out_n, fr_error *err);

int32_t tokenizer_n_vocab(const Tokenizer *t);
int32_t tokenizer_bos(const Tokenizer *t); /* -1: it has none */
int32_t tokenizer_eos(const Tokenizer *t); /* -1: it has none */
/* Returns whether the file wants BOS before and EOS after a prompt (tokenizer.ggml.add_bos_token and add_eos_token). */
bool tokenizer_adds_bos(const Tokenizer *t);
bool tokenizer_adds_eos(const Tokenizer *t);
/* Returns whether the token ends generation: EOS, EOT, <|im_end|>, <|eot_id|>, <|end|> and others do. */
bool tokenizer_is_eog(const Tokenizer *t, int32_t token);
bool tokenizer_is_special(const Tokenizer *t,
                          int32_t token); /* a control or unknown token, which is not shown by default */
/* Returns the tokens that must never be generated (tokenizer.ggml.suppress_tokens). They are borrowed. */
const int32_t *tokenizer_suppressed(const Tokenizer *t, int32_t *n);
/* Returns the token with this spelling, which may be a special token. -1: there is none. */
int32_t tokenizer_find(const Tokenizer *t, const char *piece, size_t n);

/* Returns the bytes of a token in running text, which are borrowed; *n_bytes is their number. Marks of the beginning of
 * a word are spaces, and a byte token is its byte. A control token is empty unless with_special, and so is a token
 * outside the vocabulary. */
const char *tokenizer_piece(const Tokenizer *t, int32_t token, bool with_special, size_t *n_bytes);

/* Returns whether encoding puts a space before the first word of a text, which decoding should remove. */
bool tokenizer_adds_space_prefix(const Tokenizer *t);

/* ---- a stream of tokens as text, in whole characters ------------------------------------------------------------- */

/* Each byte of the longest piece (1024 bytes), and of those held before it, may be invalid and become a U+FFFD. */
enum { DETOKENIZER_MAX_TEXT = 3 * (1024 + 4) };

/* It holds back at most 3 bytes of an unfinished character. Bytes that cannot become a character are written as U+FFFD.
 * Zero-initialise it and set the tokenizer. */
typedef struct Detokenizer {
    const Tokenizer *tokenizer;
    bool with_special; /* control tokens are shown, too */
    bool strip_space;  /* the space that encoding put before the first word is removed; the first text clears this */
    char held[4];
    int n_held;
    char text[DETOKENIZER_MAX_TEXT]; /* the result of the last call */
    int n_text;
} Detokenizer;

/* Returns the text that `token` completes, in whole characters. It is valid until the next call. */
const char *detokenizer_next(Detokenizer *d, int32_t token, size_t *n_bytes);
/* At the end of a text: U+FFFD for bytes that are still held; usually there are none. */
const char *detokenizer_finish(Detokenizer *d, size_t *n_bytes);

#endif

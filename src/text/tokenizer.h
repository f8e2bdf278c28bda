/* tokenizer.h - text to token ids and back, by the vocabulary in a GGUF file. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/error.h"
#include "gguf/gguf.h"
#include "text/template/template.h"

typedef struct Tokenizer Tokenizer; /* immutable after open; safe to share between threads */

/* Copies what it needs: the Gguf may be closed afterwards. Refuses a file without a
 * vocabulary, with an unknown tokenizer model or pre-tokenizer, or with a damaged vocabulary. */
int tokenizer_open(Tokenizer **out, const Gguf *g, fr_error *err);
void tokenizer_close(Tokenizer *t);

enum {
    TOKENIZE_BOS = 1,     /* begin with BOS where the model's vocabulary has one */
    TOKENIZE_EOS = 2,     /* end with EOS likewise */
    TOKENIZE_SPECIAL = 4, /* text such as <|im_end|> becomes the special token */
};

/* Token ids of exactly text[0..n) (any bytes, '\0' and broken UTF-8 included). *out_tokens is malloc'ed
 * (the caller frees it; NULL when there are none), *out_n its length. Bytes for which the vocabulary has no piece
 * and no byte token become its unknown token, one for a run of them; without one they are left out. */
int tokenizer_encode(const Tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **out_tokens,
                     int64_t *out_n, fr_error *err);

typedef TemplateSpan TextSpan;
/* The same, but with TOKENIZE_SPECIAL no special token lies in the spans `data` (ascending, apart from each other) or reaches
 * into one. The ids are otherwise those of the whole text: pieces reach over the ends of spans. User-defined tokens, which
 * are no control tokens, are found everywhere, as without TOKENIZE_SPECIAL. */
int tokenizer_encode_marked(const Tokenizer *t, const char *text, size_t n, const TextSpan *data, size_t n_data,
                            unsigned flags, int32_t **out_tokens, int64_t *out_n, fr_error *err);

int32_t tokenizer_n_vocab(const Tokenizer *t);
int32_t tokenizer_bos(const Tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const Tokenizer *t); /* -1: none */
/* Whether the file wants BOS and EOS around a prompt (tokenizer.ggml.add_bos_token / add_eos_token). */
bool tokenizer_adds_bos(const Tokenizer *t);
bool tokenizer_adds_eos(const Tokenizer *t);
/* End-of-generation tokens: EOS, EOT and others (<|im_end|>, <|eot_id|>, <|end|>, ...). */
bool tokenizer_is_eog(const Tokenizer *t, int32_t token);
bool tokenizer_is_special(const Tokenizer *t, int32_t token); /* control, unknown: not shown by default */
/* The id of the piece with exactly this spelling, special tokens included; -1: none. */
int32_t tokenizer_find(const Tokenizer *t, const char *piece, size_t n);

/* The bytes a token stands for in running text (word-start marks are spaces, byte tokens are their byte,
 * control tokens are empty unless with_special). Borrowed; *n_bytes is the length. Empty for a token
 * outside the vocabulary. */
const char *tokenizer_piece(const Tokenizer *t, int32_t token, bool with_special, size_t *n_bytes);

/* Whether encoding puts a space before the first word of a text, which decoding should drop. */
bool tokenizer_adds_space_prefix(const Tokenizer *t);

#endif

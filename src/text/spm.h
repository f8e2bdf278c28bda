/* spm.h - SentencePiece BPE with byte fallback (tokenizer.ggml.model = "llama"). */
#ifndef TEXT_SPM_H
#define TEXT_SPM_H

#include "text/encoding.h"

/* Appends the tokens of text[0..n), n < 2^31; `prefixed` puts the word-start space before it. */
int spm_encode(const Vocab *v, const char *text, size_t n, bool prefixed, Encoding *e, fr_error *err);

#endif

/* vocab_match.h - may one model draft for another? Only where every token means the same in both. */
#ifndef TEXT_VOCAB_MATCH_H
#define TEXT_VOCAB_MATCH_H

#include "base/error.h"
#include "gguf/gguf.h"

/* FR_OK where both files have the same tokens: kind, number, spellings, types, BOS, EOS and which tokens end
 * a text. Else FR_ERR_MISMATCH with the first difference by name, or the error of a file without a sound
 * vocabulary. */
int vocab_match(const Gguf *draft, const Gguf *target, fr_error *err);

/* A hash of all that vocab_match compares, for files of tokens that are kept apart from their vocabulary. */
int vocab_fingerprint(const Gguf *g, uint64_t *out, fr_error *err);

#endif

/* vocab_build.h - small vocabularies for tests, as GGUF bytes in memory, valid or damaged. */
#ifndef TESTS_VOCAB_BUILD_H
#define TESTS_VOCAB_BUILD_H

#include "base/mem.h"
#include "text/tokenizer.h"

/* Keys whose field is NULL (or whose count is 0) are left out of the file. */
typedef struct VocabSpec {
    const char *model, *pre, *name;
    const char *const *tokens;
    int n_tokens;
    const int32_t *types;
    int n_types;
    const float *scores;
    int n_scores;
    const char *const *merges;
    int n_merges;
    struct {
        const char *key; /* after "tokenizer.ggml." */
        uint32_t value;
    } ids[4];
    struct {
        const char *key;
        bool value;
    } flags[3];
} VocabSpec;

void vocab_build(Buf *b, const VocabSpec *spec); /* appends the file's bytes */
int vocab_build_open(Tokenizer **out, const VocabSpec *spec, fr_error *err);

/* tokens[0..255] = the spelling of each byte in the alphabet of byte-level BPE; static strings */
void vocab_build_alphabet(const char *tokens[256]);

/* A complete small byte-level BPE: tokens 0..255 are the bytes, 256 + k is the result of merge k, and after those come
 * <|user|> (user-defined) and <|endoftext|> (control, BOS and EOS). */
enum { TINY_N_MERGES = 14, TINY_USER = 256 + TINY_N_MERGES, TINY_END, TINY_N_TOKENS };
extern const char *const tiny_merges[TINY_N_MERGES];
VocabSpec vocab_build_tiny_bpe(const char *pre); /* borrows static arrays */

#endif

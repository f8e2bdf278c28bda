/* corpus_build.h - makes a corpus index (corpus_index.h): documents in, one sorted file out. */
#ifndef LAB_CORPUS_BUILD_H
#define LAB_CORPUS_BUILD_H

#include "base/mem.h"
#include "spec/drafters/text/corpus_index.h"

/* Zero-initialise with n_vocab set. */
typedef struct CorpusBuild {
    int32_t n_vocab;
    int64_t n_tokens, n_documents; /* separators counted */
    Buf bytes;                     /* the tokens as the file has them */
} CorpusBuild;

/* Appends tokens to the document in hand; corpus_build_end ends it (an empty one leaves no trace). */
int corpus_build_add(CorpusBuild *b, const int32_t *tokens, int64_t n, fr_error *err);
int corpus_build_end(CorpusBuild *b, fr_error *err);

/* Sorts and writes to a temporary neighbour of `path` that replaces it in one moment; where that fails, what
 * stood there stays. `vocab` is the file the tokens are of (NULL: unknown, for tests). Memory at the peak: 5 bytes for
 * each byte of the tokens, 9 from 2 GB on. */
int corpus_build_write(const CorpusBuild *b, const char *path, const Gguf *vocab, fr_error *err);
void corpus_build_free(CorpusBuild *b); /* back to the zero state, n_vocab kept */

/* The places of the tokens in suffix order, separators left out; for corpus_build_write and tests. Not empty. With `wide` the
 * byte array is sorted with 64-bit numbers. *out is the caller's to mem_free. */
int corpus_sort(const CorpusBuild *b, bool wide, uint32_t **out, int64_t *n_places, fr_error *err);

#endif

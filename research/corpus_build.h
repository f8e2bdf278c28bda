/* corpus_build.h - builds a corpus index (corpus_index.h): takes documents, writes one sorted file. */
#ifndef LAB_CORPUS_BUILD_H
#define LAB_CORPUS_BUILD_H

#include "base/mem.h"
#include "draft/text/corpus_index.h"

/* Zero-initialise and set n_vocab. */
typedef struct CorpusBuild {
    int32_t n_vocab;
    int64_t n_tokens, n_documents; /* n_tokens includes separators */
    Buf bytes;                     /* the tokens in the file's format */
} CorpusBuild;

/* Appends tokens to the current document; corpus_build_end ends it (an empty document is ignored). */
int corpus_build_add(CorpusBuild *b, const int32_t *tokens, int64_t n, fr_error *err);
int corpus_build_end(CorpusBuild *b, fr_error *err);

/* Sorts and writes to a temporary file beside `path`, which then replaces it atomically; after a failure the old file
 * is unchanged. `vocab` is the file of the vocabulary (NULL: unknown, for tests). Peak memory: 5 bytes for each byte
 * of the tokens, 9 from 2 GB on. */
int corpus_build_write(const CorpusBuild *b, const char *path, const Gguf *vocab, fr_error *err);
void corpus_build_free(CorpusBuild *b); /* back to the zero state; n_vocab is kept */

/* The positions of the tokens in suffix order, without separators; for corpus_build_write and tests. The corpus must
 * not be empty. With `wide` the byte array is sorted with 64-bit numbers. The caller frees *out with mem_free. */
int corpus_sort(const CorpusBuild *b, bool wide, uint32_t **out, int64_t *n_places, fr_error *err);

#endif

/* corpus_index.h - a tokenized corpus with its suffix array in a file: built once, then memory-mapped and searched.
 *
 *   header     128 bytes (CorpusHeader), little-endian
 *   places     u32 [n_places]: where the suffixes begin, as token positions, sorted by the suffixes
 *   tokens     [n_tokens] of `width` bytes each, big-endian; every document ends with the separator
 *
 * The separator is n_vocab, an id that no token has and that sorts after all tokens. Big-endian numbers of one width
 * sort like their bytes, so memcmp sorts the suffixes and compares them with a query. A token costs width + 4 bytes: 6
 * up to a vocabulary of 65,535 tokens, 7 beyond.
 *
 * corpus_open checks the header against the vocabulary and the length of the file. Places and tokens are checked
 * where they are read: a damaged file gives bad drafts, never a read out of bounds.
 */
#ifndef TEXT_CORPUS_INDEX_H
#define TEXT_CORPUS_INDEX_H

#include "base/error.h"
#include "base/files.h"
#include "gguf/gguf.h"

#include <stdbool.h>

enum { CORPUS_VERSION = 1, CORPUS_MAX_WIDTH = 4, CORPUS_MAX_QUERY = 64 };
extern const char corpus_magic[8];

typedef struct CorpusHeader {
    char magic[8];
    uint32_t version, n_vocab;
    uint64_t vocab_fingerprint; /* fingerprint of the file that the corpus was tokenized with */
    uint64_t n_tokens;          /* tokens, separators included */
    uint64_t n_places;          /* tokens, separators not included */
    uint64_t n_documents;
    char vocab_name[80]; /* name of the vocabulary's file, for messages; '\0'-terminated */
} CorpusHeader;

typedef struct CorpusIndex {
    const CorpusHeader *header; /* a copy of the file's header */
    const void *bytes;          /* the whole file */
    const uint32_t *places;
    const uint8_t *tokens;
    size_t n_bytes;
    MappedFile *file; /* NULL: the bytes belong to the caller */
    int width;        /* bytes of a token */
} CorpusIndex;

/* The suffixes begin .. end - 1 in sorted order. */
typedef struct CorpusSpan {
    int64_t begin, end;
} CorpusSpan;

/* Returns the number of bytes of a token: the fewest that hold n_vocab, the separator. */
int corpus_width(int32_t n_vocab);
void corpus_put_token(uint8_t *dst, int width, int32_t token);

/* Maps the file. Returns FR_ERR_MISMATCH if it was built for another vocabulary than that of `vocab` (NULL: only the
 * number of tokens is compared). After a failure *x is closed. */
int corpus_open(CorpusIndex *x, const char *path, int32_t n_vocab, const Gguf *vocab, fr_error *err);
/* The same for a file in memory, aligned to 8 bytes, which must outlive the index; `name` appears in messages. */
int corpus_open_memory(CorpusIndex *x, const void *bytes, size_t n, const char *name, int32_t n_vocab,
                       const Gguf *vocab, fr_error *err);
/* Returns FR_ERR_IO if the file has been written to or cut since it was opened. */
int corpus_check(const CorpusIndex *x, fr_error *err);
void corpus_close(CorpusIndex *x); /* a zeroed index is allowed */

/* Finds the suffixes that begin with tokens[0..m) and continue with a token of the same document; m in [1,
 * CORPUS_MAX_QUERY]. Cost: about 2 log2(n_places) suffixes read. */
CorpusSpan corpus_find(const CorpusIndex *x, const int32_t *tokens, int32_t m);
/* Finds the longest suffix of tokens[0..n), of min to max tokens, that occurs in the corpus as in corpus_find. Returns
 * its length; 0 if there is none. */
int32_t corpus_longest(const CorpusIndex *x, const int32_t *tokens, int32_t n, int32_t min, int32_t max,
                       CorpusSpan *out);
/* Returns the token at `offset` from the beginning of the i-th suffix; -1 if there is none, or if it is outside the
 * vocabulary. */
int32_t corpus_token(const CorpusIndex *x, int64_t i, int32_t offset);

#endif

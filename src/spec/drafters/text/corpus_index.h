/* corpus_index.h - a corpus in tokens with its suffix array, in a file: made once, memory-mapped, searched.
 *
 *   header     128 bytes (CorpusHeader), little-endian
 *   places     u32 [n_places]: where the suffixes begin, as token numbers, sorted by what stands there
 *   tokens     [n_tokens] of `width` bytes each, big-endian; every document ends with the separator
 *
 * The separator is n_vocab, an id that no token has and that sorts behind all tokens. Big-endian numbers of
 * one width sort as their bytes do, so suffixes are sorted, and compared with a query, by memcmp. A token
 * costs width + 4 bytes: 6 up to a vocabulary of 65,535 tokens, 7 beyond.
 *
 * corpus_open checks the header against the vocabulary and the length of the file. Places and tokens are
 * checked where they are read: a damaged file gives bad drafts, never a read outside of it.
 */
#ifndef TEXT_CORPUS_INDEX_H
#define TEXT_CORPUS_INDEX_H

#include "base/error.h"
#include "format/gguf.h"

#include <stdbool.h>

enum { CORPUS_VERSION = 1, CORPUS_MAX_WIDTH = 4, CORPUS_MAX_QUERY = 64 };
extern const char corpus_magic[8];

typedef struct CorpusHeader {
    char magic[8];
    uint32_t version, n_vocab;
    uint64_t vocab_fingerprint; /* vocab_fingerprint of the file the corpus was tokenized with */
    uint64_t n_tokens;          /* separators included */
    uint64_t n_places;          /* separators left out */
    uint64_t n_documents;
    char vocab_name[80]; /* of that file, for messages; '\0'-terminated */
} CorpusHeader;

typedef struct CorpusIndex {
    const CorpusHeader *header; /* the whole file */
    const uint32_t *places;
    const uint8_t *tokens;
    size_t n_bytes;
    bool mapped;
    int width;      /* bytes of a token */
} CorpusIndex;

typedef struct CorpusSpan { /* suffixes begin..end-1 in sorted order */
    int64_t begin, end;
} CorpusSpan;

/* Bytes of a token: the fewest that hold n_vocab, the separator. */
int corpus_width(int32_t n_vocab);
void corpus_put_token(uint8_t *dst, int width, int32_t token);

/* Maps the file. FR_ERR_MISMATCH where it is for another vocabulary than that of `vocab` (NULL: only the number
 * of tokens is compared). After a failure *x is closed. */
int corpus_open(CorpusIndex *x, const char *path, int32_t n_vocab, const Gguf *vocab, fr_error *err);
/* The same over a file's bytes, which must outlive the index; `name` stands in messages. Aligned to 8. */
int corpus_open_memory(CorpusIndex *x, const void *bytes, size_t n, const char *name, int32_t n_vocab,
                       const Gguf *vocab, fr_error *err);
void corpus_close(CorpusIndex *x); /* a zeroed one is fine */

/* The suffixes that begin with tokens[0..m) and go on with a token of the same document; m in
 * [1, CORPUS_MAX_QUERY]. Cost: about 2 log2(n_places) suffixes read. */
CorpusSpan corpus_find(const CorpusIndex *x, const int32_t *tokens, int32_t m);
/* The longest end of tokens[0..n) of min to max tokens that corpus_find finds; its length, 0: none. */
int32_t corpus_longest(const CorpusIndex *x, const int32_t *tokens, int32_t n, int32_t min, int32_t max,
                       CorpusSpan *out);
/* The token `offset` behind the beginning of the i-th suffix; -1 where there is none of the vocabulary. */
int32_t corpus_token(const CorpusIndex *x, int64_t i, int32_t offset);

#endif

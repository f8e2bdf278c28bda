/* corpus_build.c - the suffix array of a tokenized corpus, by a library that sorts bytes.
 *
 * The problem: libdivsufsort (Mori) sorts the suffixes of a string of bytes, and tokens have ids up to 128K and more.
 * Sorters for integers exist (libsais), but not in Debian.
 *
 * The idea: write every token as `width` bytes, most significant first. Comparing two such strings byte by byte from
 * the beginning of a token gives the same result as comparing them token by token, so the byte suffixes that begin at a
 * token are in the order of the token suffixes. Sort all byte suffixes, keep those whose position is a multiple of
 * width.
 *
 *   documents  [1 2 1] [2]     n_vocab 300, width 2, separator 300 = 01 2C
 *   bytes      00 01  00 02  00 01  01 2C  00 02  01 2C
 *   kept       0 (1 2 1 |)  4 (1 |)  2 (2 1 |)  8 (2 |)  6 (|)  10 (|)   at a multiple of 2, in order
 *   places     0 2 1 4                                       in tokens, without separators
 *
 * Cost: width times as many suffixes are sorted as are needed, with a number for each byte: 5 * width bytes a token
 * with 32-bit numbers, and 9 * width from 2 GB of bytes on, where the 64-bit variant of the library takes over. A
 * sorter of 32-bit integers would need 8 bytes a token; at width 2 we need 10. docs/methods/text.md has the time.
 * Proof: tests/draft/test_draft_rest.c, against sorting by comparison, both variants. */
#define _POSIX_C_SOURCE 200809L
#include "research/corpus_build.h"

#include "base/files.h"
#include "text/vocab.h"

#include <divsufsort.h>
#include <divsufsort64.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- gathering ---------------------------------------------------------------------------------- */

static int append(CorpusBuild *b, int32_t token, fr_error *err) {
    uint8_t bytes[CORPUS_MAX_WIDTH];
    int width = corpus_width(b->n_vocab);
    if (b->n_tokens == UINT32_MAX)
        return error_set(err, FR_ERR_UNSUPPORTED, "a corpus index holds at most %u tokens; split the corpus",
                         UINT32_MAX);
    corpus_put_token(bytes, width, token);
    b->bytes.max_bytes = SIZE_MAX / 4;
    if (!buf_append(&b->bytes, bytes, (size_t)width)) return error_memory(err, "a corpus", 2 * b->bytes.n);
    b->n_tokens++;
    return FR_OK;
}

int corpus_build_add(CorpusBuild *b, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = FR_OK;
    for (int64_t i = 0; i < n && !status; i++) {
        if (tokens[i] < 0 || tokens[i] >= b->n_vocab)
            return error_set(err, FR_ERR_ARGUMENT, "token %d is outside the vocabulary of %d tokens", tokens[i],
                             b->n_vocab);
        status = append(b, tokens[i], err);
    }
    return status;
}

static bool is_separator(const CorpusBuild *b, int64_t i) {
    uint8_t separator[CORPUS_MAX_WIDTH];
    size_t width = (size_t)corpus_width(b->n_vocab);
    corpus_put_token(separator, (int)width, b->n_vocab);
    return memcmp(b->bytes.data + (size_t)i * width, separator, width) == 0;
}

int corpus_build_end(CorpusBuild *b, fr_error *err) {
    if (b->n_tokens == 0 || is_separator(b, b->n_tokens - 1)) return FR_OK;
    b->n_documents++;
    return append(b, b->n_vocab, err);
}

void corpus_build_free(CorpusBuild *b) {
    buf_free(&b->bytes);
    *b = (CorpusBuild){.n_vocab = b->n_vocab};
}

/* ---- sorting ------------------------------------------------------------------------------------ */

/* Turns the sorted byte positions, of n_each bytes each, into token positions at the front of the same memory. */
static int64_t keep_tokens(const CorpusBuild *b, void *sorted, size_t n_each) {
    char *at = sorted;
    int64_t n = 0, width = corpus_width(b->n_vocab);
    for (size_t i = 0; i < b->bytes.n; i++) {
        int64_t byte = 0; /* not negative, little-endian */
        memcpy(&byte, at + i * n_each, n_each);
        uint32_t place = (uint32_t)(byte / width);
        if (byte % width != 0 || is_separator(b, place)) continue;
        memcpy(at + (size_t)n++ * sizeof place, &place, sizeof place);
    }
    return n;
}

int corpus_sort(const CorpusBuild *b, bool wide, uint32_t **out, int64_t *n_places, fr_error *err) {
    size_t n_each = wide ? sizeof(saidx64_t) : sizeof(saidx_t), n = b->bytes.n;
    void *sorted = mem_alloc(n * n_each);
    *out = sorted;
    *n_places = 0;
    if (!sorted) return error_memory(err, "sorting a corpus", n * n_each);
    const uint8_t *bytes = (const uint8_t *)b->bytes.data;
    int failed = wide ? divsufsort64(bytes, sorted, (saidx64_t)n) : divsufsort(bytes, sorted, (saidx_t)n);
    if (failed) {
        mem_free(sorted);
        *out = NULL;
        return error_memory(err, "sorting a corpus", n * n_each);
    }
    *n_places = keep_tokens(b, sorted, n_each);
    return FR_OK;
}

/* ---- writing ------------------------------------------------------------------------------------ */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int make_header(const CorpusBuild *b, int64_t n_places, const Gguf *vocab, CorpusHeader *h, fr_error *err) {
    *h = (CorpusHeader){.version = CORPUS_VERSION,
                        .n_vocab = (uint32_t)b->n_vocab,
                        .n_tokens = (uint64_t)b->n_tokens,
                        .n_places = (uint64_t)n_places,
                        .n_documents = (uint64_t)b->n_documents};
    memcpy(h->magic, corpus_magic, sizeof h->magic);
    snprintf(h->vocab_name, sizeof h->vocab_name, "%s", vocab ? base_name(gguf_path(vocab)) : "no file");
    return vocab ? vocab_fingerprint(vocab, &h->vocab_fingerprint, err) : FR_OK;
}

static bool write_all(FILE *f, const CorpusBuild *b, const CorpusHeader *h, const uint32_t *places) {
    return fwrite(h, sizeof *h, 1, f) == 1 && fwrite(places, sizeof *places, h->n_places, f) == h->n_places &&
           fwrite(b->bytes.data, 1, b->bytes.n, f) == b->bytes.n;
}

int corpus_build_write(const CorpusBuild *b, const char *path, const Gguf *vocab, fr_error *err) {
    uint32_t *places;
    int64_t n_places;
    CorpusHeader header;
    if (b->n_documents == 0) return error_set(err, FR_ERR_FORMAT, "%s: the corpus holds no text to index", path);
    int status = corpus_sort(b, b->bytes.n >= INT32_MAX, &places, &n_places, err);
    if (status) return status;
    status = make_header(b, n_places, vocab, &header, err);
    ReplaceFile out;
    if (!status) status = replace_file_begin(&out, path, err);
    if (!status) {
        if (!write_all(out.file, b, &header, places))
            status = error_set(err, FR_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
        status = replace_file_end(&out, status, err);
    }
    mem_free(places);
    return status;
}

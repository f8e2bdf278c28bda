/* corpus_index.c - opens and searches a corpus index, whose layout corpus_index.h describes.
 *
 * A search is two binary searches in the suffix array. The file is not trusted: its header is checked when it is
 * opened, and each position when it is used. Tests: test_draft_rest.c for the search, test_corpus_index.c for damaged
 * files. */
#include "draft/text/corpus_index.h"

#include "base/mem.h"
#include "text/vocab.h"

#include <string.h>

const char corpus_magic[8] = "FRCORPUS";
_Static_assert(sizeof(CorpusHeader) == 128, "the header's layout is the file's");

int corpus_width(int32_t n_vocab) {
    int width = 1;
    while ((int64_t)n_vocab >> (8 * width)) width++;
    return width;
}

void corpus_put_token(uint8_t *dst, int width, int32_t token) {
    for (int i = 0; i < width; i++) dst[i] = (uint8_t)(token >> (8 * (width - 1 - i)));
}

/* ---- opening ------------------------------------------------------------------------------------ */

static int map_file(CorpusIndex *x, const char *path, fr_error *err) {
    fr_error why;
    int status = mapped_file_open(&x->file, path, &why);
    if (status) return error_set(err, (fr_code)status, "%s; `forerun index` makes the index of a corpus", why.message);
    x->bytes = mapped_file_bytes(x->file, &x->n_bytes);
    return FR_OK;
}

/* Checks the header, and that the file is exactly as long as the header says. Sets the arrays. */
static int check_file(CorpusIndex *x, const char *path, fr_error *err) {
    CorpusHeader *h = mem_alloc(sizeof *h);
    x->header = h;
    if (!h) return error_memory(err, "a corpus index", sizeof *h);
    if (x->n_bytes < sizeof *h) return error_set(err, FR_ERR_FORMAT, "%s: is too short for a corpus index", path);
    memcpy(h, x->bytes, sizeof *h); /* a copy, so that the header cannot change after the checks */
    if (memcmp(h->magic, corpus_magic, sizeof corpus_magic) != 0)
        return error_set(err, FR_ERR_FORMAT, "%s: is not a corpus index; `forerun index` makes one", path);
    if (h->version != CORPUS_VERSION)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: is a corpus index of version %u, and this program reads %d; make it anew with "
                         "`forerun index`",
                         path, h->version, CORPUS_VERSION);
    if (h->n_vocab == 0 || h->n_vocab >= INT32_MAX || h->n_tokens > UINT32_MAX || h->n_places > h->n_tokens ||
        !memchr(h->vocab_name, '\0', sizeof h->vocab_name))
        return error_set(err, FR_ERR_FORMAT, "%s: the header of the corpus index is damaged", path);
    x->width = corpus_width((int32_t)h->n_vocab);
    uint64_t want = sizeof *h + h->n_places * sizeof *x->places + h->n_tokens * (uint64_t)x->width;
    if (want != x->n_bytes)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: the corpus index has %zu bytes where its header says %llu; it is cut off or damaged",
                         path, x->n_bytes, (unsigned long long)want);
    x->places = (const uint32_t *)((const CorpusHeader *)x->bytes + 1);
    x->tokens = (const uint8_t *)(x->places + h->n_places);
    return FR_OK;
}

/* A model may have more tokens than its vocabulary, because embeddings are padded. */
static int check_vocab(const CorpusIndex *x, const char *path, int32_t n_vocab, const Gguf *vocab, fr_error *err) {
    const CorpusHeader *h = x->header;
    uint64_t fingerprint = h->vocab_fingerprint;
    int status = vocab ? vocab_fingerprint(vocab, &fingerprint, err) : FR_OK;
    if (status) return status;
    Printable name;
    printable(&name, h->vocab_name, strlen(h->vocab_name));
    if (fingerprint == h->vocab_fingerprint &&
        (vocab ? h->n_vocab <= (uint32_t)n_vocab : h->n_vocab == (uint32_t)n_vocab))
        return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: the corpus was indexed with the vocabulary of %s (%u tokens), and %s has another (%d "
                     "tokens); index it with `forerun index --vocab`",
                     path, name.text, h->n_vocab, vocab ? gguf_path(vocab) : "this model", n_vocab);
}

static int check(CorpusIndex *x, const char *path, int32_t n_vocab, const Gguf *vocab, fr_error *err) {
    int status = check_file(x, path, err);
    if (!status) status = check_vocab(x, path, n_vocab, vocab, err);
    if (status) corpus_close(x);
    return status;
}

int corpus_open(CorpusIndex *x, const char *path, int32_t n_vocab, const Gguf *vocab, fr_error *err) {
    *x = (CorpusIndex){.header = NULL};
    int status = map_file(x, path, err);
    return status ? status : check(x, path, n_vocab, vocab, err);
}

int corpus_check(const CorpusIndex *x, fr_error *err) { return mapped_file_check(x->file, err); }

int corpus_open_memory(CorpusIndex *x, const void *bytes, size_t n, const char *name, int32_t n_vocab,
                       const Gguf *vocab, fr_error *err) {
    *x = (CorpusIndex){.bytes = bytes, .n_bytes = n};
    return check(x, name, n_vocab, vocab, err);
}

void corpus_close(CorpusIndex *x) {
    mapped_file_close(x->file);
    mem_free((void *)(uintptr_t)x->header);
    *x = (CorpusIndex){.header = NULL};
}

/* ---- searching ---------------------------------------------------------------------------------- */

/* A query as it would be in the file. */
typedef struct Key {
    uint8_t bytes[(CORPUS_MAX_QUERY + 1) * CORPUS_MAX_WIDTH];
    size_t n;
} Key;

/* Compares the i-th suffix with the key. Returns 0 if the suffix begins with the key, otherwise a number below or above
 * 0. */
static int compare(const CorpusIndex *x, int64_t i, const Key *key) {
    uint64_t place = x->places[i], n_tokens = x->header->n_tokens;
    if (place >= n_tokens) return -1; /* a damaged file */
    size_t rest = (size_t)(n_tokens - place) * (size_t)x->width;
    int order = memcmp(x->tokens + place * (uint64_t)x->width, key->bytes, rest < key->n ? rest : key->n);
    return order == 0 && rest < key->n ? -1 : order;
}

/* Returns the first suffix of [begin, n_places) that does not sort before the key. */
static int64_t lower_bound(const CorpusIndex *x, int64_t begin, const Key *key) {
    int64_t end = (int64_t)x->header->n_places;
    while (begin < end) {
        int64_t middle = begin + (end - begin) / 2;
        if (compare(x, middle, key) < 0) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

/* The separator sorts after all tokens, so the suffixes whose document ends right after the query come last. They begin
 * where the query followed by the separator would be. */
CorpusSpan corpus_find(const CorpusIndex *x, const int32_t *tokens, int32_t m) {
    fr_assert(m >= 1 && m <= CORPUS_MAX_QUERY);
    Key key = {.n = (size_t)(m * x->width)};
    const CorpusSpan none = {0, 0};
    for (int32_t i = 0; i < m; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= x->header->n_vocab) return none;
        corpus_put_token(key.bytes + i * x->width, x->width, tokens[i]);
    }
    int64_t begin = lower_bound(x, 0, &key);
    if (begin == (int64_t)x->header->n_places || compare(x, begin, &key) != 0) return none;
    corpus_put_token(key.bytes + key.n, x->width, (int32_t)x->header->n_vocab);
    key.n += (size_t)x->width;
    return (CorpusSpan){begin, lower_bound(x, begin, &key)};
}

/* If the corpus has the last m tokens, it also has the last m - 1. So a binary search finds the length. */
int32_t corpus_longest(const CorpusIndex *x, const int32_t *tokens, int32_t n, int32_t min, int32_t max,
                       CorpusSpan *out) {
    int32_t found = min - 1;
    if (max > n) max = n;
    while (found < max) {
        int32_t m = found + (max - found + 1) / 2;
        CorpusSpan span = corpus_find(x, tokens + (n - m), m);
        if (span.begin < span.end) {
            *out = span;
            found = m;
        } else max = m - 1;
    }
    return found < min ? 0 : found;
}

int32_t corpus_token(const CorpusIndex *x, int64_t i, int32_t offset) {
    uint64_t place = x->places[i] + (uint64_t)offset;
    if (place >= x->header->n_tokens) return -1;
    const uint8_t *bytes = x->tokens + place * (uint64_t)x->width;
    uint32_t token = 0;
    for (int b = 0; b < x->width; b++) token = token << 8 | bytes[b];
    return token < x->header->n_vocab ? (int32_t)token : -1;
}

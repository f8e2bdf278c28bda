/* fuzz_corpus_index.c - any bytes as a corpus index: they are refused, or every search in them stays inside the file
 * and gives tokens of the vocabulary. */
#include "base/error.h"
#include "draft/text/corpus_index.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { N_QUERIES = 8, MAX_SPAN = 64 };

/* Follows the first suffixes of a span. */
static void check_span(const CorpusIndex *x, CorpusSpan span, int32_t n_vocab) {
    fr_assert(span.begin >= 0 && span.begin <= span.end && span.end <= (int64_t)x->header->n_places);
    for (int64_t i = span.begin; i < span.end && i < span.begin + MAX_SPAN; i++)
        for (int32_t offset = 0; offset < 4; offset++) {
            int32_t token = corpus_token(x, i, offset);
            fr_assert(token >= -1 && token < n_vocab);
        }
}

/* Searches for the tokens of some suffixes of the index itself, and for other tokens. */
static void search(const CorpusIndex *x, int32_t n_vocab) {
    int64_t n_places = (int64_t)x->header->n_places;
    check_span(x, (CorpusSpan){0, n_places}, n_vocab);
    for (int64_t k = 0; k < N_QUERIES; k++) {
        int32_t query[CORPUS_MAX_QUERY];
        int32_t n = 1 + (int32_t)(k * 5 % CORPUS_MAX_QUERY);
        for (int32_t i = 0; i < n; i++) {
            int32_t token = n_places ? corpus_token(x, k * n_places / N_QUERIES, i) : -1;
            query[i] = token >= 0 ? token : (int32_t)((k * 31 + i * 7) % n_vocab);
        }
        CorpusSpan span = corpus_find(x, query, n);
        check_span(x, span, n_vocab);
        int32_t length = corpus_longest(x, query, n, 1, n, &span);
        fr_assert(length >= 0 && length <= n);
        if (length) check_span(x, span, n_vocab);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static const int32_t vocabularies[] = {40, 270, 70000}; /* tokens of one, two and three bytes */
    void *aligned = aligned_alloc(8, n / 8 * 8 + 8);
    fr_assert(aligned);
    if (n) memcpy(aligned, bytes, n);
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        CorpusIndex x = {0};
        fr_error err = {0};
        if (corpus_open_memory(&x, aligned, n, "fuzz", vocabularies[i], NULL, &err) == FR_OK)
            search(&x, vocabularies[i]);
        else fr_assert(err.code != FR_OK && err.message[0] != '\0');
        corpus_close(&x);
    }
    free(aligned);
    return 0;
}

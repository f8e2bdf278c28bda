#include "train/data/sequences.h"

#include "train/data/permutation.h"

#include <stdlib.h>
#include <string.h>

enum { NARROW_MAX_VOCAB = 1 << 15 };
static const uint16_t WORD_IN_LOSS = (uint16_t)1 << 15;
static const uint32_t LONG_IN_LOSS = (uint32_t)1 << 31;

void sequences_begin(Sequences *s, int32_t n_vocab, int32_t length, bool packs) {
    *s = (Sequences){.length = length, .packs = packs, .narrow = n_vocab <= NARROW_MAX_VOCAB};
}

void sequences_free(Sequences *s) {
    free(s->words);
    free(s->longs);
    free(s->spans);
    *s = (Sequences){0};
}

/* Room for n elements, twice as much as before at least; false: no memory, and all is as it was. */
static bool grow(void **array, int64_t *capacity, int64_t n, size_t bytes_each) {
    if (n <= *capacity) return true;
    int64_t wanted = *capacity * 2 > n ? *capacity * 2 : n + 1024;
    void *bigger = (uint64_t)wanted > SIZE_MAX / bytes_each ? NULL : realloc(*array, (size_t)wanted * bytes_each);
    if (!bigger) return false;
    *array = bigger;
    *capacity = wanted;
    return true;
}

int32_t sequences_token(const Sequences *s, int64_t i) {
    return s->narrow ? s->words[i] & ~WORD_IN_LOSS : (int32_t)(s->longs[i] & ~LONG_IN_LOSS);
}

static bool counts_at(const Sequences *s, int64_t i) {
    return s->narrow ? (s->words[i] & WORD_IN_LOSS) != 0 : (s->longs[i] & LONG_IN_LOSS) != 0;
}

/* Cuts the tokens [first, end) into sequences; those from which nothing is to be learned are left out. */
static int cut(Sequences *s, int64_t first, int64_t end, fr_error *err) {
    for (; first + 1 < end; first += s->length) {
        int32_t n = end - 1 - first < s->length ? (int32_t)(end - 1 - first) : s->length;
        int64_t n_counted = 0;
        for (int64_t i = first + 1; i <= first + n; i++) n_counted += counts_at(s, i);
        if (!n_counted) continue;
        if (!grow((void **)&s->spans, &s->spans_capacity, s->n + 1, sizeof *s->spans))
            return error_memory(err, "the list of sequences", (size_t)s->n * sizeof *s->spans);
        s->spans[s->n++] = (SequenceSpan){first, n};
        s->n_counted += n_counted;
    }
    return FR_OK;
}

int sequences_add(Sequences *s, const Document *d, fr_error *err) {
    int64_t first = s->n_tokens, n = first + d->n;
    size_t bytes_each = s->narrow ? sizeof *s->words : sizeof *s->longs;
    if (!grow(s->narrow ? (void **)&s->words : (void **)&s->longs, &s->capacity, n, bytes_each))
        return error_memory(err, "the tokens of the training data; train on fewer files at once", (size_t)n * bytes_each);
    for (int64_t i = 0; i < d->n; i++) {
        if (s->narrow) s->words[first + i] = (uint16_t)(d->tokens[i] | (d->loss_mask[i] ? WORD_IN_LOSS : 0));
        else s->longs[first + i] = (uint32_t)d->tokens[i] | (d->loss_mask[i] ? LONG_IN_LOSS : 0);
    }
    s->n_tokens = n;
    return s->packs ? FR_OK : cut(s, first, n, err);
}

int sequences_end(Sequences *s, fr_error *err) { return s->packs ? cut(s, 0, s->n_tokens, err) : FR_OK; }

void sequences_get(const Sequences *s, int64_t i, int32_t *tokens, uint8_t *loss_mask) {
    SequenceSpan span = s->spans[i];
    for (int32_t j = 0; j <= s->length; j++) tokens[j] = j <= span.n ? sequences_token(s, span.first + j) : 0;
    for (int32_t j = 0; j < s->length; j++) loss_mask[j] = j < span.n && counts_at(s, span.first + j + 1);
}

void sequences_batch(const Sequences *s, uint64_t seed, int64_t first, int32_t n, int32_t *tokens, uint8_t *loss_mask) {
    for (int64_t j = 0; j < n; j++) {
        int64_t place = first + j;
        int64_t i = permutation_at(seed, (uint32_t)(place / s->n), s->n, place % s->n);
        sequences_get(s, i, tokens + j * (s->length + 1), loss_mask + j * s->length);
    }
}

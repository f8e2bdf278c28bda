/* sequences.c - stores tokens with their loss mask in one array, and cuts them into sequences by offset.
 *
 * The mask is the top bit of a token's 16 or 32 bits, so that a corpus costs little more memory than its tokens.
 * Batches are gathered from the array in an order that permutation.h computes. */
#include "train/data/sequences.h"

#include "train/data/permutation.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VOCAB_16 = 1 << 15 };
static const uint16_t IN_LOSS_16 = (uint16_t)1 << 15;
static const uint32_t IN_LOSS_32 = (uint32_t)1 << 31;

void sequences_begin(Sequences *s, int32_t n_vocab, int32_t length, bool packs) {
    *s = (Sequences){.length = length, .packs = packs, .is_16_bit = n_vocab <= MAX_VOCAB_16};
}

void sequences_free(Sequences *s) {
    free(s->tokens16);
    free(s->tokens32);
    free(s->spans);
    *s = (Sequences){0};
}

/* Makes room for n elements, at least doubling the capacity. False: no memory, and nothing has changed. */
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
    return s->is_16_bit ? s->tokens16[i] & ~IN_LOSS_16 : (int32_t)(s->tokens32[i] & ~IN_LOSS_32);
}

static bool in_loss(const Sequences *s, int64_t i) {
    return s->is_16_bit ? (s->tokens16[i] & IN_LOSS_16) != 0 : (s->tokens32[i] & IN_LOSS_32) != 0;
}

/* Cuts tokens first .. end - 1 into sequences; sequences without a prediction in the loss are left out. */
static int cut(Sequences *s, int64_t first, int64_t end, fr_error *err) {
    for (; first + 1 < end; first += s->length) {
        int32_t n = end - 1 - first < s->length ? (int32_t)(end - 1 - first) : s->length;
        int64_t n_counted = 0;
        for (int64_t i = first + 1; i <= first + n; i++) n_counted += in_loss(s, i);
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
    size_t bytes_each = s->is_16_bit ? sizeof *s->tokens16 : sizeof *s->tokens32;
    if (!grow(s->is_16_bit ? (void **)&s->tokens16 : (void **)&s->tokens32, &s->capacity, n, bytes_each))
        return error_memory(err, "the tokens of the training data; train on fewer files at once",
                            (size_t)n * bytes_each);
    for (int64_t i = 0; i < d->n; i++) {
        if (s->is_16_bit) s->tokens16[first + i] = (uint16_t)(d->tokens[i] | (d->loss_mask[i] ? IN_LOSS_16 : 0));
        else s->tokens32[first + i] = (uint32_t)d->tokens[i] | (d->loss_mask[i] ? IN_LOSS_32 : 0);
    }
    s->n_tokens = n;
    return s->packs ? FR_OK : cut(s, first, n, err);
}

int sequences_end(Sequences *s, fr_error *err) { return s->packs ? cut(s, 0, s->n_tokens, err) : FR_OK; }

void sequences_get(const Sequences *s, int64_t i, int32_t *tokens, uint8_t *loss_mask) {
    SequenceSpan span = s->spans[i];
    for (int32_t j = 0; j <= s->length; j++) tokens[j] = j <= span.n ? sequences_token(s, span.first + j) : 0;
    for (int32_t j = 0; j < s->length; j++) loss_mask[j] = j < span.n && in_loss(s, span.first + j + 1);
}

void sequences_batch(const Sequences *s, uint64_t seed, int64_t first, int32_t n, int32_t *tokens, uint8_t *loss_mask) {
    for (int64_t j = 0; j < n; j++) {
        int64_t at = first + j;
        int64_t i = permutation_at(seed, (uint32_t)(at / s->n), s->n, at % s->n);
        sequences_get(s, i, tokens + j * (s->length + 1), loss_mask + j * s->length);
    }
}

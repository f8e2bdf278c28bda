/* sequences.h - documents as sequences of one length, in memory: 2 bytes a token where the vocabulary has at most 32768
 * of them, else 4. */
#ifndef DATA_SEQUENCES_H
#define DATA_SEQUENCES_H

#include "train/data/document.h"

typedef struct SequenceSpan {
    int64_t first; /* token */
    int32_t n;     /* predictions, 1 .. length: of the tokens first + 1 .. first + n */
} SequenceSpan;

typedef struct Sequences {
    int32_t length;
    bool packs;          /* documents lie one behind the other and are cut anywhere; else each begins a sequence */
    bool narrow;
    uint16_t *words;     /* [n_tokens] narrow: token, and bit 15 where its prediction counts */
    uint32_t *longs;     /* [n_tokens] else, with bit 31 */
    int64_t n_tokens, capacity;
    int64_t n_counted;   /* predictions that count, of all sequences */
    SequenceSpan *spans; /* [n]: sequences with at least one prediction that counts */
    int64_t n, spans_capacity;
} Sequences;

void sequences_begin(Sequences *s, int32_t n_vocab, int32_t length, bool packs);
int sequences_add(Sequences *s, const Document *d, fr_error *err); /* the document may be freed afterwards */
int sequences_end(Sequences *s, fr_error *err);                    /* after the last document */
void sequences_free(Sequences *s);

int32_t sequences_token(const Sequences *s, int64_t i); /* token i of all, below n_tokens */

/* Sequence i: tokens[length + 1], counts[length]. Behind the end of a short one: token 0, which does not count. */
void sequences_get(const Sequences *s, int64_t i, int32_t *tokens, uint8_t *loss_mask);

/* The n sequences from place `first` of an endless run on: every n-th epoch of the run has each sequence once, in the
 * order of permutation_at. tokens[n][length + 1], counts[n][length]. s->n > 0. */
void sequences_batch(const Sequences *s, uint64_t seed, int64_t first, int32_t n, int32_t *tokens, uint8_t *loss_mask);

#endif

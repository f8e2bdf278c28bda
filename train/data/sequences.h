/* sequences.h - documents as sequences of one length, in memory: 2 bytes per token where the vocabulary has at most
 * 32768 tokens, else 4. */
#ifndef DATA_SEQUENCES_H
#define DATA_SEQUENCES_H

#include "train/data/document.h"

typedef struct SequenceSpan {
    int64_t first; /* token */
    int32_t n;     /* predictions, 1 .. length: of the tokens first + 1 .. first + n */
} SequenceSpan;

typedef struct Sequences {
    int32_t length;
    bool packs; /* documents are concatenated and cut anywhere; else each document begins a sequence */
    bool is_16_bit;
    uint16_t *tokens16; /* [n_tokens] if is_16_bit: the token, and bit 15 if its prediction is in the loss */
    uint32_t *tokens32; /* [n_tokens] else, with bit 31 */
    int64_t n_tokens, capacity;
    int64_t n_counted;   /* predictions in the loss, over all sequences */
    SequenceSpan *spans; /* [n]: sequences with at least one prediction in the loss */
    int64_t n, spans_capacity;
} Sequences;

void sequences_begin(Sequences *s, int32_t n_vocab, int32_t length, bool packs);
int sequences_add(Sequences *s, const Document *d, fr_error *err); /* the document may be freed afterwards */
int sequences_end(Sequences *s, fr_error *err);                    /* after the last document */
void sequences_free(Sequences *s);

int32_t sequences_token(const Sequences *s, int64_t i); /* i: below n_tokens */

/* Sequence i: tokens[length + 1], loss_mask[length]. A short one is padded with token 0, outside the loss. */
void sequences_get(const Sequences *s, int64_t i, int32_t *tokens, uint8_t *loss_mask);

/* Sequences number first .. first + n - 1 of an endless run, in which every epoch has each of the s->n sequences once,
 * in the order of permutation_at. tokens[n][length + 1], loss_mask[n][length]. s->n > 0. */
void sequences_batch(const Sequences *s, uint64_t seed, int64_t first, int32_t n, int32_t *tokens, uint8_t *loss_mask);

#endif

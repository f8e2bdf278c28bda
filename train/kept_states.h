/* kept_states.h - the target's hidden states of sequences that come again, in memory.
 *
 * A training of several epochs reads each sequence once in each epoch, and those that are held out at every validation.
 * The frozen target gives the same states each time, and computing them takes longer than everything else: it runs all
 * layers, where a drafter has one or two. So the states of the first time are kept as long as there is room. Which
 * sequences have room does not matter, because each epoch has every sequence once. */
#ifndef TRAIN_KEPT_STATES_H
#define TRAIN_KEPT_STATES_H

#include <stddef.h>
#include <stdint.h>

typedef struct KeptStates {
    size_t max_bytes, bytes;
    void *tree; /* of tsearch, by tokens */
    struct KeptSequence *last;
} KeptStates; /* set max_bytes, and the rest to zero. Not for several threads at once */

/* Returns the bytes that a sequence of n tokens takes, whose states are n_numbers floats. */
size_t kept_states_bytes(int32_t n, size_t n_numbers);

/* Returns the states of a sequence of these n tokens, valid until kept_states_free; NULL: they were not kept. */
const float *kept_states_find(const KeptStates *k, const int32_t *tokens, int32_t n);

/* Makes room for the states, n_numbers floats, of a sequence that was not found; the caller fills them in. Returns NULL
 * if with them all would take more than `most` bytes, or max_bytes, or there is no memory: then they are not kept. */
float *kept_states_add(KeptStates *k, const int32_t *tokens, int32_t n, size_t n_numbers, size_t most);

void kept_states_free(KeptStates *k); /* may be filled again */

#endif

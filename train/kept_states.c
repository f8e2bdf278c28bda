/* kept_states.c - the target's hidden states of sequences that come again, in a search tree of the C library.
 *
 * A training of several epochs reads each sequence once in each epoch, and those that are held out at every validation.
 * The frozen target gives the same states each time, and they are costly: it runs all layers, where a drafter has one
 * or two. So the states of the first time are kept as long as there is room. Which sequences have room does not
 * matter, because each epoch has every sequence once.
 *
 * Test: test_kept_states.c. */
#include "base/mem.h"
#include "train/drafter_trainer.h"

#include <search.h>
#include <string.h>

typedef struct KeptSequence {
    struct KeptSequence *before;
    int32_t n;
    const int32_t *tokens; /* [n], behind the numbers */
    float numbers[];
} KeptSequence;

static int compare(const void *a, const void *b) {
    const KeptSequence *x = a, *y = b;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return memcmp(x->tokens, y->tokens, (size_t)x->n * sizeof *x->tokens);
}

const float *kept_states_find(const KeptStates *k, const int32_t *tokens, int32_t n) {
    const KeptSequence key = {.n = n, .tokens = tokens};
    KeptSequence *const *found = tfind(&key, &k->tree, compare);
    return found ? (*found)->numbers : NULL;
}

size_t kept_states_bytes(int32_t n, size_t n_numbers) {
    return sizeof(KeptSequence) + n_numbers * sizeof(float) + (size_t)n * sizeof(int32_t);
}

float *kept_states_add(KeptStates *k, const int32_t *tokens, int32_t n, size_t n_numbers, size_t most) {
    size_t bytes = kept_states_bytes(n, n_numbers);
    if (most > k->max_bytes) most = k->max_bytes;
    if (bytes > most || k->bytes > most - bytes) return NULL;
    KeptSequence *s = mem_alloc(bytes);
    if (!s) return NULL;
    int32_t *copy = (int32_t *)(void *)(s->numbers + n_numbers);
    memcpy(copy, tokens, (size_t)n * sizeof *tokens);
    s->before = k->last, s->n = n, s->tokens = copy;
    if (!tsearch(s, &k->tree, compare)) {
        mem_free(s);
        return NULL;
    }
    k->last = s;
    k->bytes += bytes;
    return s->numbers;
}

void kept_states_free(KeptStates *k) {
    for (KeptSequence *s = k->last, *before; s; s = before) {
        before = s->before;
        tdelete(s, &k->tree, compare);
        mem_free(s);
    }
    *k = (KeptStates){.max_bytes = k->max_bytes};
}

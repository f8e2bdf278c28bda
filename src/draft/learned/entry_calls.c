/* entry_calls.c - the calls of a DrafterClass for methods whose sequences have entries (layer_entries.h): each tells
 * the common part of learned drafters what happened to a sequence, and then its entries. */
#include "draft/learned/layer_entries.h"

static EntryQueue *entries_of(const Drafter *drafter) { return ((const LearnedDrafter *)drafter)->entries; }

int entries_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = learned_begin(drafter, sequence, tokens, n, err);
    return status ? status : entry_queue_begin(entries_of(drafter), sequence, err);
}

int entries_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                           fr_error *err) {
    const int32_t *after = ((LearnedDrafter *)drafter)->sequences[sequence].context + first + 1;
    int status = learned_observe_prompt(drafter, sequence, first, hidden, n, err);
    return status ? status : entry_queue_add(entries_of(drafter), sequence, after, hidden, n, err);
}

int entries_observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    int status = learned_observe_tree(drafter, sequence, v, err);
    return status ? status : entry_queue_add_step(entries_of(drafter), sequence, v, err);
}

void entries_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    if (to < ((LearnedDrafter *)drafter)->max_sequences) learned_take_over(drafter, from, to, n);
    entry_queue_take_over(entries_of(drafter), from, to, n);
}

int32_t entries_n_held(const Drafter *drafter, int32_t sequence) {
    return entry_queue_n_held(entries_of(drafter), sequence);
}

bool entries_save(const Drafter *drafter, int32_t sequence, Buf *out) {
    return entry_queue_save(entries_of(drafter), sequence, out);
}

int entries_load(Drafter *drafter, int32_t sequence, ByteReader *in, fr_error *err) {
    return entry_queue_load(entries_of(drafter), sequence, in, err);
}

void entries_end(Drafter *drafter, int32_t sequence) {
    entry_queue_end(entries_of(drafter), sequence);
    learned_end(drafter, sequence);
}

/* states_parts.h - the inside of GrammarStates, for states.c and states_intern.c. */
#ifndef GRAMMAR_STATES_PARTS_H
#define GRAMMAR_STATES_PARTS_H

#include "grammar/states.h"

typedef struct CallItem { /* a call that is to be made in the second phase */
    int32_t rule;
    GrammarFrame frame; /* the caller */
} CallItem;

struct GrammarStates {
    const Automaton *automaton;
    HashKey key;
    GrammarState **table; /* [n_slots] open addressing, a power of two; NULL: free */
    size_t n_slots, n_states, n_bytes;
    struct StateChunk *chunks;
    const GrammarState *start;
    /* Scratch of states_next: */
    GrammarFrame *places, *met; /* the new state; every place that was met in the first phase */
    int32_t n_places, n_met, place_capacity, met_capacity;
    uint32_t *met_slots; /* [n_met_slots] 1 + index into met; 0: free */
    size_t n_met_slots;
    CallItem *items; /* a heap */
    int32_t n_items, item_capacity;
    bool is_full;         /* memory or MAX_PLACES ran out */
    bool has_many_places; /* it was MAX_PLACES */
};

uint64_t states_hash_frame(const GrammarStates *s, uint64_t hash,
                           const GrammarFrame *f); /* the high bits are the good ones */
bool states_make_start(GrammarStates *s);          /* states.c */

#endif

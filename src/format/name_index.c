#include "format/name_index.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

bool name_index_init(NameIndex *index, size_t n) {
    size_t n_slots = 2;
    while (n_slots / 2 < n) n_slots *= 2;
    index->slots = mem_calloc(n_slots, sizeof *index->slots);
    index->n_slots = index->slots ? n_slots : 0;
    return index->slots != NULL;
}

void name_index_free(NameIndex *index) {
    mem_free(index->slots);
    *index = (NameIndex){0};
}

/* The slot that holds the name, or the free one where it would go. */
static NameSlot *slot_of(const NameIndex *index, const char *name) {
    size_t i = (size_t)hash64(name, strlen(name), 0);
    for (;; i++) {
        NameSlot *slot = &index->slots[i & (index->n_slots - 1)];
        if (!slot->name || strcmp(slot->name, name) == 0) return slot;
    }
}

bool name_index_add(NameIndex *index, const char *name, int64_t id) {
    NameSlot *slot = slot_of(index, name);
    if (slot->name) return false;
    *slot = (NameSlot){name, id};
    return true;
}

int64_t name_index_find(const NameIndex *index, const char *name) {
    const NameSlot *slot = slot_of(index, name);
    return slot->name ? slot->id : -1;
}

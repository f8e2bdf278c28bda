#include "text/piece_table.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

/* The slot of the key, or the free one where it belongs. */
static PieceSlot *slot_of(const PieceTable *t, const char *key, size_t n) {
    size_t mask = t->n_slots - 1;
    for (size_t i = hash64(key, n, 0) & mask;; i = (i + 1) & mask) {
        PieceSlot *s = &t->slots[i];
        if (!s->key || (s->n == n && memcmp(s->key, key, n) == 0)) return s;
    }
}

static bool grow(PieceTable *t) {
    PieceTable bigger = {.n_slots = t->n_slots ? 2 * t->n_slots : 1024, .n_taken = t->n_taken};
    bigger.slots = mem_calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots) return false;
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].key) *slot_of(&bigger, t->slots[i].key, t->slots[i].n) = t->slots[i];
    mem_free(t->slots);
    *t = bigger;
    return true;
}

bool piece_table_add(PieceTable *t, const char *key, size_t n, int32_t id, int32_t *got) {
    if (2 * (t->n_taken + 1) > t->n_slots && !grow(t)) return false;
    PieceSlot *s = slot_of(t, key, n);
    if (!s->key) {
        *s = (PieceSlot){key, (uint32_t)n, id};
        t->n_taken++;
    }
    *got = s->id;
    return true;
}

int32_t piece_table_find(const PieceTable *t, const char *key, size_t n) {
    if (!t->slots) return -1;
    const PieceSlot *s = slot_of(t, key, n);
    return s->key ? s->id : -1;
}

void piece_table_close(PieceTable *t) {
    mem_free(t->slots);
    *t = (PieceTable){0};
}

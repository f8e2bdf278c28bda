/* hash_table.c - open addressing with linear probing; a table that is half full doubles. */
#include "base/hash_table.h"

#include "base/mem.h"

#include <string.h>

enum { FIRST_SLOTS = 64 };

/* The slot of the key, or the free one where it belongs. */
static HashSlot *slot_of(const HashTable *t, const char *key, size_t n) {
    size_t mask = t->n_slots - 1;
    for (size_t i = keyed_hash(&t->key, key, n) & mask;; i = (i + 1) & mask) {
        HashSlot *s = &t->slots[i];
        if (!s->key || (s->n == n && memcmp(s->key, key, n) == 0)) return s;
    }
}

static bool grow(HashTable *t) {
    HashTable bigger = {.n_slots = t->n_slots ? 2 * t->n_slots : FIRST_SLOTS,
                        .n_taken = t->n_taken,
                        .key = t->n_slots ? t->key : hash_key_new()};
    bigger.slots = mem_calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots) return false;
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].key) *slot_of(&bigger, t->slots[i].key, t->slots[i].n) = t->slots[i];
    mem_free(t->slots);
    *t = bigger;
    return true;
}

bool hash_table_add(HashTable *t, const char *key, size_t n, int32_t id, int32_t *got) {
    if (2 * (t->n_taken + 1) > t->n_slots && !grow(t)) return false;
    HashSlot *s = slot_of(t, key, n);
    if (!s->key) {
        *s = (HashSlot){key, (uint32_t)n, id};
        t->n_taken++;
    }
    *got = s->id;
    return true;
}

int32_t hash_table_find(const HashTable *t, const char *key, size_t n) {
    if (!t->slots) return -1;
    const HashSlot *s = slot_of(t, key, n);
    return s->key ? s->id : -1;
}

void hash_table_close(HashTable *t) {
    mem_free(t->slots);
    *t = (HashTable){0};
}

/* hash_table.h - a hash table from byte strings to numbers, which is filled and read but never shrinks. Zero-initialise
 * it. Each table hashes with a random key of its own (keyed_hash.h), so that no file can choose keys that collide. */
#ifndef BASE_HASH_TABLE_H
#define BASE_HASH_TABLE_H

#include "base/keyed_hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct HashSlot {
    const char *key; /* borrowed; NULL: the slot is free */
    uint32_t n;      /* bytes of the key */
    int32_t id;
} HashSlot;

typedef struct HashTable {
    HashSlot *slots; /* [n_slots], a power of two; at most half of them are taken */
    size_t n_slots, n_taken;
    HashKey key; /* set with the first slots */
} HashTable;

/* Adds key -> id unless the key is there already; *got is the id that the key has then. The n bytes must outlive the
 * table, n < 2^32. False: no memory. */
bool hash_table_add(HashTable *t, const char *key, size_t n, int32_t id, int32_t *got);
/* The id of a key; -1: it is not there. */
int32_t hash_table_find(const HashTable *t, const char *key, size_t n);
/* Frees the slots; the table is empty then, and can be used again. */
void hash_table_close(HashTable *t);

#endif

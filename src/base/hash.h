/* hash.h - fingerprints of bytes, hashes under a secret key, and a hash table. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- fingerprints -------------------------------------------------------------------------------------------- */

/* Returns a 64-bit fingerprint of bytes (XXH3 from libxxhash), which is not for security. The seed chains fingerprints:
 * hash64(b, n, hash64(a, m, 0)) is the fingerprint of a followed by b. */
uint64_t hash64(const void *bytes, size_t n, uint64_t seed);

/* Returns the same number. The bytes are read in pieces, each of which is passed to `done` after it was read: a caller
 * that maps a file gives its pages back (mapped_file_release). */
uint64_t hash64_in_pieces(const void *bytes, size_t n, uint64_t seed, void (*done)(const void *piece, size_t n));

/* ---- hashes under a key that is drawn at random in every process --------------------------------------------- */

/* They are for tables whose keys come from files and texts.
 *
 * With a hash that everybody can compute, somebody can make a file whose keys all fall into one slot, so that a table
 * takes quadratic time. Nobody outside the process knows the random key, so nobody can choose such names.
 *
 * The hashes differ from run to run. They may decide where an entry lies in a table, and nothing else: no result, no
 * order and no file may depend on them. What is written to a file or compared between runs uses hash64. */

typedef struct HashKey {
    uint64_t a, b;
} HashKey;

/* Returns a fresh key from the system's random numbers. */
HashKey hash_key_new(void);

/* SipHash-1-3 of n bytes. */
uint64_t keyed_hash(const HashKey *key, const void *bytes, size_t n);

/* Returns a faster hash of one number; its high bits are better than its low ones. */
static inline uint64_t keyed_hash_u64(const HashKey *key, uint64_t v) {
    uint64_t h = (v ^ key->a) * (key->b | 1);
    h = (h ^ h >> 32) * (key->a | 1);
    return (h ^ h >> 29) * 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio: carries all bits into the high ones */
}

/* The same for two numbers. */
static inline uint64_t keyed_hash_pair(const HashKey *key, int32_t x, int32_t y) {
    return keyed_hash_u64(key, (uint64_t)(uint32_t)x << 32 | (uint32_t)y);
}

/* ---- a hash table from byte strings to numbers --------------------------------------------------------------- */

/* A table is filled and read but never shrinks. Zero-initialise it. Each table hashes with a random key of its own, so
 * that no file can choose keys that collide. */

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
/* Returns the id of a key; -1: it is not there. */
int32_t hash_table_find(const HashTable *t, const char *key, size_t n);
/* Frees the slots. The table is then empty and can be used again. */
void hash_table_close(HashTable *t);

#endif

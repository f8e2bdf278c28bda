/* keyed_hash.h - hashes under a key that is drawn at random in every process, for tables whose keys come from files and
 * texts.
 *
 * With a hash that everybody can compute, a file can be made whose keys all fall into one slot, and a table then takes
 * quadratic time. Nobody outside the process knows the key, so nobody can choose such names.
 *
 * Every run has other hashes. They may decide where an entry lies in a table, and nothing else: no result, no order and
 * no file may depend on them. What is written to a file or compared between runs uses hash64 (hash.h).
 */
#ifndef BASE_KEYED_HASH_H
#define BASE_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct HashKey {
    uint64_t a, b;
} HashKey;

/* A fresh key from the system's random numbers. */
HashKey hash_key_new(void);

/* SipHash-1-3 of n bytes. */
uint64_t keyed_hash(const HashKey *key, const void *bytes, size_t n);

/* A faster hash of one number, of which the high bits are the good ones. */
static inline uint64_t keyed_hash_u64(const HashKey *key, uint64_t v) {
    uint64_t h = (v ^ key->a) * (key->b | 1);
    h = (h ^ h >> 32) * (key->a | 1);
    return (h ^ h >> 29) * 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio: carries all bits into the high ones */
}

/* The same for two numbers. */
static inline uint64_t keyed_hash_pair(const HashKey *key, int32_t x, int32_t y) {
    return keyed_hash_u64(key, (uint64_t)(uint32_t)x << 32 | (uint32_t)y);
}

#endif

/* hash.h - a 64-bit fingerprint of bytes (XXH3 from libxxhash). Not for security. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The seed chains fingerprints: hash64(b, n, hash64(a, m, 0)) is one of a followed by b. */
uint64_t hash64(const void *bytes, size_t n, uint64_t seed);

#endif

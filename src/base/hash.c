/* hash.c - XXH3 behind one function, so that the library appears in one place. */
#include "base/hash.h"

#include <xxhash.h>

uint64_t hash64(const void *bytes, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(bytes, n, seed); }

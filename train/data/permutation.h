/* permutation.h - the order of an epoch, without a table. */
#ifndef DATA_PERMUTATION_H
#define DATA_PERMUTATION_H

#include <stdint.h>

/* The image of i under a permutation of 0 .. n-1, one for each seed and epoch; 1 <= n <= 2^62, 0 <= i < n. */
int64_t permutation_at(uint64_t seed, uint32_t epoch, int64_t n, int64_t i);

#endif

/* permutation.c - a Feistel network over the indices.
 *
 * A resumed run must find the next sequence from the number of the training step alone, so the order of an epoch is
 * computed and not stored. An index is cut into a left and a right half of h bits. A round exchanges the halves and
 * combines one (by exclusive or) with a function of the other, which can be undone, so every round is a permutation of
 * 0 .. 4^h - 1 (Luby and Rackoff 1988). A result outside 0 .. n-1 goes through the network again until it falls inside
 * (cycle walking: Black and Rogaway 2002), which takes fewer than 4 passes on average because 4^h < 4n. Test:
 * test_dataset.c checks that the result is a permutation, and another one for each epoch. */
#include "train/data/permutation.h"

#include "base/rng.h"

enum { N_ROUNDS = 6 };

static uint64_t one_pass(uint64_t seed, uint32_t epoch, int n_bits, uint64_t x) {
    uint64_t mask = ((uint64_t)1 << n_bits) - 1, left = x >> n_bits, right = x & mask;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        uint32_t words[4];
        rng_words(seed, RNG_ORDER, (uint64_t)epoch << 32 | right, round, words);
        uint64_t mixed = left ^ (words[0] & mask);
        left = right;
        right = mixed;
    }
    return left << n_bits | right;
}

int64_t permutation_at(uint64_t seed, uint32_t epoch, int64_t n, int64_t i) {
    int n_bits = 1;
    while ((uint64_t)1 << 2 * n_bits < (uint64_t)n) n_bits++;
    uint64_t x = (uint64_t)i;
    do x = one_pass(seed, epoch, n_bits, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}

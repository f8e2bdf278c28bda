/* kernel_numbers.h - one stream of random numbers for the tests of kernels, the same in every run. */
#ifndef KERNEL_NUMBERS_H
#define KERNEL_NUMBERS_H

#include "base/rng.h"

static inline uint32_t random_u32(void) {
    static uint32_t counter, w[4];
    if (counter % 4 == 0) rng_words(77, RNG_TEST, 0, counter / 4, w);
    return w[counter++ % 4];
}

/* Returns a number from -1 to 1. */
static inline float random_float(void) { return (float)(int32_t)random_u32() * 0x1p-31f; }

#endif

/* rng.h - counter-based random numbers: a pure function of (seed, stream, counter) that keeps no state.
 *
 * Philox4x32-10 (Salmon et al. 2011) from the Random123 library. A draw depends only on its key, so the
 * same position of the same request sees the same noise, whatever was drafted, batched or computed again.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

/* The purpose of a draw. Draws for different purposes never share noise. */
typedef enum RngStream {
    RNG_TARGET = 0, /* the target's own token: counter = (output position, token id) */
    RNG_DRAFT = 1,  /* a drafter's choice that is not coupled to the target */
    RNG_VERIFY = 2, /* the random source of ratio rules */
    RNG_TEST = 3,
    RNG_INIT = 4,  /* first values of parameters in training */
    RNG_ORDER = 5, /* the order of training data: counter = (epoch, half of an index; round) */
    RNG_NOISE =
        6, /* noise added to hidden states in training: counter = (number of the sequence in the run, component) */
    RNG_ANCHORS = 7, /* where blocks begin in training: counter = (number of the sequence in the run, candidate) */
    RNG_RARE = 16,   /* added to another stream, for the rare noise of its tokens (base/gumbel_row.c) */
} RngStream;

/* Four independent 32-bit words for the key (seed, stream) and the 96-bit counter (a, b). */
void rng_words(uint64_t seed, RngStream stream, uint64_t a, uint32_t b, uint32_t out[4]);

/* Uniform in the open interval (0,1): (word + 1/2) / 2^32, where the word of element b is number b % 4 of
 * rng_words(seed, stream, a, b / 4). */
double rng_uniform(uint64_t seed, RngStream stream, uint64_t a, uint32_t b);

#endif

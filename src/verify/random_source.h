/* random_source.h - an interface for the random choices of a ratio rule. They are either keyed by a seed or enumerated
 * by a script.
 *
 * A keyed source makes a run a pure function of its seed. A script runs the same code once for every possible outcome
 * of its random choices, so that the distribution of the result is summed exactly:
 *
 *   random_script_begin(&s);
 *   do {
 *       ... run, with &s.random_source ...
 *       dist[result] += s.chance;
 *   } while (random_script_next(&s));
 */
#ifndef SAMPLING_RANDOM_SOURCE_H
#define SAMPLING_RANDOM_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct RandomSource RandomSource;
struct RandomSource {
    /* True with probability `chance`. A chance >= 1 always and one <= 0 never comes true; neither uses any
     * randomness. */
    bool (*flip)(RandomSource *r, double chance);
    /* Picks an index below n with probability proportional to weights[n] >= 0. An index of weight 0 is picked only
     * if all weights are 0. */
    int32_t (*pick)(RandomSource *r, const double *weights, int32_t n);
};

/* The random source of one step of one request: choice number i uses 53 bits of the stream RNG_VERIFY at (seed,
 * position, i). For the whole step `position` is the position of the first token that the step decides: a
 * rule may use random numbers on tokens that it then does not emit, and the step that decides these tokens must not
 * meet the same random numbers again. */
typedef struct KeyedRandom {
    RandomSource random_source;
    uint64_t seed, position;
    uint32_t n_used;
} KeyedRandom;

void random_keyed(KeyedRandom *k, uint64_t seed, uint64_t position);

/* Visits every possible sequence of outcomes, depth first. Outcomes of probability 0 are left out. */
enum { RANDOM_SCRIPT_MAX = 4096 };
typedef struct RandomScript {
    RandomSource random_source;
    double chance;       /* the probability of this run so far: the product over its outcomes */
    int32_t n, n_played; /* the number of choices in the script, and how many of them this run has made */
    int32_t choice[RANDOM_SCRIPT_MAX], n_choices[RANDOM_SCRIPT_MAX];
} RandomScript;

void random_script_begin(RandomScript *s); /* before the first run */
bool random_script_next(RandomScript *s);  /* before the next run; returns false if there is none */

#endif

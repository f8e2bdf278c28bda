/* random_source.h - the chances that a ratio rule takes: a source of coins that can be keyed, or read from a script.
 *
 * Keyed coins make a run a pure function of its seed. Scripted coins run the same code once for every way the
 * coins can fall, so that the distribution of what it says is summed exactly:
 *
 *   random_script_begin(&s);
 *   do {
 *       ... run, taking coins from &s.coins ...
 *       distribution[what it said] += s.chance;
 *   } while (random_script_next(&s));
 */
#ifndef SAMPLING_RANDOM_SOURCE_H
#define SAMPLING_RANDOM_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct RandomSource RandomSource;
struct RandomSource {
    /* True with that chance; above 1 is certain, 0 and below never happens: such coins are not tossed. */
    bool (*flip)(RandomSource *c, double chance);
    /* An index below n, in proportion to weights[n] >= 0; one of weight 0 only where all are 0. */
    int32_t (*pick)(RandomSource *c, const double *weights, int32_t n);
};

/* RandomSource of one step of one request: coin number i is 53 bits of the stream RNG_VERIFY at (seed, position, i). The
 * position is that of the first token the step decides, for the whole step: a rule may toss for tokens that it
 * then does not say, and the step that decides them must not see these coins again. */
typedef struct KeyedRandom {
    RandomSource random_source;
    uint64_t seed, position;
    uint32_t n_tossed;
} KeyedRandom;

void random_keyed(KeyedRandom *c, uint64_t seed, uint64_t position);

/* Every way the coins can fall, depth first. Impossible ones are not visited. */
enum { RANDOM_SCRIPT_MAX = 4096 };
typedef struct RandomScript {
    RandomSource random_source;
    double chance;       /* of this run so far: the product over its coins */
    int32_t n, n_played; /* coins in the script; of them tossed in this run */
    int32_t choice[RANDOM_SCRIPT_MAX], n_choices[RANDOM_SCRIPT_MAX];
} RandomScript;

void random_script_begin(RandomScript *s); /* before the first run */
bool random_script_next(RandomScript *s);  /* before the next; false: there is none */

#endif

/* coins.h - the chances that a ratio rule takes: a source of coins that can be keyed, or read from a script.
 *
 * Keyed coins make a run a pure function of its seed. Scripted coins run the same code once for every way the
 * coins can fall, so that the law of what it says is summed exactly:
 *
 *   coin_script_begin(&s);
 *   do {
 *       ... run, taking coins from &s.coins ...
 *       law[what it said] += s.chance;
 *   } while (coin_script_next(&s));
 */
#ifndef SPEC_COINS_H
#define SPEC_COINS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Coins Coins;
struct Coins {
    /* True with that chance; above 1 is certain, 0 and below never happens: such coins are not tossed. */
    bool (*flip)(Coins *c, double chance);
    /* An index below n, in proportion to weights[n] >= 0; one of weight 0 only where all are 0. */
    int32_t (*pick)(Coins *c, const double *weights, int32_t n);
};

/* Coins of one step of one request: coin number i is 53 bits of the stream RNG_VERIFY at (seed, position, i). The
 * position is that of the first token the step decides, for the whole step: a rule may toss for tokens that it
 * then does not say, and the step that decides them must not see these coins again. */
typedef struct KeyedCoins {
    Coins coins;
    uint64_t seed, position;
    uint32_t n_tossed;
} KeyedCoins;

void coins_keyed(KeyedCoins *c, uint64_t seed, uint64_t position);

/* Every way the coins can fall, depth first. Impossible ones are not visited. */
enum { COIN_SCRIPT_MAX = 4096 };
typedef struct CoinScript {
    Coins coins;
    double chance;       /* of this run so far: the product over its coins */
    int32_t n, n_played; /* coins in the script; of them tossed in this run */
    int32_t choice[COIN_SCRIPT_MAX], n_choices[COIN_SCRIPT_MAX];
} CoinScript;

void coin_script_begin(CoinScript *s); /* before the first run */
bool coin_script_next(CoinScript *s);  /* before the next; false: there is none */

#endif

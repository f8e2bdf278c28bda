/* random_source.c - keyed and scripted random choices.
 *
 * A script is a path in the tree of all choices. A run replays the path and, past its end, takes the first possible
 * outcome of each new choice, noting how many there are. The next path ends at the last choice that had another
 * outcome left. Example, a flip of chance 1/2 and, if it is true, one of chance 1/3: the runs are (true, true) 1/6,
 * (true, false) 1/3, (false) 1/2. The code under test must make the same choices after the same outcomes, or the sum
 * means nothing. */
#include "verify/random_source.h"

#include "base/error.h"
#include "base/rng.h"

/* A uniform number in [0,1) with 53 bits. With 32 bits a chance of 1e-10 would come out as either 0 or 2e-10. */
static double uniform(KeyedRandom *k) {
    uint32_t w[4];
    rng_words(k->seed, RNG_VERIFY, k->position, k->n_used++, w);
    return (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1p-53;
}

static bool keyed_flip(RandomSource *r, double chance) {
    if (chance >= 1) return true;
    return chance > 0 && uniform((KeyedRandom *)r) < chance;
}

static int32_t keyed_pick(RandomSource *r, const double *weights, int32_t n) {
    double sum = 0;
    int32_t last = 0; /* taken if rounding leaves something of u */
    for (int32_t i = 0; i < n; i++) sum += weights[i];
    double u = uniform((KeyedRandom *)r) * sum;
    for (int32_t i = 0; i < n; i++) {
        if (!(weights[i] > 0)) continue;
        if (u < weights[i]) return i;
        u -= weights[i];
        last = i;
    }
    return last;
}

void random_keyed(KeyedRandom *k, uint64_t seed, uint64_t position) {
    *k = (KeyedRandom){.random_source = {keyed_flip, keyed_pick}, .seed = seed, .position = position};
}

/* Returns the script's outcome for the next choice, which has n possible outcomes. */
static int32_t play(RandomScript *s, int32_t n) {
    int32_t i = s->n_played++;
    fr_assert(i < RANDOM_SCRIPT_MAX);
    if (i == s->n) {
        s->choice[i] = 0;
        s->n_choices[i] = n;
        s->n++;
    }
    fr_assert(s->n_choices[i] == n); /* it fails if the code made other choices after the same outcomes */
    return s->choice[i];
}

static bool script_flip(RandomSource *r, double chance) {
    RandomScript *s = (RandomScript *)r;
    if (chance >= 1) return true;
    if (!(chance > 0)) return false;
    bool heads = play(s, 2) == 0;
    s->chance *= heads ? chance : 1 - chance;
    return heads;
}

static int32_t script_pick(RandomSource *r, const double *weights, int32_t n) {
    RandomScript *s = (RandomScript *)r;
    double sum = 0;
    int32_t n_possible = 0, picked = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += weights[i];
        n_possible += weights[i] > 0;
    }
    if (n_possible == 0) return 0;
    int32_t left = play(s, n_possible);
    for (picked = 0; !(weights[picked] > 0) || left-- > 0;) picked++;
    s->chance *= weights[picked] / sum;
    return picked;
}

void random_script_begin(RandomScript *s) {
    s->random_source = (RandomSource){script_flip, script_pick};
    s->chance = 1;
    s->n = s->n_played = 0;
}

bool random_script_next(RandomScript *s) {
    fr_assert(s->n_played == s->n);
    while (s->n > 0 && s->choice[s->n - 1] == s->n_choices[s->n - 1] - 1) s->n--;
    if (s->n == 0) return false;
    s->choice[s->n - 1]++;
    s->chance = 1;
    s->n_played = 0;
    return true;
}

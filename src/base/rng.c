/* rng.c - Philox4x32-10 of the Random123 library, with (a, b, stream) as its counter and the seed as its key. */
#include "base/rng.h"

#include <Random123/philox.h>

void rng_words(uint64_t seed, RngStream stream, uint64_t a, uint32_t b, uint32_t out[4]) {
    philox4x32_ctr_t counter = {{b, (uint32_t)a, (uint32_t)(a >> 32), (uint32_t)stream}};
    philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    philox4x32_ctr_t r = philox4x32(counter, key);
    for (int i = 0; i < 4; i++) out[i] = r.v[i];
}

/* Four elements share one Philox block: element b is word b%4 of block b/4. */
double rng_uniform(uint64_t seed, RngStream stream, uint64_t a, uint32_t b) {
    uint32_t w[4];
    rng_words(seed, stream, a, b / 4, w);
    return ((double)w[b % 4] + 0.5) * 0x1p-32;
}

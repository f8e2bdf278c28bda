/* noise.c - noise from the counter-based generator (base/rng.h), keyed by seed and sequence number. A resumed run
 * therefore draws the same noise as an undisturbed one, and threads need no shared state. */
#include "train/data/noise.h"

#include "base/rng.h"

void noise_uniform(float *out, int64_t n, double width, uint64_t seed, int64_t i_sequence) {
    uint32_t words[4] = {0};
    for (int64_t k = 0; k < n; k++) {
        if (k % 4 == 0) rng_words(seed, RNG_NOISE, (uint64_t)i_sequence, (uint32_t)(k / 4), words);
        out[k] = (float)(width * (((double)words[k % 4] + 0.5) * 0x1p-31 - 1));
    }
}

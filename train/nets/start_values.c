/* start_values.c - random initial values from the counter-based generator (base/rng.h), so that they are the same on
 * every machine and for every number of threads. */
#include "train/nets/start_values.h"

#include "base/rng.h"

#include <math.h>

/* Four normally distributed numbers, by the method of Box and Muller. */
static void four_normals(uint64_t seed, uint64_t tensor, uint32_t block, double out[4]) {
    uint32_t words[4];
    rng_words(seed, RNG_INIT, tensor, block, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * log(((double)words[i] + 0.5) * 0x1p-32));
        double angle = 2 * M_PI * ((double)words[i + 1] + 0.5) * 0x1p-32;
        out[i] = radius * cos(angle);
        out[i + 1] = radius * sin(angle);
    }
}

void start_normal(float *out, int64_t n, double std, uint64_t seed, uint64_t tensor) {
    double normal[4] = {0};
    for (int64_t k = 0; k < n; k++) {
        if (k % 4 == 0) four_normals(seed, tensor, (uint32_t)(k / 4), normal);
        out[k] = (float)(std * normal[k % 4]);
    }
}

double start_token_std(const float *embd, int64_t V, int64_t C) {
    double squares = 0;
    for (int64_t i = 0; i < V * C; i++) squares += (double)embd[i] * (double)embd[i];
    return squares > 0 ? sqrt((double)V / squares) : 1; /* a row's squares sum to squares / V */
}

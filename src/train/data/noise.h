/* noise.h - the noise that EAGLE's layer hears while it learns. */
#ifndef DATA_NOISE_H
#define DATA_NOISE_H

#include <stdint.h>

/* out: [n] independent numbers, uniform in (-width, width): those of the sequence at that place of the run. */
void noise_uniform(float *out, int64_t n, double width, uint64_t seed, int64_t place);

#endif

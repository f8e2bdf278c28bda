/* noise.h - the noise added to the hidden states that EAGLE's layer reads in training. */
#ifndef DATA_NOISE_H
#define DATA_NOISE_H

#include <stdint.h>

/* out: [n] independent numbers, uniform in (-width, width), for sequence number `i_sequence` of the run. */
void noise_uniform(float *out, int64_t n, double width, uint64_t seed, int64_t i_sequence);

#endif

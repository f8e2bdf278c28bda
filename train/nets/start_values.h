/* start_values.h - the initial values of parameters. */
#ifndef NETS_START_VALUES_H
#define NETS_START_VALUES_H

#include <stdint.h>

/* n normally distributed numbers of standard deviation std, each a function of (seed, tensor, its index) alone. */
void start_normal(float *out, int64_t n, double std, uint64_t seed, uint64_t tensor);

/* The standard deviation for a matrix that reads embeddings, such that its outputs are about 1, as large as the
 * components of a hidden state. Embeddings are small numbers, and with the usual 0.02 the token would hardly matter for
 * long. embd: [V][C]. */
double start_token_std(const float *embd, int64_t V, int64_t C);

#endif

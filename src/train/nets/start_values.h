/* start_values.h - the first values of parameters. */
#ifndef NETS_START_VALUES_H
#define NETS_START_VALUES_H

#include <stdint.h>

/* n normal numbers of deviation std, each a function of (seed, tensor, its place) alone. */
void start_normal(float *out, int64_t n, double std, uint64_t seed, uint64_t tensor);

/* The deviation of a matrix that reads embeddings, with which what it makes of a token is as large as a hidden state's components
 * are, about 1: embeddings are small numbers, and with the usual 0.02 a token would long go unheard. embd: [V][C]. */
double start_token_std(const float *embd, int64_t V, int64_t C);

#endif

/* coupling.h - the chance of each candidate to be the token that the target chooses, given the noise of that choice; for
 * drafters whose probabilities are estimates from few observations. */
#ifndef DRAFTER_COUPLING_H
#define DRAFTER_COUPLING_H

#include "verify/gumbel.h"

/* chance[i]: the estimated probability that the target, which chooses argmax(log p + G), chooses tokens[i], whose
 * probability is estimated as q[i] >= 0. They sum to less than 1. */
void coupled_chances(const GumbelRow *noise, const int32_t *tokens, const float *q, int32_t n, double *chance);

#endif

/* optimal_transport.h - the most that any verification rule can accept: optimal transport with membership cost, for
 * small vocabularies.
 *
 * A set of tokens is a bit mask: bit t is token t. */
#ifndef LAB_OPTIMAL_TRANSPORT_H
#define LAB_OPTIMAL_TRANSPORT_H

#include <stdint.h>

enum { OPTIMAL_TRANSPORT_MAX_VOCAB = 12 };

/* Fills chance_of[2^n_vocab], the probability that the set of drafted tokens is exactly this one, for k drafts from q
 * [n_vocab] (any positive scale): independent drafts, or drafts without replacement (at most as many as there are
 * tokens with q > 0). */
void optimal_transport_sets_iid(const float *q, int32_t n_vocab, int32_t k, double *chance_of);
void optimal_transport_sets_without_replacement(const float *q, int32_t n_vocab, int32_t k, double *chance_of);

/* The greatest probability with which a token of distribution p [n_vocab] can be one of the drafts. Overwrites
 * chance_of. */
double optimal_transport_acceptance(const double *p, int32_t n_vocab, double *chance_of);

#endif

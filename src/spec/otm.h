/* otm.h - the most that any rule can accept: optimal transport with membership cost, for small vocabularies.
 *
 * A set of tokens is a mask: bit t is token t. */
#ifndef SPEC_OTM_H
#define SPEC_OTM_H

#include <stdint.h>

enum { OTM_MAX_VOCAB = 12 };

/* chance_of[2^n_vocab]: the probability that the set of drafted tokens is exactly this one, for k drafts from q [n_vocab]
 * (any positive scale): independent ones, or without replacement (at most as many as have q > 0). */
void otm_sets_iid(const float *q, int32_t n_vocab, int32_t k, double *chance_of);
void otm_sets_without_replacement(const float *q, int32_t n_vocab, int32_t k, double *chance_of);

/* The greatest probability with which a token of law p [n_vocab] can be one of the drafts. chance_of is used up. */
double otm_acceptance(const double *p, int32_t n_vocab, double *chance_of);

#endif

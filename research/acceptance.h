/* acceptance.h - how often a rule accepts one of the K drafts of a node, computed exactly for small vocabularies; and
 * how often two distributions choose the same token when they share their Gumbel noise. */
#ifndef LAB_ACCEPTANCE_H
#define LAB_ACCEPTANCE_H

#include "tree/draft_dists.h"
#include "verify/ratio.h"

enum { ACCEPTANCE_MAX_VOCAB = 12, ACCEPTANCE_MAX_DRAFTS = 8 };

/* Returns the probability that a draft is accepted and, if dist is not NULL, the distribution [n_vocab] of the emitted
 * token (which is p if the rule is correct). There are `k` drafts of the given kind from q [n_vocab] (any positive
 * scale; without replacement at most as many as there are tokens with q > 0; as points: the k most probable tokens,
 * ties going to the lowest ids); the target's distribution is p [n_vocab], which sums to 1. All drafts and all random
 * choices are enumerated: V^k 2^k runs. */
double acceptance_of(RatioDecide *decide, DrawKind kind, const double *p, const float *q, int32_t n_vocab, int32_t k,
                     double gamma, double *dist);

/* The same for each rule; gamma 0: the best one is searched. */
double acceptance_multi_round(const double *p, const float *q, int32_t n_vocab, int32_t k);
double acceptance_k_seq(const double *p, const float *q, int32_t n_vocab, int32_t k, double gamma);
double acceptance_recursive(const double *p, const float *q, int32_t n_vocab, int32_t k); /* without replacement */
double acceptance_transport(const double *p, const float *q, int32_t n_vocab, int32_t k); /* without replacement */
/* Returns the upper bound over all rules for k independent drafts (optimal transport with membership cost), and for k
 * drafts without replacement. */
double acceptance_optimum(const double *p, const float *q, int32_t n_vocab, int32_t k);
double acceptance_optimum_without_replacement(const double *p, const float *q, int32_t n_vocab, int32_t k);

/* ---- the optimum: the most that any rule can accept ------------------------------------------------------- */

/* A set of tokens is a bit mask: bit t is token t. */
enum { OPTIMAL_TRANSPORT_MAX_VOCAB = 12 };

/* Fills chance_of[2^n_vocab], the probability that the set of drafted tokens is exactly this one, for k drafts from q
 * [n_vocab] (any positive scale): independent drafts, or drafts without replacement (at most as many as there are
 * tokens with q > 0). */
void optimal_transport_sets_iid(const float *q, int32_t n_vocab, int32_t k, double *chance_of);
void optimal_transport_sets_without_replacement(const float *q, int32_t n_vocab, int32_t k, double *chance_of);

/* Returns the greatest probability with which a token of distribution p [n_vocab] can be one of the drafts. Overwrites
 * chance_of. */
double optimal_transport_acceptance(const double *p, int32_t n_vocab, double *chance_of);

/* ---- agreement under shared noise (research/COUPLING.md) -------------------------------------------------- */

/* p and q: [n], each sums to 1. */
double total_variation(const double *p, const double *q, int32_t n);
/* P(argmax(log p + G) = argmax(log q + G)), exactly; -1: out of memory. */
double gumbel_agreement(const double *p, const double *q, int32_t n);

#endif

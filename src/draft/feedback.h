/* feedback.h - helpers of the drafters that learn from the target's logits (DrafterClass.observe_tree). */
#ifndef DRAFTER_FEEDBACK_H
#define DRAFTER_FEEDBACK_H

#include "draft/drafter.h"
#include "verify/gumbel.h"

#include <stdbool.h>

/* Fails if no target runs, as in replay; the error names the method. */
int feedback_require_target(const char *method, const DrafterEnv *env, fr_error *err);
/* Fails if a token is outside the vocabulary. */
int feedback_check_tokens(const int32_t *tokens, int64_t n, int32_t n_vocab, fr_error *err);

enum { TOP_K_MAX = 64 };
/* Writes to ids[0..k) the ids of the k greatest logits, the greatest first; ties go to the lowest id; k <= TOP_K_MAX.
 * Logits that are NaN or -inf are left out. Returns how many there are; the rest of ids is -1. */
int32_t logits_top_k(const float *logits, int32_t n_vocab, int32_t k, int32_t *ids);

/* Returns the index of the node at `depth` of a step's accepted path, and the token that the step committed after this
 * node; 0 <= depth <= n_path, and the node at depth 0 is the pending token. */
int32_t feedback_node(const VerifiedTree *v, int32_t depth);
int32_t feedback_after(const VerifiedTree *v, int32_t depth);

/* Counts how often a kind of guess was right. Old counts fade: when n reaches TALLY_FULL, both counts are halved. */
typedef struct Tally {
    int32_t n, n_right;
} Tally;
enum { TALLY_FULL = 4096 };
void tally_add(Tally *t, bool right);
/* Returns the share of right guesses. `prior` is the share expected before any observation; it has the weight of eight
 * observations. */
double tally_share(const Tally *t, double prior);

/* For drafters whose probabilities are estimates from few observations. Fills chance[i] with the estimated
 * probability that the target, which chooses argmax(log p + G) with this noise, chooses tokens[i], whose probability
 * is estimated as q[i] >= 0. The chances sum to less than 1. */
void coupled_chances(const GumbelRow *noise, const int32_t *tokens, const float *q, int32_t n, double *chance);

#endif

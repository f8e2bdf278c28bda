/* optimal_transport.c - the optimum over all verification rules.
 *
 * The problem (SpecTr, Sun et al. 2023, arXiv 2310.15141): the drafts of a node are a random set D; a rule emits a
 * token Z of distribution p. Couple the two so that Z is in D as often as possible: optimal transport, where a
 * coupling costs 1 if Z is not in D. It is a linear programme with a variable for each pair of D and Z.
 *
 * The idea: it is also a flow. Let the flow from the source to each set D be at most the set's probability, from D to
 * its members unlimited, from token t to the sink at most p(t); the maximum flow is the maximum acceptance. By
 * max-flow min-cut it is the minimum cut. A cut is determined by the tokens S on the source's side, which cost p(t)
 * each; a set D may be on the source's side for free if all of its members are in S, and costs its probability
 * otherwise. Hence
 *
 *   acceptance = min over S of  p(S) + 1 - P(D is a subset of S)
 *
 * One pass sums P over subsets, in place: V 2^V operations for all S together.
 *
 * Example: p = (0.2, 0.8), two independent drafts from q = (0.8, 0.2). S = {}: 1. S = {0}: 0.2 + 1 - 0.64 = 0.56. S = {1}: 0.8 + 1
 * - 0.04. S = {0,1}: 1 + 1 - 1. So 0.56. Without replacement D is {0,1}, and the minimum is 1.
 * Proof: tests/research/test_optimal_transport.c, against a flow found by augmenting paths. */
#include "research/optimal_transport.h"

#include "base/error.h"

#include <string.h>

static double sum_of(const float *q, int32_t n) {
    double sum = 0;
    for (int32_t t = 0; t < n; t++) sum += (double)q[t];
    return sum;
}

/* Adds to chance_of all ways in which `left` more drafts follow those of `set`, which have the probability `chance`. */
static void draw_iid(const float *q, double q_sum, int32_t n_vocab, int32_t left, uint32_t set, double chance,
                     double *chance_of) {
    if (left == 0) {
        chance_of[set] += chance;
        return;
    }
    for (int32_t t = 0; t < n_vocab; t++)
        if (q[t] > 0) draw_iid(q, q_sum, n_vocab, left - 1, set | 1u << t, chance * (double)q[t] / q_sum, chance_of);
}

static void draw_without_replacement(const float *q, int32_t n_vocab, int32_t left, uint32_t set, double chance,
                                     double *chance_of) {
    double rest = 0;
    for (int32_t t = 0; t < n_vocab; t++) rest += set >> t & 1 ? 0 : (double)q[t];
    if (left == 0 || !(rest > 0)) {
        chance_of[set] += chance;
        return;
    }
    for (int32_t t = 0; t < n_vocab; t++)
        if (q[t] > 0 && !(set >> t & 1))
            draw_without_replacement(q, n_vocab, left - 1, set | 1u << t, chance * (double)q[t] / rest, chance_of);
}

void optimal_transport_sets_iid(const float *q, int32_t n_vocab, int32_t k, double *chance_of) {
    fr_assert(n_vocab > 0 && n_vocab <= OPTIMAL_TRANSPORT_MAX_VOCAB);
    memset(chance_of, 0, sizeof *chance_of << n_vocab);
    draw_iid(q, sum_of(q, n_vocab), n_vocab, k, 0, 1, chance_of);
}

void optimal_transport_sets_without_replacement(const float *q, int32_t n_vocab, int32_t k, double *chance_of) {
    fr_assert(n_vocab > 0 && n_vocab <= OPTIMAL_TRANSPORT_MAX_VOCAB);
    memset(chance_of, 0, sizeof *chance_of << n_vocab);
    draw_without_replacement(q, n_vocab, k, 0, 1, chance_of);
}

double optimal_transport_acceptance(const double *p, int32_t n_vocab, double *chance_of) {
    fr_assert(n_vocab > 0 && n_vocab <= OPTIMAL_TRANSPORT_MAX_VOCAB);
    uint32_t n_sets = 1u << n_vocab;
    for (int32_t t = 0; t < n_vocab; t++) /* chance_of[S] becomes P(D is a subset of S) */
        for (uint32_t set = 0; set < n_sets; set++)
            if (set >> t & 1) chance_of[set] += chance_of[set ^ 1u << t];
    double least = 1;
    for (uint32_t set = 0; set < n_sets; set++) {
        double cut = 1 - chance_of[set];
        for (int32_t t = 0; t < n_vocab; t++) cut += set >> t & 1 ? p[t] : 0;
        if (cut < least) least = cut;
    }
    return least;
}

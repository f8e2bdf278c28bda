/* acceptance.c - the acceptance of a rule, summed over everything that can happen at one node; the optimum over all
 * rules; and the agreement of two choices that share their noise.
 *
 * The drafts are picked with the same scripted random source (verifier.h) that the rule then uses, so that a run
 * of the script is one outcome of drafting and deciding together, and the code that decides is the one that the
 * engine runs. */
#include "research/acceptance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the optimum ---------------------------------------------------------------------------------------- */

/* The optimum over all verification rules.
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
 * Example: p = (0.2, 0.8), two independent drafts from q = (0.8, 0.2). S = {}: 1. S = {0}: 0.2 + 1 - 0.64 = 0.56. S =
 * {1}: 0.8 + 1
 * - 0.04. S = {0,1}: 1 + 1 - 1. So 0.56. Without replacement D is {0,1}, and the minimum is 1.
 * Proof: tests/research/test_optimal_transport.c, against a flow found by augmenting paths. */
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

/* ---- the rules ------------------------------------------------------------------------------------------ */

typedef struct Trial {
    RandomScript script;
    Tree tree;
    SiblingGroup group;
    double p[ACCEPTANCE_MAX_VOCAB], q[ACCEPTANCE_MAX_VOCAB], m[ACCEPTANCE_MAX_VOCAB];
    int32_t ids[ACCEPTANCE_MAX_VOCAB];
} Trial;

static int32_t best_of(const double *left, int32_t n) {
    int32_t best = 0;
    for (int32_t t = 1; t < n; t++)
        if (left[t] > left[best]) best = t;
    return best;
}

/* Drafts up to k tokens below node 0. */
static void draft(Trial *x, DrawKind kind, const float *q, int32_t n_vocab, int32_t k) {
    double left[ACCEPTANCE_MAX_VOCAB];
    for (int32_t t = 0; t < n_vocab; t++) left[t] = (double)q[t];
    tree_reset(&x->tree, 0);
    x->group.n = 0;
    for (int32_t i = 0; i < k; i++) {
        int32_t token = kind == DRAW_POINT ? best_of(left, n_vocab)
                                           : x->script.random_source.pick(&x->script.random_source, left, n_vocab);
        if (!(left[token] > 0)) return;
        x->group.draws[x->group.n++] = (DistDraw){.parent = 0,
                                                  .child = tree_add(&x->tree, 0, token, 1, 0),
                                                  .kind = kind,
                                                  .q = kind == DRAW_POINT ? NULL : q};
        if (kind != DRAW_IID) left[token] = 0;
    }
}

double acceptance_of(RatioDecide *decide, DrawKind kind, const double *p, const float *q, int32_t n_vocab, int32_t k,
                     double gamma, double *dist) {
    fr_assert(n_vocab > 0 && n_vocab <= ACCEPTANCE_MAX_VOCAB && k > 0 && k <= ACCEPTANCE_MAX_DRAFTS);
    Trial x;
    double accepted = 0;
    if (dist) memset(dist, 0, (size_t)n_vocab * sizeof *dist);
    random_script_begin(&x.script);
    do {
        draft(&x, kind, q, n_vocab, k);
        memcpy(x.p, p, (size_t)n_vocab * sizeof *p);
        RatioNode n = {.tree = &x.tree,
                       .group = &x.group,
                       .n_vocab = n_vocab,
                       .p = x.p,
                       .p_mass = 1,
                       .q = x.q,
                       .m = x.m,
                       .ids = x.ids,
                       .gamma = gamma,
                       .random_source = &x.script.random_source};
        int32_t i = decide(&n);
        if (i >= 0) accepted += x.script.chance;
        if (!dist) continue;
        int32_t token = i >= 0 ? x.tree.nodes[x.group.draws[i].child].token
                               : x.script.random_source.pick(&x.script.random_source, n.p, n_vocab);
        dist[token] += x.script.chance;
    } while (random_script_next(&x.script));
    return accepted;
}

double acceptance_multi_round(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    return acceptance_of(rejection_decide, DRAW_IID, p, q, n_vocab, k, 0, NULL);
}

double acceptance_k_seq(const double *p, const float *q, int32_t n_vocab, int32_t k, double gamma) {
    return acceptance_of(k_seq_decide, DRAW_IID, p, q, n_vocab, k, gamma, NULL);
}

double acceptance_recursive(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    return acceptance_of(rejection_decide, DRAW_WITHOUT_REPLACEMENT, p, q, n_vocab, k, 0, NULL);
}

double acceptance_transport(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    return acceptance_of(transport_decide, DRAW_WITHOUT_REPLACEMENT, p, q, n_vocab, k, 0, NULL);
}

double acceptance_optimum_without_replacement(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    double chance_of[1 << OPTIMAL_TRANSPORT_MAX_VOCAB];
    optimal_transport_sets_without_replacement(q, n_vocab, k, chance_of);
    return optimal_transport_acceptance(p, n_vocab, chance_of);
}

double acceptance_optimum(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    double chance_of[1 << OPTIMAL_TRANSPORT_MAX_VOCAB];
    optimal_transport_sets_iid(q, n_vocab, k, chance_of);
    return optimal_transport_acceptance(p, n_vocab, chance_of);
}

/* ---- agreement under shared noise ------------------------------------------------------------------------ */

/* The exact agreement of two choices with shared Gumbel noise.
 *
 * With E = e^-G, independent and exponential of rate 1, argmax(log p + G) = argmin(E / p). Token x is the first choice
 * of p with E_x = p_x t, and t has the density p_x e^(-p_x t) dt / p_x = e^(-p_x t) p_x dt, if E_y > p_y t for all y;
 * it is the first choice of q if E_y > q_y p_x t / q_x for all y. Both together:
 *
 *     P(both choose x) = integral of p_x e^(-p_x t) prod over y != x of e^(-max(p_y, q_y p_x / q_x) t) dt
 *                      = p_x / S_x = 1 / sum over y of max(p_y / p_x, q_y / q_x)
 *     S_x = sum over y of max(p_y, q_y p_x / q_x)
 *
 * max(p_y / p_x, q_y / q_x) is the first where p_y / q_y >= p_x / q_x, so sorting by p / q makes all sums prefix sums.
 *
 * Proof: tests/verify/test_gumbel_coupling.c, by simulation. */
double total_variation(const double *p, const double *q, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += fabs(p[i] - q[i]);
    return sum / 2;
}

typedef struct Pair {
    double p, q;
} Pair;

static int greater_ratio_first(const void *a, const void *b) {
    const Pair *x = a, *y = b;
    double left = x->p * y->q, right = y->p * x->q; /* p_x / q_x and p_y / q_y without dividing */
    return left > right ? -1 : left < right ? 1 : 0;
}

double gumbel_agreement(const double *p, const double *q, int32_t n) {
    Pair *pairs = malloc((size_t)n * sizeof *pairs);
    double before = 0, after = 0, sum = 0; /* the sums of p up to a token, and of q after it */
    int32_t n_pairs = 0;
    if (!pairs) return -1;
    for (int32_t i = 0; i < n; i++)
        if (p[i] > 0 || q[i] > 0) pairs[n_pairs++] = (Pair){p[i], q[i]};
    qsort(pairs, (size_t)n_pairs, sizeof *pairs, greater_ratio_first);
    for (int32_t i = 0; i < n_pairs; i++) after += pairs[i].q;
    for (int32_t i = 0; i < n_pairs; i++) {
        before += pairs[i].p;
        after -= pairs[i].q;
        if (pairs[i].p > 0 && pairs[i].q > 0) sum += 1 / (before / pairs[i].p + fmax(after, 0) / pairs[i].q);
    }
    free(pairs);
    return sum;
}

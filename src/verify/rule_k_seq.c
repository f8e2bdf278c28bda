/* rule_k_seq.c - the rule `k-seq`: SpecTr's K-sequential selection (Sun et al. 2023, arXiv 2310.15141; there q is the
 * target and p the draft model, here as everywhere p is the target).
 *
 * The problem: the K drafts of a node come independently from one distribution q. Deciding each by p / q lets the
 * early ones use up probability that later ones, drawn from the same q, could have used as well; rejection.c
 * subtracts q again for each of them.
 *
 * The idea: claim gamma times less of p for each draft, and the same for all: x_k is accepted with probability
 * min(1, p(x) / (gamma q(x))). One draft is accepted as token x with weight min(q(x), p(x) / gamma), in all
 *
 *   beta(gamma) = sum_x min(q(x), p(x) / gamma),          P(some draft is accepted) = 1 - (1 - beta)^K = p_acc,
 *
 * and the accepted token has the distribution min(q, p / gamma) / beta whichever draft it is. With c = p_acc / beta,
 * which is the number of drafts tried on average, the residual after K rejections is p - c min(q, p / gamma). This is a
 * distribution wherever c <= gamma. As gamma rises, p_acc falls and gamma beta = sum min(gamma q, p) does not; so the
 * smallest valid gamma is the root gamma* in [1, K] of 1 - (1 - beta)^K = gamma beta, found by bisection, and it
 * accepts the most: at least 1 - (1 - 1/K)^K >= 1 - 1/e of the optimum (their theorem; research/acceptance.h).
 *
 * The user can give a gamma (--verify k-seq:gamma=2). At a node where it is below gamma* it would change the output
 * distribution, and the rule uses gamma* there.
 *
 * Example: p = (0.2, 0.8), q = (0.8, 0.2), K = 2. At gamma = 1.5: beta = 0.2/1.5 + 0.2 = 0.333, p_acc = 0.556 >= 1.5
 * beta = 0.5: too small. At gamma = 1.7: beta = 0.318, p_acc = 0.534 <= 0.540: valid. gamma* = 1.681, p_acc = 0.536;
 * rejection.c accepts 0.52, the optimum is 0.56.
 *
 * Layout: for the bisection the tokens are sorted into those whose minimum is p / gamma for all gamma in [1, K] (p <=
 * q), those whose minimum is q (p >= K q), both summed once, and the few between, whose ids are kept. Invariants: the
 * support of the residual stays within that of p; a residual without mass can only come from rounding, and then the
 * token is drawn from p. With one draft (K = 1) gamma = 1, and the rule is `chain`. Each duplicate gets a coin flip of
 * its own. Cost: O(V), and 40 rounds over the tokens between. When it loses: against draws without replacement, which
 * offer K different tokens. Proof: tests/verify/test_rules.c, as for rejection.c, for gamma* and for given ones;
 * tests/research/test_optimal_transport.c against the optimum. */
#include "base/mem.h"
#include "verify/ratio.h"

/* Returns the expected number of drafts that are tried, (1 - (1 - beta)^K) / beta, as a sum that is also right for beta
 * = 0. */
static double n_tried(double beta, int32_t k) {
    double sum = 0, power = 1;
    for (int32_t j = 0; j < k; j++) {
        sum += power;
        power *= 1 - beta;
    }
    return sum;
}

static double beta_of(const RatioNode *n, double gamma) {
    double beta = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) beta += min_f64(n->q[t], n->p[t] / gamma);
    return beta;
}

static bool is_valid(const RatioNode *n, double gamma) { return n_tried(beta_of(n, gamma), n->group->n) <= gamma; }

/* Finds gamma* by bisection, from above, so that the result is valid. */
static double search_gamma(const RatioNode *n) {
    int32_t k = n->group->n, n_between = 0;
    double mass_q = 0, mass_p = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) {
        if (n->p[t] <= n->q[t]) mass_p += n->p[t];
        else if (n->p[t] >= k * n->q[t]) mass_q += n->q[t];
        else n->ids[n_between++] = t;
    }
    double low = 1, high = k;
    for (int round = 0; round < 40; round++) {
        double gamma = (low + high) / 2, beta = mass_q + mass_p / gamma;
        for (int32_t i = 0; i < n_between; i++) beta += min_f64(n->q[n->ids[i]], n->p[n->ids[i]] / gamma);
        if (n_tried(beta, k) <= gamma) high = gamma;
        else low = gamma;
    }
    return high;
}

/* Replaces p by p - c min(q, p / gamma). */
static void leave_residual(RatioNode *n, double gamma) {
    double c = n_tried(beta_of(n, gamma), n->group->n);
    for (int32_t t = 0; t < n->n_vocab; t++) n->q[t] = c * min_f64(n->q[t], n->p[t] / gamma);
    n->p_mass = ratio_residual(1, n->p, n->q, n->n_vocab, n->p);
}

int32_t k_seq_decide(RatioNode *n) {
    const SiblingGroup *g = n->group;
    ratio_draft_dist(&g->draws[0], n->tree->nodes[g->draws[0].child].token, n->n_vocab, n->q);
    double gamma = n->gamma >= 1 && is_valid(n, n->gamma) ? n->gamma : search_gamma(n);
    for (int32_t i = 0; i < g->n; i++) {
        int32_t x = n->tree->nodes[g->draws[i].child].token;
        if (n->q[x] > 0 && n->random_source->flip(n->random_source, n->p[x] / (gamma * n->q[x]))) return i;
    }
    leave_residual(n, gamma);
    return -1;
}

static const char *fault(const SiblingGroup *g) {
    if (g->n < 2) return NULL;
    for (int32_t i = 0; i < g->n; i++)
        if (g->draws[i].kind != DRAW_IID || g->draws[i].q != g->draws[0].q)
            return "independent draws from one distribution";
    return NULL;
}

static const RatioRule k_seq = {"k-seq", fault, k_seq_decide};

static int verify_k_seq(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&k_seq, in, s, out, err);
}

static const Option option_table[] = {
    {.key = "gamma",
     OPT_REAL(VerifyOptions, gamma, 1, 1e6),
     .default_help = "the best one is searched at each node",
     .help = "divides the target's probabilities before they are compared with the draft's"},
    {.key = NULL},
};

const VerifyRule verify_rule_k_seq = {
    .name = "k-seq",
    .summary =
        "SpecTr: independent drafts from one distribution; the best gamma is searched at each node, or k-seq:gamma=1.5",
    .is_ratio = true,
    .verify = verify_k_seq,
    .option_table = option_table,
};

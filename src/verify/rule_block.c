/* rule_block.c - the rule `block`: block verification of a chain (Sun et al. 2024, arXiv 2403.10444; there M_b is the
 * target and M_s the draft model).
 *
 * The problem: the rule `chain` decides each draft by its own p / q, capped at 1. A first draft of ratio 1/2 is
 * rejected every other time, although the second may have a ratio of 2, and the pair be as likely under p as under q.
 *
 * The idea: decide about prefixes. With x_1 .. x_g the chain, p_i and q_i the two distributions after i of its tokens,
 *
 *   w_0 = 1,   w_i = min(1, w_{i-1} p_{i-1}(x_i) / q_{i-1}(x_i))
 *   s_i = sum_x max(0, w_i p_i(x) - q_i(x))
 *   h_i = s_i / (s_i + 1 - w_i) for i < g,   h_g = w_g
 *
 * a coin with probability h_i of heads is flipped for every i, and the longest prefix whose coin shows heads is kept.
 * Let tau be its length, or 0 where no coin shows heads. The next token is drawn from norm(max(0, w_tau p_tau -
 * q_tau)), or from p_g where the whole chain is kept. Given x_1 .. x_i, the probability that at least i tokens are kept
 * is w_i: for i = g that is h_g. For i < g, from the end backwards: the tokens emitted after the prefix must have the
 * weights w_i p_i in all, of which min(w_i p_i, q_i) comes from keeping more. The rest, s_i, must come from keeping
 * exactly i, which is possible in the 1 - (w_i - s_i) of cases where no longer prefix was kept; hence h_i. No rule for
 * a chain keeps more tokens on average, as the paper proves, so this one never keeps fewer than the rule `chain`.
 *
 * Example (the paper's): p = (1/3, 2/3) and q = (2/3, 1/3) after every text, g = 2. The four chains and their
 * probabilities under q:
 *
 *   0 0   4/9   w = 1/2, 1/4   h = 0, 1/4   keeps 2 with probability 1/4, else none
 *   0 1   2/9   w = 1/2, 1     h = -, 1     keeps 2; `chain` rejects the first every other time
 *   1 0   2/9   w = 1, 1/2     h = 1, 1/2   keeps 2 with probability 1/2, else 1
 *   1 1   1/9   w = 1, 1       h = -, 1     keeps 2
 *
 * The average is 11/9 tokens, and 10/9 with `chain`.
 *
 * Points have q = 1 at their token. Then w_i is the product of the p's, and the rule keeps as much as `chain` does.
 *
 * The drafts after x_tau had an influence on tau, although they are not emitted. So neither the random numbers of the
 * flips nor the noise that these drafts were drawn with may be used again in the next step, which decides the same
 * positions again. The random source is keyed by the first position of a step (KeyedRandom), and a drafter whose
 * noise depends on nothing but the output position must not declare distributions. (`chain` would tolerate it, because
 * no draft after the rejected one influences anything there.)
 *
 * Invariants: where w_i = 1 and p_i = q_i, h_i is 0/0: a longer prefix is certain, and any h_i will do (1 is taken). A
 * residual without mass can only come from rounding, and then the token is drawn from p. At temperature 0, w_i and
 * h_i are 1 as long as the drafts are the greedy tokens, and 0 from the first that is not. Cost: O(V) for each
 * draft; all distributions are read up to the first w_i = 0. Proof: tests/verify/test_rules.c: the output
 * distribution to 1e-12, summed over chains and random choices, also over several steps; the number of tokens kept
 * against `chain`, and the example. */
#include "verify/ratio.h"

static const RatioRule block = {"block", ratio_fault_of_chain, NULL};

/* Returns the sum of max(0, w p - q) over all tokens. */
static double excess(double w, const double *p, const double *q, int32_t n_vocab) {
    double s = 0;
    for (int32_t t = 0; t < n_vocab; t++) s += w * p[t] > q[t] ? w * p[t] - q[t] : 0;
    return s;
}

/* Finds the draft below a node and loads its distribution into s->q. Returns false if the chain ends at the node. */
static bool next_draft(const VerifyInput *in, VerifyScratch *s, int32_t node, int32_t *child) {
    sibling_group(in->tree, node, &s->group);
    if (s->group.n == 0) return false;
    *child = s->group.draws[0].child;
    ratio_draft_dist(&s->group.draws[0], in->tree->nodes[*child].token, s->n_vocab, s->q);
    return true;
}

/* Flips the coin of h_i, which decides whether the prefix that ends here is kept if no longer one is. */
static bool keeps(RandomSource *random_source, const VerifyScratch *s, double w, bool is_end) {
    if (is_end) return random_source->flip(random_source, w);
    double mass = excess(w, s->p, s->q, s->n_vocab), of = mass + 1 - w;
    return random_source->flip(random_source, of > 0 ? mass / of : 1);
}

/* Flips the coins down the chain. Fills out->path as far as the walk gets and out->n_path with the length of the
 * prefix that is kept. Returns w_tau. */
static double keep_prefix(const VerifyInput *in, VerifyScratch *s, VerifyResult *out) {
    double w = 1, w_kept = 1;
    int32_t depth = 0, child = 0;
    out->n_path = 0;
    for (int32_t node = 0;; node = child) {
        ratio_target_dist(in, s, node, s->p);
        bool is_end = !next_draft(in, s, node, &child);
        if (depth > 0 && keeps(in->random_source, s, w, is_end)) {
            out->n_path = depth;
            w_kept = w;
        }
        if (is_end) return w_kept;
        int32_t x = in->tree->nodes[child].token;
        w = s->q[x] > 0 ? w * s->p[x] / s->q[x] : 0;
        if (w > 1) w = 1;
        if (!(w > 0)) return w_kept; /* no longer prefix can be kept */
        in->context[in->n_context + depth] = x;
        out->path[depth++] = child;
    }
}

static int verify_block(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    int status = ratio_check(&block, in, s, err);
    if (status) return status;
    double w = keep_prefix(in, s, out);
    int32_t node = out->n_path ? out->path[out->n_path - 1] : 0, child;
    ratio_target_dist(in, s, node, s->p);
    if (next_draft(in, s, node, &child)) ratio_residual(w, s->p, s->q, s->n_vocab, s->p);
    out->next_token = in->random_source->pick(in->random_source, s->p, s->n_vocab);
    return FR_OK;
}

const VerifyRule verify_rule_block = {
    .name = "block",
    .summary = "block verification of a chain: keeps at least as many tokens as chain, on average",
    .is_ratio = true,
    .verify = verify_block,
};

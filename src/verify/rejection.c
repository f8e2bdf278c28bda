/* rejection.c - the rules `chain`, `multi-round` and `recursive`: one way to decide among the drafts of a node, for
 * chains, independent draws, draws without replacement and points.
 *
 * The problem: x_1 .. x_K were drafted from some distribution, the target's distribution is p, and the emitted token
 * must have distribution p exactly, and be one of the drafts as often as possible.
 *
 * The idea: one draft x ~ q is accepted with probability min(1, p(x) / q(x)). Accepted tokens have the weights min(p,
 * q), so the token emitted after a rejection must follow the residual distribution norm(max(0, p - q)): together they
 * give p (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318). After a rejection the next
 * draft is decided in the same way, with the residual in place of p and, in place of q, the distribution of this
 * draft given those before it:
 *
 *   p_1 = p,   p_{k+1} = norm(max(0, p_k - q_k))              Recursive Speculative Decoding, Algorithm 1 and eq. 2-4
 *   accept x_k with probability min(1, p_k(x_k) / q_k(x_k));  all rejected: draw from p_{K+1}
 *
 *   DRAW_IID                  q_k is the draw's own q           SpecInfer's multi-round speculative sampling
 *   DRAW_WITHOUT_REPLACEMENT  q_k is q without x_1 .. x_{k-1}, renormalised
 *   DRAW_POINT                q_k is 1 at x_k: accept with probability p_k(x_k), or remove x_k and renormalise
 *
 * Three rules use this code. They differ in the groups that they accept:
 *
 *   chain        one draft at a node: speculative sampling as in the two papers above. No rule can accept more than sum
 *                min(p, q) at one node; over a whole chain, block verification can (rule_block.c)
 *   multi-round  independent draws, each from its own distribution (several draft models, or several draws from one),
 *                and points: SpecInfer (Miao et al. 2023, arXiv 2305.09781). The paper takes them in random order. Any
 *                order that does not depend on the tokens gives the same output distribution, so the declared order is
 *                kept
 *   recursive    every group; draws without replacement must be given in the order in which they were drawn (in
 *                Gumbel-top-k and stochastic beam search, by falling perturbed value)
 *
 * The proof is an induction from the last draft up: given the drafts before it, the emitted token has distribution
 * p_k (Theorem 3.1 of that paper). It needs only that q_k is the distribution of x_k given what came before, so the
 * three kinds are one algorithm. Two lines of the paper's Algorithm 6 cannot be used as printed: line 23 removes the
 * index of a rejected draft from q instead of its token, and line 18 stores nodes where their flat indices are needed.
 *
 * A duplicate (with replacement, the same token again) is treated like any other draft: after the first rejection of x,
 * p_2(x) = 0, so it is rejected again, but q is subtracted once more although this draft could not have been accepted.
 *
 * Example: p = (0.2, 0.8), q = (0.9, 0.1), both tokens drafted, 0 first. It is accepted with probability 0.2 / 0.9.
 * After a rejection p_2 = norm(0, 0.7) = (0, 1). Without replacement q_2 = (0, 1), so token 1 is accepted with
 * probability 1: one of the two is always accepted. A second independent draw would be token 0 in 9 of 10 cases, and
 * then useless.
 *
 * Invariants: the support of p_k stays within that of p, so that at temperature 0 the token is the greedy one. p_k is
 * kept as weights and their sum. A residual without mass is due to rounding, and p_k then stays as it was.
 * Cost: O(V) for each rejected draft. When it loses: with independent draws from one distribution it never accepted
 * more than k-seq on random distributions, and less on three of four (tests/research/test_optimal_transport.c); on a
 * chain, block verification accepts more. Proof: tests/verify/test_rules.c sums over all drafts and all random choices
 * and compares with p to 1e-12; it has negative controls. */
#include "verify/ratio.h"

static int32_t token_of(const RatioNode *n, int32_t i) { return n->tree->nodes[n->group->draws[i].child].token; }

/* Sets n->q to the distribution of draft i given the rejected drafts before it. */
static void load_q(RatioNode *n, int32_t i) {
    const DistDraw *d = &n->group->draws[i];
    if (i == 0 || d->kind != DRAW_WITHOUT_REPLACEMENT) {
        bool is_there = i > 0 && d->q && d->q == d[-1].q;
        if (!is_there) ratio_draft_dist(d, token_of(n, i), n->n_vocab, n->q);
        return;
    }
    double sum = 0;
    n->q[token_of(n, i - 1)] = 0;
    for (int32_t t = 0; t < n->n_vocab; t++) sum += n->q[t];
    for (int32_t t = 0; t < n->n_vocab; t++) n->q[t] /= sum;
}

int32_t rejection_decide(RatioNode *n) {
    for (int32_t i = 0; i < n->group->n; i++) {
        load_q(n, i);
        int32_t x = token_of(n, i);
        if (n->q[x] > 0 && n->random_source->flip(n->random_source, n->p[x] / n->p_mass / n->q[x])) return i;
        n->p_mass = ratio_residual(1 / n->p_mass, n->p, n->q, n->n_vocab, n->p);
    }
    return -1;
}

/* ---- the rules ------------------------------------------------------------------------------------- */

static const char *fault_of_multi_round(const SiblingGroup *g) {
    bool dependent = g->n > 1 && g->draws[0].kind == DRAW_WITHOUT_REPLACEMENT;
    return dependent ? "independent draws and points" : NULL;
}

static const RatioRule chain = {"chain", ratio_fault_of_chain, rejection_decide};
static const RatioRule multi_round = {"multi-round", fault_of_multi_round, rejection_decide};
static const RatioRule recursive = {"recursive", NULL, rejection_decide};

static int verify_chain(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&chain, in, s, out, err);
}

static int verify_multi_round(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&multi_round, in, s, out, err);
}

static int verify_recursive(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&recursive, in, s, out, err);
}

const VerifyRule verify_rule_chain = {
    .name = "chain",
    .summary =
        "speculative sampling, one draft at a node: accept with probability min(1, p/q), else draw from the residual",
    .is_ratio = true,
    .verify = verify_chain,
};

const VerifyRule verify_rule_multi_round = {
    .name = "multi-round",
    .summary = "SpecInfer: independent drafts of a node, each with its own distribution, decided one after the other",
    .is_ratio = true,
    .verify = verify_multi_round,
};

const VerifyRule verify_rule_recursive = {
    .name = "recursive",
    .summary = "recursive rejection: any tree; the rule for drafts without replacement (rsd-c, rsd-s)",
    .is_ratio = true,
    .takes_any_tree = true,
    .verify = verify_recursive,
};

/* rule_chain.c - the rule `chain`: speculative sampling of a chain (Leviathan et al. 2023, arXiv 2211.17192; Chen et
 * al. 2023, arXiv 2302.01318). There is one draft at a node. It is accepted with probability min(1, p / q), and
 * replaced by a draw from norm(max(0, p - q)) where it is rejected: the case K = 1 of rejection.c. At one node no
 * rule can accept more than sum min(p, q). Over the whole chain block verification can (rule_block.c). */
#include "verify/ratio.h"

static const RatioRule chain = {"chain", ratio_fault_of_chain, rejection_decide};

static int verify_chain(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&chain, in, s, out, err);
}

const VerifyRule verify_rule_chain = {
    .name = "chain",
    .summary =
        "speculative sampling, one draft at a node: accept with probability min(1, p/q), else draw from the residual",
    .is_ratio = true,
    .verify = verify_chain,
};

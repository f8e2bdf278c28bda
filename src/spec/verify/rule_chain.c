/* rule_chain.c - speculative sampling of a chain: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023
 * (arXiv 2302.01318). One draft at a node, accepted with chance min(1, p / q), replaced by a draw from
 * norm(max(0, p - q)) where it is refused: the case K = 1 of rejection.c. At one node no rule can accept more:
 * sum min(p, q). Over the whole chain block verification can (rule_block.c). */
#include "spec/verify/ratio.h"

static const RatioRule chain = {"chain", ratio_fault_of_chain, rejection_decide};

static int verify_chain(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&chain, in, s, out, err);
}

const VerifyRule verify_rule_chain = {
    .name = "chain",
    .summary = "speculative sampling, one draft at a node: accept with min(1, p/q), else draw from what is left of p",
    .is_ratio = true,
    .verify = verify_chain,
};

/* rule_recursive.c - the rule `recursive`: recursive rejection sampling of Recursive Speculative Decoding (Algorithms
 * 1 and 6). It handles every sibling group: draws without replacement, in the order in which they were drawn (for
 * Gumbel-top-k and stochastic beam search: by falling perturbed value), independent draws, and points. The essay is
 * in rejection.c. */
#include "verify/ratio.h"

static const char *fault(const SiblingGroup *g) {
    (void)g;
    return NULL;
}

static const RatioRule recursive = {"recursive", fault, rejection_decide};

static int verify_recursive(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&recursive, in, s, out, err);
}

const VerifyRule verify_rule_recursive = {
    .name = "recursive",
    .summary = "recursive rejection: any tree; the rule for drafts without replacement (rsd-c, rsd-s)",
    .is_ratio = true,
    .takes_any_tree = true,
    .verify = verify_recursive,
};

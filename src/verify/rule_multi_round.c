/* rule_multi_round.c - the rule `multi-round`: SpecInfer's multi-round speculative sampling (Miao et al. 2023, arXiv
 * 2305.09781). The drafts of a node come from independent draws, each from its own distribution (several draft models, or
 * one from which several tokens were drawn), or are points. They are decided one after the other against the residual that
 * earlier rejections left of p: rejection.c, where q_k is the distribution of draft k alone. The paper takes them in random
 * order; any order that does not depend on the tokens gives the same output distribution, and the declared order is kept.
 *
 * Draws without replacement are not independent; the rule `recursive` handles those. */
#include "verify/ratio.h"

static const char *fault(const SiblingGroup *g) {
    bool dependent = g->n > 1 && g->draws[0].kind == DRAW_WITHOUT_REPLACEMENT;
    return dependent ? "independent draws and points" : NULL;
}

static const RatioRule multi_round = {"multi-round", fault, rejection_decide};

static int verify_multi_round(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    return ratio_walk(&multi_round, in, s, out, err);
}

const VerifyRule verify_rule_multi_round = {
    .name = "multi-round",
    .summary = "SpecInfer: independent drafts of a node, each with its own distribution, decided one after the other",
    .is_ratio = true,
    .verify = verify_multi_round,
};

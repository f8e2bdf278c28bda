/* rule_multi_round.c - SpecInfer's multi-round speculative sampling (Miao et al. 2023, arXiv 2305.09781):
 * the drafts of a node come from independent draws, each with a distribution of its own (several draft models, or one drawn from
 * several times), or are points, and are judged one after the other against what the refusals before left of p:
 * rejection.c with q_k the distribution of draft k alone. The paper judges them in random order; any order that does not hang on
 * the tokens gives the same distribution of the text, and the declared one is kept.
 *
 * Draws without replacement are not independent, and are left to the rule `recursive`. */
#include "spec/verify/ratio.h"

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
    .summary = "SpecInfer: independent drafts of a node, each with its own distribution, judged in turn",
    .is_ratio = true,
    .verify = verify_multi_round,
};

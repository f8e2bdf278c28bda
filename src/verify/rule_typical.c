/* rule_typical.c - the rule `typical`: typical acceptance (Medusa: Cai et al. 2024, arXiv 2401.10774, section 2.3.1).
 * It is lossy: the text follows another distribution than the target's. It exists because the published figures of
 * Medusa and Hydra were made with it, and it runs only if the user chooses it by name and allows it with --lossy.
 *
 * The problem that it was made for: rules that preserve the distribution accept less as the temperature rises, although
 * many tokens would do as well as the one that was drawn.
 *
 * The idea: a draft x is accepted where the target finds it typical, p being the target's distribution at the node
 * and H(p) its entropy:
 *
 *     p(x) > min(epsilon, delta exp(-H(p)))
 *
 * so that a sharp distribution requires epsilon. A flat one, in which each of exp(H) tokens has a probability of about
 * exp(-H), requires less. The longest path of accepted nodes is taken; among paths of equal length, the most probable
 * one. Nothing is drawn: the token after the path is the most probable one, as in the paper, so that every step yields
 * a token; a text without accepted drafts is therefore greedy, whatever the temperature.
 *
 *     p = (.5 .3 .15 .05), H = 1.14: epsilon .09, delta .3 give min(.09, .096): the first three are accepted
 *
 * epsilon defaults to 0.09 and delta to its square root, as in the released code. p is the distribution after all
 * filters, as for the other rules. At temperature 0 it is a point, and the text is the greedy one. Cost: a distribution
 * for each accepted node with children. Proof: tests/verify/test_rule_typical.c, against all paths of the tree. */
#include "verify/ratio.h"

#include "base/math_functions.h"

#include <math.h>

static void set_path_context(const VerifyInput *in, int32_t node) {
    for (const TreeNode *x = &in->tree->nodes[node]; x->parent >= 0; x = &in->tree->nodes[x->parent])
        in->context[in->n_context + x->depth - 1] = x->token;
}

/* Computes the distribution at a node into s->p. */
static const double *dist_at(const VerifyInput *in, VerifyScratch *s, int32_t node) {
    set_path_context(in, node);
    ratio_target_dist(in, s, node, s->p);
    return s->p;
}

static double threshold_of(const VerifyOptions *o, const double *p, int32_t n_vocab) {
    double epsilon = o->epsilon > 0 ? o->epsilon : 0.09, delta = o->delta > 0 ? o->delta : sqrt(epsilon), entropy = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (p[i] > 0) entropy -= p[i] * math_log(p[i]);
    return fmin(epsilon, delta * math_exp(-entropy));
}

static int verify_typical(const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    (void)err;
    const Tree *t = in->tree;
    bool accepted[TREE_MAX_NODES] = {true};
    double log_p[TREE_MAX_NODES] = {0};
    int32_t best = 0;
    for (int32_t node = 0; node < t->n; node++) {
        if (!accepted[node]) continue;
        int32_t deeper = t->nodes[node].depth - t->nodes[best].depth;
        if (deeper > 0 || (deeper == 0 && log_p[node] > log_p[best])) best = node;
        const double *p = NULL;
        double threshold = 0;
        for (int32_t i = node + 1; i < t->n; i++) {
            if (t->nodes[i].parent != node) continue;
            if (!p) threshold = threshold_of(&in->options, p = dist_at(in, s, node), s->n_vocab);
            accepted[i] = p[t->nodes[i].token] > threshold;
            if (accepted[i]) log_p[i] = log_p[node] + math_log(p[t->nodes[i].token]);
        }
    }
    out->n_path = t->nodes[best].depth;
    for (int32_t node = best; node > 0; node = t->nodes[node].parent) out->path[t->nodes[node].depth - 1] = node;
    const double *p = dist_at(in, s, best);
    out->next_token = 0;
    for (int32_t i = 1; i < s->n_vocab; i++)
        if (p[i] > p[out->next_token]) out->next_token = i;
    return FR_OK;
}

static const Option option_table[] = {
    {.key = "epsilon",
     OPT_REAL(VerifyOptions, epsilon, 1e-6, 1),
     .default_help = "0.09",
     .help = "probability that is enough under any distribution"},
    {.key = "delta",
     OPT_REAL(VerifyOptions, delta, 1e-6, 1),
     .default_help = "the square root of epsilon",
     .help = "factor before exp(-entropy), the threshold of flat distributions"},
    {.key = NULL},
};

const VerifyRule verify_rule_typical = {
    .name = "typical",
    .summary = "LOSSY, only with --lossy: Medusa's typical acceptance, p > min(epsilon, delta exp(-entropy)); the text "
               "follows another distribution",
    .is_lossy = true,
    .verify = verify_typical,
    .option_table = option_table,
};

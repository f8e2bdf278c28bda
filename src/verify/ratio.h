/* ratio.h - what all ratio rules share: the walk down a tree, and the two distributions at a node.
 *
 * p is the target's distribution at a node after all filters, q the distribution that a draft was drawn from. Both
 * are the float32 arrays of sampler_dist, each divided by its sum in double precision, so that the output
 * distribution is right to the last bits of a double.
 */
#ifndef VERIFY_RATIO_H
#define VERIFY_RATIO_H

#include "verify/verifier.h"

/* One node at which the next token is decided. */
typedef struct RatioNode {
    const Tree *tree;
    const SiblingGroup *group; /* the drafts to choose from; at least one */
    int32_t n_vocab;
    double *p,
        p_mass;   /* weights [n_vocab] and their sum: at first the target's distribution (sum 1), after rejections the
                        * residual */
    double *q;    /* [n_vocab] scratch of the rule */
    double *m;    /* likewise */
    int32_t *ids; /* [n_vocab] scratch of the rule */
    double gamma; /* of k-seq; 0: not given */
    RandomSource *random_source;
} RatioNode;

/* Decides among the drafts of a node: returns the index of the accepted one, or -1 with n->p the residual, from which
 * the token will then be drawn. */
typedef int32_t RatioDecide(RatioNode *n);

/* A rule that decides node by node. */
typedef struct RatioRule {
    const char *name;
    /* NULL if the rule can handle the group; otherwise what the rule is for, for the error: "one draft at each node".
     * */
    const char *(*fault)(const SiblingGroup *g);
    RatioDecide *decide;
} RatioRule;

/* ratio_check refuses a tree with a group that the rule cannot handle; ratio_walk does so, then walks down from node
 * 0. */
int ratio_check(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, fr_error *err);
int ratio_walk(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err);

/* Fills p [n_vocab] with the target's distribution at a node, whose context is in->context[0..n_context + its depth).
 * */
void ratio_target_dist(const VerifyInput *in, VerifyScratch *s, int32_t node, double *p);
/* Fills q [n_vocab] with the distribution of a draw; for a point it is 1 at its token. */
void ratio_draft_dist(const DistDraw *d, int32_t token, int32_t n_vocab, double *q);

/* The residual w = max(0, a * p - q) after the rejection of a draft of distribution q, p being weighted by a. Returns
 * its sum. Where the sum is 0 (p = q up to rounding; no draft is rejected there), w becomes p and the sum is p's. w
 * may be p. */
double ratio_residual(double a, const double *p, const double *q, int32_t n_vocab, double *w);

/* All rules but `sampled`. `typical` is not a ratio rule, but needs p as they do. */
extern const VerifyRule verify_rule_chain, verify_rule_multi_round, verify_rule_recursive, verify_rule_k_seq,
    verify_rule_block, verify_rule_typical, verify_rule_transport;
/* The fault of a group of more than one draft, for rules that handle chains only (chain, block). */
const char *ratio_fault_of_chain(const SiblingGroup *g);

/* How a node is decided: by rejection.c (chain, multi-round, recursive), rule_k_seq.c or rule_transport.c. */
RatioDecide rejection_decide, k_seq_decide, transport_decide;

#endif

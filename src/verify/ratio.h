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
    double *p;     /* [n_vocab] weights: at first the target's distribution, after rejections the residual */
    double p_mass; /* the sum of p */
    double *q, *m; /* [n_vocab] working memory of the rule */
    int32_t *ids;  /* [n_vocab] working memory of the rule */
    double gamma;  /* the parameter of the rule `k-seq`; 0: not given */
    RandomSource *random_source;
} RatioNode;

/* Decides among the drafts of a node: returns the index of the accepted one, or -1 with n->p the residual, from which
 * the token will then be drawn. */
typedef int32_t RatioDecide(RatioNode *n);

/* A rule that decides node by node. */
typedef struct RatioRule {
    const char *name;
    /* Returns NULL if the rule can handle the group, otherwise what the rule is for ("one draft at each node"),
     * which becomes part of the error message. A rule without this function handles every group. */
    const char *(*fault)(const SiblingGroup *g);
    RatioDecide *decide;
} RatioRule;

/* ratio_check refuses a tree that has a group that the rule cannot handle. ratio_walk checks the tree in the same
 * way and then walks down from node 0. */
int ratio_check(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, fr_error *err);
int ratio_walk(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err);

/* Fills p [n_vocab] with the target's distribution at a node. The node's context is in->context[0..n_context +
 * depth). */
void ratio_target_dist(const VerifyInput *in, VerifyScratch *s, int32_t node, double *p);
/* Fills q [n_vocab] with the distribution of a draw; for a point it is 1 at its token. */
void ratio_draft_dist(const DistDraw *d, int32_t token, int32_t n_vocab, double *q);

/* Sets w to the residual max(0, a * p - q) after the rejection of a draft of distribution q, where p is weighted by
 * a, and returns the sum of w. If that sum is 0, then p = q up to rounding and no draft is rejected; w becomes p,
 * and the sum is that of p. w may be the same array as p. */
double ratio_residual(double a, const double *p, const double *q, int32_t n_vocab, double *w);

/* All rules except `sampled`. `typical` is not a ratio rule, but it uses ratio_target_dist. */
extern const VerifyRule verify_rule_chain, verify_rule_multi_round, verify_rule_recursive, verify_rule_k_seq,
    verify_rule_block, verify_rule_typical, verify_rule_transport;
/* RatioRule.fault for the rules that handle only chains (chain, block): the fault of a group of more than one draft. */
const char *ratio_fault_of_chain(const SiblingGroup *g);

/* How a node is decided: in rejection.c (chain, multi-round, recursive), rule_k_seq.c and rule_transport.c. */
RatioDecide rejection_decide, k_seq_decide, transport_decide;

#endif

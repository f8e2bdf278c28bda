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

/* ---- the plan of the rule `transport` (transport_plan.c) --------------------------------------------------------- */

enum { TRANSPORT_MAX_PLANNED = 8 }; /* a plan covers this draft and the next seven */

/* The plan for one draft of a node. Here p is the mass of the tokens that have not been drafted yet, and q is the
 * distribution of the draft given those before it. */
typedef struct TransportPlan {
    const DistDraw *draws; /* this draft and those after it */
    int32_t n;             /* how many of them the plan covers */
    /* g: draft j accepts at most this share of the cases in which it draws a token */
    double share[TRANSPORT_MAX_PLANNED];
    double rate[TRANSPORT_MAX_PLANNED]; /* r: the rate of draft j, for draws without replacement */
    double w_sum;                       /* W: the sum of w over all tokens */
    double v_floor;                     /* 1 - q is not taken to be smaller than this in a row weight v */
    double v_sum, v_rest;               /* the sum of all row weights, and the sum without the greatest one */
    int32_t v_max;                      /* the token with the greatest row weight */
    double tau;                         /* an estimate of sum m */
} TransportPlan;

/* Makes the plan for draft i_draw of a node. */
void transport_plan_make(const RatioNode *n, int32_t i_draw, TransportPlan *out);
/* Returns how much of a token's p the drafts after this one can probably accept. */
double transport_capacity(const TransportPlan *plan, int32_t token, double q);

static inline bool transport_is_without_replacement(const TransportPlan *plan) {
    return plan->draws[0].kind == DRAW_WITHOUT_REPLACEMENT;
}

/* Returns the row weight v of a token, as a function of its q. */
static inline double transport_weight(const TransportPlan *plan, double q) {
    if (!transport_is_without_replacement(plan)) return q;
    return q / (1 - q > plan->v_floor ? 1 - q : plan->v_floor);
}

/* Returns the sum of the row weights of all other tokens. */
static inline double transport_weight_of_others(const TransportPlan *plan, int32_t token, double v) {
    return token == plan->v_max ? plan->v_rest : plan->v_sum - v;
}

#endif

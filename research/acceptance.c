/* acceptance.c - the acceptance of a rule, summed over everything that can happen at one node.
 *
 * The drafts are picked with the same scripted random source (random_source.h) that the rule then uses, so that a run
 * of the script is one outcome of drafting and deciding together, and the code that decides is the one that the
 * engine runs. */
#include "research/acceptance.h"

#include "research/optimal_transport.h"

#include <string.h>

typedef struct Trial {
    RandomScript script;
    Tree tree;
    SiblingGroup group;
    double p[ACCEPTANCE_MAX_VOCAB], q[ACCEPTANCE_MAX_VOCAB], m[ACCEPTANCE_MAX_VOCAB];
    int32_t ids[ACCEPTANCE_MAX_VOCAB];
} Trial;

static int32_t best_of(const double *left, int32_t n) {
    int32_t best = 0;
    for (int32_t t = 1; t < n; t++)
        if (left[t] > left[best]) best = t;
    return best;
}

/* Drafts up to k tokens below node 0. */
static void draft(Trial *x, DrawKind kind, const float *q, int32_t n_vocab, int32_t k) {
    double left[ACCEPTANCE_MAX_VOCAB];
    for (int32_t t = 0; t < n_vocab; t++) left[t] = (double)q[t];
    tree_reset(&x->tree, 0);
    x->group.n = 0;
    for (int32_t i = 0; i < k; i++) {
        int32_t token = kind == DRAW_POINT ? best_of(left, n_vocab)
                                           : x->script.random_source.pick(&x->script.random_source, left, n_vocab);
        if (!(left[token] > 0)) return;
        x->group.draws[x->group.n++] = (DistDraw){.parent = 0,
                                                  .child = tree_add(&x->tree, 0, token, 1, 0),
                                                  .kind = kind,
                                                  .q = kind == DRAW_POINT ? NULL : q};
        if (kind != DRAW_IID) left[token] = 0;
    }
}

double acceptance_of(RatioDecide *decide, DrawKind kind, const double *p, const float *q, int32_t n_vocab, int32_t k,
                     double gamma, double *dist) {
    fr_assert(n_vocab > 0 && n_vocab <= ACCEPTANCE_MAX_VOCAB && k > 0 && k <= ACCEPTANCE_MAX_DRAFTS);
    Trial x;
    double accepted = 0;
    if (dist) memset(dist, 0, (size_t)n_vocab * sizeof *dist);
    random_script_begin(&x.script);
    do {
        draft(&x, kind, q, n_vocab, k);
        memcpy(x.p, p, (size_t)n_vocab * sizeof *p);
        RatioNode n = {.tree = &x.tree,
                       .group = &x.group,
                       .n_vocab = n_vocab,
                       .p = x.p,
                       .p_mass = 1,
                       .q = x.q,
                       .m = x.m,
                       .ids = x.ids,
                       .gamma = gamma,
                       .random_source = &x.script.random_source};
        int32_t i = decide(&n);
        if (i >= 0) accepted += x.script.chance;
        if (!dist) continue;
        int32_t token = i >= 0 ? x.tree.nodes[x.group.draws[i].child].token
                               : x.script.random_source.pick(&x.script.random_source, n.p, n_vocab);
        dist[token] += x.script.chance;
    } while (random_script_next(&x.script));
    return accepted;
}

double acceptance_multi_round(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    return acceptance_of(rejection_decide, DRAW_IID, p, q, n_vocab, k, 0, NULL);
}

double acceptance_k_seq(const double *p, const float *q, int32_t n_vocab, int32_t k, double gamma) {
    return acceptance_of(k_seq_decide, DRAW_IID, p, q, n_vocab, k, gamma, NULL);
}

double acceptance_recursive(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    return acceptance_of(rejection_decide, DRAW_WITHOUT_REPLACEMENT, p, q, n_vocab, k, 0, NULL);
}

double acceptance_transport(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    return acceptance_of(transport_decide, DRAW_WITHOUT_REPLACEMENT, p, q, n_vocab, k, 0, NULL);
}

double acceptance_optimum_without_replacement(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    double chance_of[1 << OPTIMAL_TRANSPORT_MAX_VOCAB];
    optimal_transport_sets_without_replacement(q, n_vocab, k, chance_of);
    return optimal_transport_acceptance(p, n_vocab, chance_of);
}

double acceptance_optimum(const double *p, const float *q, int32_t n_vocab, int32_t k) {
    double chance_of[1 << OPTIMAL_TRANSPORT_MAX_VOCAB];
    optimal_transport_sets_iid(q, n_vocab, k, chance_of);
    return optimal_transport_acceptance(p, n_vocab, chance_of);
}

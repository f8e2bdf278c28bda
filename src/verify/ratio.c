/* ratio.c - what all ratio rules share: the two distributions at a node, the residual, and the walk down the tree.
 *
 * At each node the rule decides among the drafts of the sibling group. If it accepts one, the walk goes on at that
 * node. Otherwise the next token is drawn from the distribution that the rule left in p, and the walk ends. All
 * groups are checked before the first decision, so that a tree is refused before any randomness is used. */
#include "verify/ratio.h"

#include <string.h>

int ratio_check(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, fr_error *err) {
    for (int32_t node = 0; node < in->tree->n; node++) {
        sibling_group(in->tree, node, &s->group);
        const char *fault = s->group.n && rule->fault ? rule->fault(&s->group) : NULL;
        if (fault)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "--verify %s is for %s and cannot handle node %d of the drafter's tree "
                             "with its %d drafts; use --verify recursive or transport, which handle every tree",
                             rule->name, fault, node, s->group.n);
    }
    return FR_OK;
}

const char *ratio_fault_of_chain(const SiblingGroup *g) { return g->n > 1 ? "one draft at each node" : NULL; }

static double sum_of(const double *w, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += w[i];
    return sum;
}

static void normalise(double *w, int32_t n) {
    double sum = sum_of(w, n);
    for (int32_t i = 0; i < n; i++) w[i] /= sum;
}

void ratio_target_dist(const VerifyInput *in, VerifyScratch *s, int32_t node, double *p) {
    sampler_dist(s->sampler, in->sampling, verify_logits(in, s, node), in->context,
                 in->n_context + in->tree->nodes[node].depth, s->dist);
    for (int32_t i = 0; i < s->n_vocab; i++) p[i] = (double)s->dist[i];
    normalise(p, s->n_vocab);
}

void ratio_draft_dist(const DistDraw *d, int32_t token, int32_t n_vocab, double *q) {
    if (!d->q) {
        memset(q, 0, (size_t)n_vocab * sizeof *q);
        q[token] = 1;
        return;
    }
    for (int32_t i = 0; i < n_vocab; i++) q[i] = (double)d->q[i];
    normalise(q, n_vocab);
}

double ratio_residual(double a, const double *p, const double *q, int32_t n_vocab, double *w) {
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) sum += a * p[i] > q[i] ? a * p[i] - q[i] : 0;
    if (!(sum > 0)) {
        memmove(w, p, (size_t)n_vocab * sizeof *w);
        return sum_of(w, n_vocab);
    }
    for (int32_t i = 0; i < n_vocab; i++) w[i] = a * p[i] > q[i] ? a * p[i] - q[i] : 0;
    return sum;
}

int ratio_walk(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    int status = ratio_check(rule, in, s, err);
    if (status) return status;
    RatioNode n = {.tree = in->tree,
                   .group = &s->group,
                   .n_vocab = s->n_vocab,
                   .p = s->p,
                   .q = s->q,
                   .m = s->m,
                   .ids = s->ids,
                   .gamma = in->options.gamma,
                   .random_source = in->random_source};
    out->n_path = 0;
    for (int32_t node = 0;;) {
        ratio_target_dist(in, s, node, n.p);
        n.p_mass = 1;
        sibling_group(in->tree, node, &s->group);
        int32_t accepted = s->group.n ? rule->decide(&n) : -1;
        if (accepted < 0) {
            out->next_token = in->random_source->pick(in->random_source, n.p, n.n_vocab);
            return FR_OK;
        }
        node = s->group.draws[accepted].child;
        in->context[in->n_context + out->n_path] =
            in->tree->nodes[node].token; /* deeper distributions depend on the path */
        out->path[out->n_path++] = node;
    }
}

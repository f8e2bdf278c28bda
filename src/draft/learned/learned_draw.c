/* learned_draw.c - children of a learned drafter drawn at random, with declared distributions, for ratio rules.
 *
 * The problem: a ratio rule accepts a ranked token with its probability p at most, because a point has q = 1. At temperature 1
 * a tree of the drafter's favourites accepts little. A token drawn from q is accepted with probability sum min(p, q), the
 * more the nearer q is to p.
 *
 * The idea: stochastic beam search (draw.h), as by rsd-s, with the learned drafter as draft model. The children of a
 * node are drawn without replacement from q, the drafter's distribution there under the request's temperature, filters and
 * penalties, with noise of their own. Everything that the method ranks by the probability of a path (which nodes are
 * expanded, which stay within the budget) is ranked by psi instead, the perturbed log-probability of the path. learned_top
 * returns the logarithms that make it so: psi of the child less psi of its parent.
 *
 * Why it may be pruned: whether a node keeps its k-th child depends on the rank of that child's psi. Given the values and
 * tokens drawn before, the k-th value is independent of the k-th token (draft_model.c has the argument); psi of nodes below
 * the child never exceeds its own and so does not change its rank; and nodes elsewhere have noise of their own. Siblings fall in
 * psi, so that those that remain are the first ones drawn. Ranking by q instead would be wrong: rare tokens would
 * seldom remain, and the declared q would give them too much. tests/lossless/test_learned_draws.c shows both.
 *
 * The first child has its parent's psi, which is exact, so that the path of first draws, a chain as by sps, is always kept;
 * what is left of the budget goes to branches.
 *
 * A path is recognised by a hash of its tokens. Memory: V floats for each expanded node, in the request's DraftDists.
 * When it loses: where greedy favourites carry nearly all of p (low temperatures), 16 points may accept as much. */
#include "draft/learned/learned.h"

#include "base/hash.h"

static uint64_t key_of(const int32_t *path, int32_t n) { return hash64(path, (size_t)n * sizeof *path, 0); }

static const LearnedDraw *find_draw(const LearnedSequence *s, uint64_t key) {
    for (int32_t i = 0; i < s->n_draws; i++)
        if (s->draws[i].key == key) return &s->draws[i];
    return NULL;
}

static void keep_children(LearnedSequence *s, const int32_t *path, int32_t n_path, const DrawChild *c, int32_t n) {
    int32_t below[TREE_MAX_NODES + 1];
    for (int32_t k = 0; k < n_path; k++) below[k] = path[k];
    for (int32_t i = 0; i < n; i++) {
        below[n_path] = c[i].token;
        s->draws[s->n_draws++] = (LearnedDraw){.key = key_of(below, n_path + 1), .log_q = c[i].log_q, .psi = c[i].psi};
    }
}

int32_t learned_draw(LearnedDrafter *d, LearnedSequence *s, const int32_t *path, int32_t n_path, const float *q,
                     int32_t k, int32_t *tokens, double *log_p) {
    uint64_t key = key_of(path, n_path);
    const LearnedDraw *parent = find_draw(s, key);
    const DrawParent from = {.log_q = parent ? parent->log_q : 0,
                             .psi = parent ? parent->psi : 0,
                             .noise = {.stream = RNG_DRAFT,
                                       .seed = hash64(&key, sizeof key, s->sampling.seed),
                                       .position = s->position + (uint64_t)n_path}};
    if (k > LEARNED_MAX_DRAWS - s->n_draws)
        k = LEARNED_MAX_DRAWS - s->n_draws; /* a count, and so independent of tokens */
    if (s->n_expanded == TREE_MAX_NODES || k == 0) return 0;
    int32_t n = draw_children(q, d->n_vocab, &from, 0, k, d->children);
    s->expanded[s->n_expanded++] = (LearnedExpanded){.key = key, .q = q};
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = d->children[i].token;
        log_p[i] = d->children[i].psi - from.psi;
    }
    keep_children(s, path, n_path, d->children, n);
    return n;
}

static const float *dist_below(const LearnedSequence *s, const Tree *t, int32_t node) {
    int32_t path[TREE_MAX_NODES];
    uint64_t key = key_of(path, learned_path(t, node, path));
    for (int32_t i = 0; i < s->n_expanded; i++)
        if (s->expanded[i].key == key) return s->expanded[i].q;
    return NULL;
}

void learned_declare(LearnedDrafter *d, int32_t sequence, Tree *t) {
    const LearnedSequence *s = &d->sequences[sequence];
    if (!s->is_drawing) return;
    for (int32_t i = 1; i < t->n; i++) {
        const float *q = dist_below(s, t, t->nodes[i].parent);
        fr_assert(q);
        bool fits = draft_dists_add(t->dists, t->nodes[i].parent, i, DRAW_WITHOUT_REPLACEMENT, q);
        fr_assert(fits); /* one draw for each node */
    }
}

/* learned_draw.c - children of a learned drafter drawn at random, with declared distributions, for ratio rules.
 *
 * The problem: a ratio rule accepts a ranked token with its probability p at most, because a point has q = 1. At
 * temperature 1 a tree of the drafter's favourites accepts little. A token drawn from q is accepted with probability
 * sum min(p, q), the more the nearer q is to p.
 *
 * The idea: stochastic beam search (gumbel.h), as by rsd-s, with the learned drafter as draft model. The children of a
 * node are drawn without replacement from q, the drafter's distribution there under the request's temperature, filters
 * and penalties, with noise of their own. Everything that the method ranks by the probability of a path (which nodes
 * are expanded, which stay within the budget) is ranked by psi instead, the perturbed log-probability of the path.
 * learned_top returns the logarithms that make it so: psi of the child less psi of its parent.
 *
 * Why it may be pruned. Whether a node keeps its k-th child depends on the rank of that child's psi. Given the values
 * and tokens drawn before, the k-th value is independent of the k-th token (draft_model.c has the argument); psi of
 * nodes below the child never exceeds its own and so does not change its rank; and nodes elsewhere have noise of their
 * own. Siblings fall in psi, so that those that remain are the first ones drawn. So each kept child has its declared
 * distribution, given its siblings before it and given that it was kept, which is all that `recursive` needs. Ranking
 * by q instead would be wrong: rare tokens would seldom remain, and the declared q would give them too much.
 *
 * Whole groups. `transport` looks at all children of a node before it accepts one. So how many children a node keeps
 * must not depend on their tokens, nor on tokens below them (rule_transport.c). By rank it does: the second child is
 * kept unless enough nodes below the first one have a greater psi, and whether they have depends on what they are. For
 * such a rule the budget is spent on whole groups: of the kept nodes, the one with the greatest psi gets its children
 * next, and their number depends on the budget and on the depth only. Which groups are kept depends on psi of their
 * parents and on nodes of greater psi, and none of these are below the parent.
 *
 *     budget 8    the ─┬─ cat ── sat ── on ── ...     two children at the root, one at each node below it; what is left
 *                      └─ dog ── ran                  goes to the paths of greatest psi
 *
 * Trees of whole groups have fewer branches, but `transport` gains more by looking ahead than it loses by that: 16
 * nodes on synthetic distributions gave 2.93 tokens per pass with `recursive` and pruning by rank, 3.12 with whole
 * groups and `transport`. More children lose again: three at each node gave 2.74.
 *
 * Proof: tests/lossless/test_learned_draws.c by counting, and tests/verify/test_rules.c (pruned trees) by exact
 * enumeration.
 *
 * The first child has its parent's psi, which is exact, so that the path of first draws, a chain as by sps, is always
 * kept; what is left of the budget goes to branches.
 *
 * A path is recognised by a hash of its tokens. Memory: V floats for each expanded node, in the request's DraftDists.
 * When it loses: where greedy favourites carry nearly all of p (low temperatures), 16 points may accept as much. */
#include "draft/learned/learned.h"

#include "base/hash.h"
#include "tree/tree.h"

#include <math.h>

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
        s->draws[s->n_draws++] =
            (LearnedDraw){.key = key_of(below, n_path + 1), .token = c[i].token, .log_q = c[i].log_q, .psi = c[i].psi};
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
    s->expanded[s->n_expanded++] = (LearnedExpanded){.key = key, .q = q, .first = s->n_draws, .n = n};
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = d->children[i].token;
        log_p[i] = d->children[i].psi - from.psi;
    }
    keep_children(s, path, n_path, d->children, n);
    return n;
}

static const LearnedExpanded *find_expanded(const LearnedSequence *s, uint64_t key) {
    for (int32_t i = 0; i < s->n_expanded; i++)
        if (s->expanded[i].key == key) return &s->expanded[i];
    return NULL;
}

void learned_declare(LearnedDrafter *d, int32_t sequence, Tree *t) {
    const LearnedSequence *s = &d->sequences[sequence];
    int32_t path[TREE_MAX_NODES];
    if (!s->is_drawing) return;
    for (int32_t i = 1; i < t->n; i++) {
        int32_t parent = t->nodes[i].parent;
        const LearnedExpanded *e = find_expanded(s, key_of(path, learned_path(t, parent, path)));
        fr_assert(e);
        bool fits = draft_dists_add(t->dists, parent, i, DRAW_WITHOUT_REPLACEMENT, e->q);
        fr_assert(fits); /* one draw for each node */
    }
}

/* ---- whole groups ---------------------------------------------------------------------------------- */

/* How many children a node at that depth keeps: one, so that CHAIN nodes are left for the longest path, or more of a
 * large budget. It must not depend on anything that was drawn. */
static int32_t group_size(int32_t budget, int32_t depth) {
    enum { CHAIN = 4, THIRD = 32 };
    int32_t spare = budget - CHAIN - CHAIN * depth;
    return 1 + (spare > 0) + (spare > THIRD);
}

typedef struct OpenNode {
    const LearnedExpanded *group; /* NULL: it was not expanded, or its children are in the tree */
    double psi;
} OpenNode;

/* The node that gets its children next; -1: none is left. */
static int32_t best_open(const OpenNode *open, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (open[i].group && (best < 0 || open[i].psi > open[best].psi)) best = i;
    return best;
}

/* Makes the tree anew, of whole groups. */
static void keep_groups(const LearnedDrafter *d, const LearnedSequence *s, Tree *t, int32_t budget) {
    OpenNode open[TREE_MAX_NODES];
    int32_t node = 0;
    t->n = 1;
    open[0] = (OpenNode){.group = find_expanded(s, key_of(NULL, 0))};
    for (; t->n - 1 < budget && node >= 0; node = best_open(open, t->n)) {
        const LearnedExpanded *group = open[node].group;
        int32_t size = group_size(budget, t->nodes[node].depth), left = budget - (t->n - 1);
        open[node].group = NULL;
        if (size > left) size = left;
        for (int32_t k = 0; group && k < group->n && k < size; k++) {
            const LearnedDraw *x = &s->draws[group->first + k];
            int32_t child = tree_add(t, node, x->token, (float)exp(x->psi), d->base.source);
            open[child] = (OpenNode){.group = find_expanded(s, x->key), .psi = x->psi};
        }
    }
}

void learned_prune(LearnedDrafter *d, int32_t sequence, Tree *t, int32_t budget) {
    const LearnedSequence *s = &d->sequences[sequence];
    if (s->is_drawing && s->dists->whole_groups) keep_groups(d, s, t, budget);
    else union_prune(t, budget);
    learned_declare(d, sequence, t);
}

/* learned_top.c - which tokens the target will choose after a node, judged by a drafter's logits: ranked, or drawn.
 *
 * The problem. A drafter learns the target's distribution, but a token is accepted only if it is the one that the
 * target chooses. For a greedy target, that is mostly the drafter's favourite. At temperature 1 the target draws, and a
 * tree of favourites is wrong whenever the draw takes another token: 16 nodes of EAGLE-2 accept 0.6 tokens a step
 * instead of 3.8.
 *
 * The idea: the draw is no secret here. The target will take argmax(log p + G), and the noise G is keyed by the
 * request, the position and the token (gumbel.h), so a drafter can compute it as well. With q, the drafter's estimate
 * of p under the request's temperature, filters and penalties, it ranks tokens by log q + G. Where q = p the first of
 * them is the target's choice with certainty. Only the verifier chooses tokens, so this changes no text.
 *
 * How much it helps: let q differ from p by the total variation distance TV. One candidate by coupled noise agrees with
 * the target with probability at least (1 - TV) / (1 + TV) (Daliri et al. 2025, arXiv 2408.07978). A candidate drawn
 * independently agrees with probability sum p q, and the favourite with probability max p.
 *
 * The chance of a child. In the greedy case the drafter's uncertainty about the best logit z is softmax(z / T0), T0 =
 * LEARNED_MIN_TEMPERATURE: if a drafter finds two z nearly equal, it cannot tell which one is greater. With noise the
 * target compares z + T G instead, and drafters are less sure of z away from the best token:
 *
 *     p_accept = softmax((z + T G) / (T0 + 0.4 T)) over the best tokens,     z = T log q + const
 *
 * (the divisor was measured: research/DIARY.md). Where one token leads after the noise, a chain gets the budget, and
 * where two are close, both do.
 *
 * A ratio rule uses other random numbers than the target's noise. Methods that declare their draws then draw tokens
 * with noise of their own (below).
 *
 * In all other cases (coupled=0, or a method without draws under a ratio rule) the tokens of greatest p = softmax(z /
 * max(T, T0)) are taken. With T = 1 throughout, greedy requests would get trees that are too wide and too short.
 *
 * Cost: a softmax over V and the noise of the tokens that can be among the best (gumbel.c). When it loses: never in
 * acceptance; at T near 0 it is the ranking by q. Proof: tests/draft/test_learned_top.c,
 * tests/lossless/test_learned_temperature.c. */
#include "draft/learned/learned.h"

#include "base/hash.h"
#include "base/math_functions.h"
#include "tree/tree.h"

#include <string.h>

/* ---- drawing -------------------------------------------------------------------------------------------- */

/* Children that are drawn at random, with declared distributions, for ratio rules.
 *
 * The problem. A ratio rule accepts a ranked token at most with its probability p, because a point has q = 1. At
 * temperature 1 a tree of the drafter's favourites accepts little. A token drawn from q is accepted with probability
 * sum min(p, q), which is the greater, the nearer q is to p.
 *
 * The idea: stochastic beam search (gumbel.h), as in rsd-s, with the learned drafter as draft model. The children of a
 * node are drawn without replacement from q, the drafter's distribution there under the request's temperature, filters
 * and penalties, with noise of their own. Everything that the method ranks by the probability of a path (which nodes
 * are expanded, which stay within the budget) is ranked by psi instead, the perturbed log-probability of the path.
 * learned_top returns the logarithms that make it so: the child's psi minus its parent's.
 *
 * Why it may be pruned. Whether a node keeps its k-th child depends on the rank of that child's psi. Given the values
 * and tokens drawn before, the k-th value is independent of the k-th token (draft_model.c has the argument); psi of
 * nodes below the child never exceeds its own and so does not change its rank; and nodes elsewhere have noise of their
 * own. Siblings are drawn in falling order of psi, so that those that remain are the first ones drawn. So each kept
 * child has its declared distribution, given its siblings before it and given that it was kept, which is all that
 * `recursive` needs. Ranking by q instead would be wrong: rare tokens would seldom remain, and the declared q would
 * give them too much.
 *
 * Whole groups. `transport` looks at all children of a node before it accepts one. So how many children a node keeps
 * must not depend on their tokens, nor on tokens below them (rule_transport.c). Pruning by rank breaks this: the second
 * child is kept unless enough nodes below the first one have a greater psi, and that depends on which tokens they are.
 * For such a rule the budget is spent on whole groups: among the kept nodes, the one with the greatest psi gets its
 * children next, and their number depends only on the budget and on the depth. Which groups are kept depends on psi of
 * their parents and on nodes of greater psi, and none of these are below the parent.
 *
 *     budget 8    the ─┬─ cat ── sat ── on ── ...     two children at the root, one at each node below it; what is left
 *                      └─ dog ── ran                  goes to the paths of greatest psi
 *
 * Trees of whole groups have fewer branches, but `transport` gains more by looking ahead than it loses by that: 16
 * nodes on synthetic distributions gave 2.93 tokens per step with `recursive` and pruning by rank, 3.12 with whole
 * groups and `transport`. More children lose again: three at each node gave 2.74.
 *
 * `dflash` grows its tree by psi from the greatest down, which gives the trees of both kinds without pruning: it
 * expands only nodes that stay.
 *
 * The first child has exactly its parent's psi, so that the path of first draws, a chain as in sps, is always kept;
 * what is left of the budget goes to branches.
 *
 * A path is recognised by a hash of its tokens. Memory: V floats for each expanded node, in the request's DraftDists.
 * When it loses: at low temperatures, where the greedy favourites have nearly all of p, 16 points may accept as much.
 * Proof: tests/lossless/test_learned_draws.c by counting, and tests/verify/test_rules.c (pruned trees) by exact
 * enumeration. */
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

/* Draws k tokens from q, which must stay valid until the end of the proposal. log_p is each token's psi minus that of
 * the path. Returns how many were drawn. */
static int32_t draw(LearnedDrafter *d, LearnedSequence *s, const int32_t *path, int32_t n_path, const float *q,
                    int32_t k, int32_t *tokens, double *log_p) {
    uint64_t key = key_of(path, n_path);
    const LearnedDraw *parent = find_draw(s, key);
    const DrawParent from = {.log_q = parent ? parent->log_q : 0,
                             .psi = parent ? parent->psi : 0,
                             .noise = {.stream = RNG_DRAFT,
                                       .seed = hash64(&key, sizeof key, s->sampling.seed),
                                       .position = s->position + (uint64_t)n_path}};
    if (k > LEARNED_MAX_DRAWS - s->n_draws)
        k = LEARNED_MAX_DRAWS - s->n_draws; /* k must depend only on counts, not on tokens */
    if (s->n_expanded == TREE_MAX_NODES || k == 0) return 0;
    int32_t n = draw_children(d->draw_cache, q, &from, 0, k, d->children);
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
        fr_assert(fits); /* there is one draw for each node */
    }
}

/* ---- whole groups ---------------------------------------------------------------------------------- */

/* Returns how many children a node at that depth keeps: one if the rest of the budget is needed for a long path (CHAIN
 * nodes for each level), otherwise more. The number must not depend on anything that was drawn. */
static int32_t group_size(int32_t budget, int32_t depth) {
    enum { CHAIN = 4, THIRD = 32 };
    int32_t spare = budget - CHAIN - CHAIN * depth;
    return 1 + (spare > 0) + (spare > THIRD);
}

int32_t learned_group_size(const LearnedDrafter *d, int32_t sequence, int32_t budget, int32_t depth) {
    const LearnedSequence *s = &d->sequences[sequence];
    return s->is_drawing && s->dists->whole_groups ? group_size(budget, depth) : 0;
}

typedef struct OpenNode {
    const LearnedExpanded *group; /* NULL: the node was not expanded, or its children are already in the tree */
    double psi;
} OpenNode;

/* Returns the node that gets its children next, or -1 if there is none. */
static int32_t best_open(const OpenNode *open, int32_t n) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (open[i].group && (best < 0 || open[i].psi > open[best].psi)) best = i;
    return best;
}

/* Rebuilds the tree from whole groups of siblings. */
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
            int32_t child = tree_add(t, node, x->token, (float)math_exp(x->psi), d->base.source);
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

/* ---- ranking --------------------------------------------------------------------------------------------- */

enum { N_RIVALS = 16 }; /* chances are normalised over at least this many tokens */

/* Multiplies x by a factor, in blocks of constant length, which compilers vectorise. */
static void scale(float *x, int32_t n, float factor) {
    enum { BLOCK = 16 };
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        for (int32_t k = 0; k < BLOCK; k++) x[i + k] *= factor;
    for (; i < n; i++) x[i] *= factor;
}

static int32_t top_by_probability(const LearnedDrafter *d, float temperature, float *logits, int32_t k, int32_t *tokens,
                                  double *log_p) {
    scale(logits, d->n_vocab, 1 / (temperature > LEARNED_MIN_TEMPERATURE ? temperature : LEARNED_MIN_TEMPERATURE));
    d->backend->softmax(d->device, logits, 1, d->n_vocab);
    int32_t n = logits_top_k(logits, d->n_vocab, k,
                             tokens); /* an infinite logit makes all p NaN, and NaN is never among the top k */
    for (int32_t i = 0; i < n; i++) log_p[i] = math_log((double)logits[tokens[i]]);
    return n;
}

/* Returns whether there are neither filters nor penalties. Biases are allowed. */
static bool is_plain(const SamplingOptions *o) {
    return o->top_k == 0 && o->top_p >= 1 && o->min_p <= 0 && o->repeat_penalty == 1 && o->frequency_penalty == 0 &&
           o->presence_penalty == 0;
}

/* Computes q after the path in the way in which the target's sampler computes p. Returns where q is: in `out`, unless
 * `out` is d->dist; then it may be in `logits`. */
static const float *find_dist(LearnedDrafter *d, LearnedSequence *s, const int32_t *path, int32_t n_path, float *logits,
                              float *out) {
    if (is_plain(&s->sampling)) {
        sampling_add_bias(&s->sampling, logits, d->n_vocab);
        scale(logits, d->n_vocab, 1 / s->sampling.temperature);
        d->backend->softmax(d->device, logits, 1, d->n_vocab);
        return out == d->dist ? logits : memcpy(out, logits, (size_t)d->n_vocab * sizeof *out);
    }
    if (path) memcpy(s->context + s->n_tokens, path, (size_t)n_path * sizeof *path);
    sampler_dist(d->sampler, &s->sampling, logits, s->context, s->n_tokens + (path ? n_path : 0), out);
    return out;
}

int32_t learned_top(LearnedDrafter *d, int32_t sequence, const int32_t *path, int32_t n_path, float *logits, int32_t k,
                    int32_t *tokens, double *log_p) {
    LearnedSequence *s = &d->sequences[sequence];
    if (s->is_drawing) {
        float *row = draft_dists_row(s->dists); /* NULL if memory ran out: no children, and the engine reports it */
        return row ? draw(d, s, path, n_path, find_dist(d, s, path, n_path, logits, row), k, tokens, log_p) : 0;
    }
    if (!s->is_coupled) {
        sampling_add_bias(&s->sampling, logits, d->n_vocab);
        return top_by_probability(d, s->sampling.temperature, logits, k, tokens, log_p);
    }
    const float *q = find_dist(d, s, path, n_path, logits, d->dist);
    const DrawParent parent = {
        .noise = {.stream = RNG_TARGET, .seed = s->sampling.seed, .position = s->position + (uint64_t)n_path}};
    const DrawChild *best = d->children;
    int32_t n = draw_children(d->draw_cache, q, &parent, 0, k > N_RIVALS ? k : N_RIVALS, d->children);
    double t = (double)s->sampling.temperature, sum = 0;
    double sharpness = t / ((double)LEARNED_MIN_TEMPERATURE + 0.4 * t);
    for (int32_t i = 0; i < n; i++) sum += math_exp(sharpness * (best[i].value - best[0].value));
    if (n > k) n = k;
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = best[i].token;
        log_p[i] = sharpness * (best[i].value - best[0].value) - math_log(sum);
    }
    return n;
}

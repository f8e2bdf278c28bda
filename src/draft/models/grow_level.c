/* grow_level.c - draws the children of all nodes of a level of a draft model's trees.
 *
 * Drawing. The children of a node come from q, the distribution of the draft model there, with the penalties,
 * temperature and filters of the request (sampler_dist). gumbel.h draws from it: without replacement, or (DRAFT_PATHS)
 * once for each path that passes through the node, independently. With coupled=1 a draw uses the noise with which the
 * target will choose its own token at that output position (verifier.c), so the two agree more often than independent
 * draws from p and q would. With coupled=0 each node has noise of its own. Independent paths are never coupled: with
 * the same noise they would all be the same path. A greedy request takes the top k of q at temperature 1. Under the
 * rule `sampled` the text does not depend on any of this.
 *
 * p_accept of a node is the product of the chances along its path. The chance of a child is q, unless the draw was
 * coupled. A coupled draw depends on the noise, which q ignores: a token of small q that the noise favours is
 * probably the target's choice too. Greedy drafting needs the probability that a token has the greatest logit z, and
 * softmax(z) estimates it, with the draft model's confidence in its logits. Likewise, coupled drafting needs the
 * probability of the greatest z + T G and estimates it by softmax(z + T G): weights e^(T (log q + G)), since z = T
 * log q + const, over the GROW_N_RIVALS best tokens. On the shipped models at T = 1 with 4 nodes a step, the
 * acceptance length of rsd-c is 2.37 with this estimate and 2.01 if nodes are ranked by q (docs/methods/README.md).
 *
 * Declared distributions. A ratio rule (draft_dists.h) divides by the distribution that a token was drawn from. It is
 * exact only if each token of a group has that distribution given everything that was known when it was proposed. So
 * if a tree has `dists`:
 *
 *   - no draw is coupled: the drafter must not depend on the target's noise;
 *   - each draw is declared with the very array that it was drawn from;
 *   - nothing is pruned by p_accept, or by anything else that depends on the token removed. The budget limits the shape
 *     beforehand: levels are filled from the root down, the last one gets what is left of the budget, divided among its parents (or
 *     paths) in their order, and deeper levels are not grown. The number of children of a node may depend on the levels above,
 *     which do not change any more, but not on the tokens of its own level.
 *
 * The beam is the one shape that removes nodes after drawing them: it keeps those of greatest psi among the children
 * of all nodes. This does not depend on tokens either. Of independent Gumbel variables located at log q(x), the
 * greatest value is independent of which x has it. Given the first values and tokens, the next value is independent
 * of the next token, because the remaining tokens compete in the same way, conditioned to be below the last value
 * (Kool et al. 2019; it rests on the memorylessness of the exponential distribution). Whether a node keeps its k-th
 * child depends on its psi, which is a function of the k-th value, the first value and the levels above, and on other
 * nodes' noise; never on the k-th token. So the k-th child that remains is distributed as q without the tokens drawn
 * before it, and the siblings that remain are the first ones drawn (draw_beam keeps their order). The end of a group
 * of siblings is thus a stopping time that depends on the past only, and a rule that is exact whether or not a
 * further child is offered is exact with it. Pruning by q is the counterexample: tokens of small q would rarely
 * remain, and the declared distribution would give them too much. tests/lossless/test_draft_dists.c shows both.
 *
 * For a rule that looks ahead (DraftDists.whole_groups) that is not enough. The k-th value is lower if the tokens
 * before it had large q, so the number of children that remain says something about them. The beam then consists of
 * whole groups: nodes get children in falling order of their psi, as many as group_size says, which depends on
 * counts only. All of them remain. With four paths, the best node of a level gets two children and the next two get
 * one; on synthetic distributions `transport` accepts as much with it as it would with the other beam, if it were
 * exact there. */
#include "draft/models/grow_level.h"

#include "base/hash.h"

#include <math.h>

/* ---- the children of one node -------------------------------------------------------------------- */

/* Computes the distribution at a node of the front: into a row of the tree's distributions if it is declared, else
 * into memory that the next node overwrites. */
static int find_dist(DraftModel *d, int32_t at, fr_error *err) {
    const DraftFront *f = &d->front[at];
    DraftMember *m = &d->group[f->i];
    float *dist = m->declares ? draft_dists_row(m->tree->dists) : d->dist;
    if (!dist) return error_memory(err, "the distributions of a tree", (size_t)d->small_model.n_vocab * sizeof *dist);
    small_model_kv_dist(&d->small_model, m->s, m->tree, f->node, f->row, dist);
    d->dists[at] = dist;
    return FR_OK;
}

/* Sets the chance of each drawn child, given in descending order of value, to be the target's choice: q, or for
 * coupled draws the softmax of the values (see above). */
static void set_chances(const DraftMember *m, DrawChild *drawn, int32_t n) {
    double sum = 0, t = (double)m->s->dist.temperature;
    bool is_q = m->s->greedy || m->own_noise;
    for (int32_t i = 0; i < n; i++) sum += exp(t * (drawn[i].value - drawn[0].value));
    for (int32_t i = 0; i < n; i++)
        drawn[i].chance = is_q ? drawn[i].q : (float)(exp(t * (drawn[i].value - drawn[0].value)) / sum);
}

/* The `width` best children of a node, in descending order of value. */
static int32_t draw_best(DraftModel *d, int32_t at, int32_t width, DrawChild *out) {
    const DraftFront *f = &d->front[at];
    const DraftMember *m = &d->group[f->i];
    int32_t k = width < GROW_N_RIVALS && !m->own_noise && !m->s->greedy ? GROW_N_RIVALS : width;
    int32_t n = draw_children(d->dists[at], d->small_model.n_vocab, &f->parent, at, k, out);
    set_chances(m, out, n);
    return n < width ? n : width;
}

/* One child for each of the first `width` paths that passes through the node. Greedy paths split at the root, where
 * each takes the next best token; under a ratio rule they are one path, because all draws from a distribution of one
 * token are equal. */
static int32_t draw_paths(DraftModel *d, int32_t at, int32_t width, DrawChild *out) {
    const DraftFront *f = &d->front[at];
    const DraftMember *m = &d->group[f->i];
    if (m->s->greedy && m->tree->dists && width > 1) width = 1;
    uint64_t paths[DRAFT_MODEL_MAX_WIDTH] = {0};
    int32_t n_paths = 0, n = 0;
    for (uint64_t path = 0; path < (uint64_t)width; path++)
        if (f->paths >> path & 1) paths[n_paths++] = path;
    if (m->s->greedy || !m->own_noise) n = draw_best(d, at, n_paths, out);
    else
        for (; n < n_paths; n++) { /* each draws exactly one token */
            DrawParent one = f->parent;
            if (paths[n] > 0) one.noise.seed = hash64(&paths[n], sizeof paths[n], one.noise.seed);
            (void)draw_children(d->dists[at], d->small_model.n_vocab, &one, at, 1, &out[n]);
            out[n].chance = out[n].q;
        }
    for (int32_t k = 0; k < n; k++) out[k].path = (int32_t)paths[k];
    return n;
}

/* ---- the level ------------------------------------------------------------------------------------ */

/* How many children node k of the n nodes of a level draws: its share of what is left of the budget. */
static int32_t share_of(int32_t width, int32_t n_left, int32_t k, int32_t n) {
    int32_t share = n_left / n + (k < n_left % n);
    return width < share ? width : share;
}

/* The number of children of parent k of n in a beam of whole groups that has n_left nodes left for its level. The
 * parents are in falling order of psi: the first quarter gets two children, the others get one, and all get more if
 * the parents are few. */
static int32_t group_size(int32_t width, int32_t n_left, int32_t k, int32_t n) {
    int32_t share = (n_left + n - k - 1) / (n - k), size = k == 0 || k < width / 4 ? 2 : 1;
    if (size < share) size = share;
    return size < n_left ? size : n_left;
}

/* Draws the children of the nodes [at, end) of the front, all of one sequence, into d->children. */
static int draw_level(DraftModel *d, int32_t at, int32_t end, int32_t level, int32_t *n_drawn, fr_error *err) {
    const DraftMember *m = &d->group[d->front[at].i];
    int32_t n = 0, width = d->shape.width[level], first = at;
    int32_t of_level = width < m->n_left ? width : m->n_left; /* nodes of a beam, or paths */
    bool whole_groups = m->declares && m->tree->dists->whole_groups;
    for (; at < end; at++) {
        int status = find_dist(d, at, err);
        if (status) return status;
        if (d->shape.growth == DRAFT_PATHS) n += draw_paths(d, at, of_level, d->children + n);
        else if (d->shape.growth == DRAFT_BEAM) {
            int32_t size = whole_groups ? group_size(of_level, of_level - n, at - first, end - first) : of_level;
            n += size > 0 ? draw_best(d, at, size, d->children + n) : 0;
        } else n += draw_best(d, at, share_of(width, m->n_left, at - first, end - first), d->children + n);
    }
    *n_drawn = d->shape.growth == DRAFT_BEAM ? draw_beam(d->children, n, of_level) : n;
    return FR_OK;
}

/* Adds a node, with its row, to the next front; returns its entry there. */
static DraftFront *add_front(DraftModel *d, const DrawChild *c, int32_t node) {
    const DraftFront *f = &d->front[c->parent];
    const DraftMember *m = &d->group[f->i];
    for (int32_t i = d->n_next - 1; i >= 0 && d->next[i].i == f->i; i--)
        if (d->next[i].node == node) return &d->next[i]; /* another path has already added it */
    DrawNoise noise = f->parent.noise;
    noise.position++;
    if (m->own_noise) noise.seed = hash64(&c->token, sizeof c->token, noise.seed);
    int32_t i_row = d->n_next;
    d->small_model.rows[i_row] = (Row){.token = c->token, .sequence = m->s->kv, .parent = f->row, .want_logits = true};
    d->next[d->n_next++] = (DraftFront){.i = f->i,
                                        .node = node,
                                        .row = d->small_model.n_rows + i_row,
                                        .parent = {.log_q = c->log_q, .psi = c->psi, .noise = noise}};
    return &d->next[i_row];
}

/* Adds a drawn child to its tree and, if it is to have children itself, to the next front. */
static void add_child(DraftModel *d, const DrawChild *c, bool has_children) {
    const DraftFront *f = &d->front[c->parent];
    const DraftMember *m = &d->group[f->i];
    Tree *t = m->tree;
    int32_t node = tree_add(t, f->node, c->token, t->nodes[f->node].p_accept * c->chance, d->base.source);
    fr_assert(node > 0);
    if (m->declares) {
        DrawKind kind = d->shape.growth == DRAFT_PATHS ? DRAW_IID : DRAW_WITHOUT_REPLACEMENT;
        bool fits = draft_dists_add(t->dists, f->node, node, kind, d->dists[c->parent]);
        fr_assert(fits); /* there are no more draws than nodes in the largest tree */
    }
    if (has_children) add_front(d, c, node)->paths |= (uint64_t)1 << c->path;
}

int grow_level(DraftModel *d, int32_t level, fr_error *err) {
    d->n_next = 0;
    for (int32_t at = 0, end; at < d->n_front; at = end) {
        DraftMember *m = &d->group[d->front[at].i];
        int32_t n;
        for (end = at; end < d->n_front && d->front[end].i == d->front[at].i;) end++;
        int status = draw_level(d, at, end, level, &n, err);
        if (status) return status;
        m->n_left -= n;
        for (int32_t k = 0; k < n; k++) {
            const DrawChild *c = &d->children[k];
            int32_t rank = d->shape.growth == DRAFT_PATHS ? c->path : d->shape.growth == DRAFT_BEAM ? 0 : k;
            add_child(d, c, level + 1 < m->n_levels && rank < m->n_left); /* share_of gives a later one no children */
        }
    }
    DraftFront *old = d->front;
    d->front = d->next;
    d->next = old;
    d->n_front = d->n_next;
    return FR_OK;
}

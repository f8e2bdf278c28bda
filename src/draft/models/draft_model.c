/* draft_model.c - a small model drafts for the target: the common part of `sps`, `rsd-c`, `rsd-s`, `spectr` and
 * `specinfer`.
 *
 * The problem: a small model with the same vocabulary predicts the target's tokens well, but one forward for each
 * proposed token is expensive. The idea (Leviathan et al. 2023; Chen et al. 2023; Recursive Speculative Decoding for
 * trees): grow the tree of a step level by level, with one forward of the draft model for all nodes of a level, of
 * all sequences. A tree of depth L costs L forwards, however wide it is and however many sequences there are.
 *
 *   forward 1         2     3       rows of one sequence in the draft model's batch
 *   context ── a ──┬── b ─┬ d ..    1 executor_forward: the context tokens committed since the last step, of which the
 *   (some rows)    │      └ e ..      last is the pending token a
 *                  └── c ── f ..    2, 3 executor_extend: b c below a, then d e f below b c
 *
 * The leaves of the tree are not run, because nothing follows them. small_model.c has the model and its KV cache.
 *
 * Example: the text ends with "the", coupled=1, branch=2-1. After "the", the draft's distribution with the noise of
 * position 7 ranks cat, dog; after "the cat" and "the dog", with the noise of position 8, it ranks sat and ran first.
 * The tree is the(cat(sat), dog(ran)). The target generates "dog" and then "barked": "dog" is accepted, and the next
 * step starts by running "dog barked", two rows before its first level.
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
 * coupled. A coupled draw depends on the noise, which q ignores: a token of small q that the noise favours is probably
 * the target's choice too. Greedy drafting needs the probability that a token has the greatest logit z, and estimates
 * it by softmax(z), with the draft model's confidence in its logits. Likewise, coupled drafting needs the probability
 * that a token has the greatest z + T G, and estimates it by softmax(z + T G) over the N_RIVALS best tokens. The
 * weights are e^(T (log q + G)), since z = T log q + const. On the shipped models at T = 1 with 4 nodes a step, the
 * acceptance length of rsd-c is 2.37 with this estimate and 2.01 if nodes are ranked by q (docs/methods/README.md).
 *
 * Declared distributions. A ratio rule (draft_dists.h) divides by the distribution that a token was drawn from. It is
 * exact only if each token of a group has that distribution given everything that was known when it was proposed. So
 * if a tree has `dists`:
 *
 *   - no draw is coupled: the drafter must not depend on the target's noise;
 *   - each draw is declared with the very array that it was drawn from;
 *   - nothing is pruned by p_accept, or by anything else that depends on the token removed. The budget limits the shape
 *     beforehand: levels are filled from the root down; the last one gets the rest of the budget, divided among its
 *     parents (or paths) in their order; and deeper levels are not grown. The number of children of a node may depend
 *     on the levels above, which do not change any more, but not on the tokens of its own level.
 *
 * The beam is the one shape that removes nodes after drawing them: it keeps those of greatest psi among the children of
 * all nodes. This does not depend on tokens either. Let x have independent Gumbel variables located at log q(x). Their
 * greatest value is independent of which x has it. Given the first values and tokens, the next value is independent of
 * the next token, because the remaining tokens compete in the same way, conditioned to be below the last value (Kool et
 * al. 2019; it rests on the memorylessness of the exponential distribution). Whether a node keeps its k-th child
 * depends on its psi, which is a function of the k-th value, the first value and the levels above, and on other nodes'
 * noise; never on the k-th token. So the k-th child that remains is distributed as q without the tokens drawn before
 * it, and the siblings that remain are the first ones drawn (draw_beam keeps their order). The end of a group of
 * siblings is thus a stopping time that depends on the past only, and a rule that is exact whether or not a further
 * child is offered is exact with it. Pruning by q is the counterexample: tokens of small q would rarely remain, and the
 * declared distribution would give them too much. tests/lossless/test_draft_dists.c shows both.
 *
 * For a rule that looks ahead (DraftDists.whole_groups) that is not enough. The k-th value is lower if the tokens
 * before it had large q, so the number of children that remain depends on them. The beam then consists of whole groups:
 * nodes get children in falling order of their psi, and their number, group_size, depends only on counts. All of them
 * remain. With four paths, the best node of a level gets two children and the next two get one each. On synthetic
 * distributions `transport` accepts as much with this beam as it would with the other one, if it were exact there.
 *
 * Noise is used only once. Let the root of a tree be followed by output position P. A node at depth k draws with the
 * noise (seed hashed with the k tokens from the root down to it, P + k). A later tree has P' > P, because every step
 * commits at least one token; its node at the same position has a depth k' < k, so its seed was hashed k' times instead
 * of k times and is another number (except for hash collisions, with probability 2^-64). So the draws of the next step
 * are independent of what a verification revealed about those of this step. The number of a path, or of a model among
 * several, is hashed as 8 bytes and tokens as 4, so that these cannot coincide. The random source of the rules and the
 * target's own noise are other streams (rng.h).
 *
 * Invariants: a proposal is a pure function of context, sampling options, output position, budget, and whether
 * distributions are declared; sequences do not affect each other. Without distributions, a tree larger than the
 * budget loses its nodes of least p_accept. Levels beyond the budget are not run. Cost: min(levels, budget) forwards
 * of the draft model, and one pass over the vocabulary for each node that has children, or for each path through it.
 * A declared distribution occupies V floats until the end of the step. When it loses: if a forward of the draft model
 * is not far cheaper than the target's. Proof: tests/draft/test_draft_model.c, tests/lossless/test_draft_dists.c. */
#include "draft/models/draft_model.h"

#include "base/hash.h"
#include "base/math_functions.h"
#include "base/mem.h"
#include "tree/tree.h"
#include "verify/gumbel.h"

#include <stdlib.h>
#include <string.h>

/* A coupled draw draws at least N_RIVALS children, so that the chances of those that it keeps can be normalised over
 * all of them. */
enum { N_RIVALS = 16, MAX_GROUP = EXECUTOR_MAX_ROWS / SMALL_MODEL_MAX_NEW };

/* A node of the current level, whose row has run and whose children are drawn next. */
typedef struct DraftFront {
    int32_t i; /* index of its sequence in the group */
    int32_t node, row;
    uint64_t paths; /* DRAFT_PATHS: bit j is set if path j of the node's level passes through it */
    DrawParent parent;
} DraftFront;

/* One of the sequences that draft together. */
typedef struct DraftMember {
    DraftSequence *s; /* NULL: its budget is 0 */
    Tree *tree;
    bool declares, own_noise; /* own_noise: draws do not use the target's noise */
    int32_t budget, n_levels;
    int32_t n_left; /* draws that its shape may still make */
    int32_t first_row, n_context_rows;
} DraftMember;

typedef struct DraftModel {
    SmallModel small_model;
    DraftShape shape;
    int32_t max_group; /* sequences whose rows fit into one forward */
    DraftMember group[MAX_GROUP];
    int32_t n_group;
    DraftFront *front, *next; /* [max_rows] the nodes of this level, and of the next */
    int32_t n_front, n_next;
    DrawChild *children; /* the drawn children of one sequence at one level */
    const float **dists; /* [max_rows] the distribution at each node of the front, if it is declared */
    float *dist;         /* [n_vocab] the distribution at the current node, if it is not declared */
    Arena arena;         /* memory of the arrays above */
    DrawCache *draw_cache;
} DraftModel;

/* ---- opening: the model and its KV cache ------------------------------------------------------------ */

/* ---- opening ------------------------------------------------------------------------------------------ */

/* Returns the number of nodes of the shape, or 0 if that is too large. *max_children is the greatest number of children
 * that are drawn for one level. */
static int32_t measure_shape(const DraftShape *shape, int32_t *max_children) {
    int32_t n_nodes = 0, level = 1;
    *max_children = 0;
    for (int32_t l = 0; l < shape->n_levels; l++) {
        int32_t width = shape->width[l], n_children = shape->growth == DRAFT_PATHS ? width : level * width;
        level = shape->growth == DRAFT_BEAM && n_children > width ? width : n_children;
        if (n_children > *max_children) *max_children = n_children;
        n_nodes += level;
        if (n_nodes > TREE_MAX_NODES - 1) return 0;
    }
    return n_nodes;
}

int draft_model_parse_branch(const char *text, int32_t *branch, int32_t *n_levels, fr_error *err) {
    *n_levels = 0;
    for (const char *p = text;; p++) {
        char *end;
        long b = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : 0;
        if (b < 1 || b > DRAFT_MODEL_MAX_WIDTH || *n_levels == DRAFT_MODEL_MAX_LEVELS ||
            (*end && *end != '-' && *end != 'x'))
            return error_set(err, FR_ERR_ARGUMENT, "must be 1 to %d integers from 1 to %d joined by '-', such as 3-2-1",
                             DRAFT_MODEL_MAX_LEVELS, DRAFT_MODEL_MAX_WIDTH);
        branch[(*n_levels)++] = (int32_t)b;
        p = end;
        if (!*p) return FR_OK;
    }
}

static int open_trees(DraftModel *d, int32_t n_nodes, int32_t max_children, const Device *device, fr_error *err) {
    size_t n = (size_t)d->small_model.max_rows;
    d->max_group = d->small_model.max_rows / (SMALL_MODEL_MAX_NEW + n_nodes);
    const ArenaItem items[] = {ARENA_ITEM(&d->front, n), ARENA_ITEM(&d->next, n), ARENA_ITEM(&d->dists, n),
                               ARENA_ITEM(&d->children, max_children + N_RIVALS),
                               ARENA_ITEM(&d->dist, d->small_model.n_vocab)};
    d->draw_cache = draw_cache_new(d->small_model.n_vocab, device->rows);
    if (!d->draw_cache)
        return error_memory(err, "a draft model's draws", (size_t)d->small_model.n_vocab * sizeof(uint32_t));
    return arena_take(&d->arena, items, ARENA_COUNT(items), "a draft model's trees", err);
}

int draft_model_open(Drafter **out, const char *path, const char *method, const DraftShape *shape,
                     const DrafterEnv *env, fr_error *err) {
    int32_t max_children, n_nodes = measure_shape(shape, &max_children);
    if (n_nodes == 0)
        return error_set(err, FR_ERR_ARGUMENT, "%s: such a tree has more than %d nodes; make it narrower or shallower",
                         method, TREE_MAX_NODES - 1);
    if (!env->target)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: a draft model needs a running target; use run or compare",
                         method);
    DraftModel *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, method, sizeof *d);
    d->shape = *shape;
    int status = small_model_open(&d->small_model, path, n_nodes, shape->n_levels, env, err);
    if (!status) status = open_trees(d, n_nodes, max_children, env->device, err);
    if (status) {
        draft_model_close(&d->small_model.base);
        return status;
    }
    *out = &d->small_model.base;
    return FR_OK;
}

void draft_model_close(Drafter *drafter) {
    DraftModel *d = (DraftModel *)drafter;
    arena_free(&d->arena);
    draw_cache_free(d->draw_cache);
    small_model_close(&d->small_model);
    mem_free(d);
}

/* ---- the children of one node ---------------------------------------------------------------------- */

/* Computes the distribution at a node of the front: into a row of the tree's distributions if it is declared, else
 * into memory that the next node overwrites. */
static int find_dist(DraftModel *d, int32_t at, fr_error *err) {
    const DraftFront *f = &d->front[at];
    DraftMember *m = &d->group[f->i];
    float *dist = m->declares ? draft_dists_row(m->tree->dists) : d->dist;
    if (!dist) return error_memory(err, "the distributions of a tree", (size_t)d->small_model.n_vocab * sizeof *dist);
    small_model_dist(&d->small_model, m->s, m->tree, f->node, f->row, dist);
    d->dists[at] = dist;
    return FR_OK;
}

/* Sets each drawn child's chance of being the target's choice: q, or for coupled draws the softmax of the values (see
 * above). The children are in descending order of value. */
static void set_chances(const DraftMember *m, DrawChild *drawn, int32_t n) {
    double sum = 0, t = (double)m->s->dist.temperature;
    bool is_q = m->s->greedy || m->own_noise;
    for (int32_t i = 0; i < n; i++) sum += math_exp(t * (drawn[i].value - drawn[0].value));
    for (int32_t i = 0; i < n; i++)
        drawn[i].chance = is_q ? drawn[i].q : (float)(math_exp(t * (drawn[i].value - drawn[0].value)) / sum);
}

/* Draws the `width` best children of a node, in descending order of value. Returns their number. */
static int32_t draw_best(DraftModel *d, int32_t at, int32_t width, DrawChild *out) {
    const DraftFront *f = &d->front[at];
    const DraftMember *m = &d->group[f->i];
    int32_t k = width < N_RIVALS && !m->own_noise && !m->s->greedy ? N_RIVALS : width;
    int32_t n = draw_children(d->draw_cache, d->dists[at], &f->parent, at, k, out);
    set_chances(m, out, n);
    return n < width ? n : width;
}

/* Returns the number of paths that a path which reaches the level splits into. */
static int32_t n_splits(const DraftShape *s, int32_t level) {
    return level ? s->width[level] / s->width[level - 1] : s->width[0];
}

/* Draws one child for each of the first `width` paths of the level that passes through the node. Where greedy paths
 * split, each takes the next best token; under a ratio rule they are one path, because all draws from a distribution of
 * one token are equal. */
static int32_t draw_paths(DraftModel *d, int32_t at, int32_t level, int32_t width, DrawChild *out) {
    const DraftFront *f = &d->front[at];
    const DraftMember *m = &d->group[f->i];
    if (m->s->greedy && m->tree->dists && width > 1) width = 1;
    uint64_t paths[DRAFT_MODEL_MAX_WIDTH] = {0};
    int32_t n_paths = 0, n = 0, splits = n_splits(&d->shape, level);
    for (uint64_t path = 0; path < (uint64_t)width; path++)
        if (f->paths >> (path / (uint64_t)splits) & 1) paths[n_paths++] = path;
    if (m->s->greedy || !m->own_noise) n = draw_best(d, at, n_paths, out);
    else
        for (; n < n_paths; n++) { /* each path draws exactly one token */
            DrawParent one = f->parent;
            if (paths[n] > 0) one.noise.seed = hash64(&paths[n], sizeof paths[n], one.noise.seed);
            (void)draw_children(d->draw_cache, d->dists[at], &one, at, 1, &out[n]);
            out[n].chance = out[n].q;
        }
    for (int32_t k = 0; k < n; k++) out[k].path = (int32_t)paths[k];
    return n;
}

/* ---- the level ------------------------------------------------------------------------------------ */

/* Returns how many children node k of the n nodes of a level draws: its share of the rest of the budget. */
static int32_t share_of(int32_t width, int32_t n_left, int32_t k, int32_t n) {
    int32_t share = n_left / n + (k < n_left % n);
    return width < share ? width : share;
}

/* Returns the number of children of parent k of n in a beam of whole groups that has n_left nodes left for its level.
 * The parents are in falling order of psi: the first quarter gets two children, the others get one, and all get more if
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
    int32_t of_level = width < m->n_left ? width : m->n_left; /* the number of nodes of a beam, or of paths */
    bool whole_groups = m->declares && m->tree->dists->whole_groups;
    for (; at < end; at++) {
        int status = find_dist(d, at, err);
        if (status) return status;
        if (d->shape.growth == DRAFT_PATHS) n += draw_paths(d, at, level, of_level, d->children + n);
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
    d->small_model.rows[i_row] = (Row){.token = small_model_token(&d->small_model, c->token),
                                       .sequence = m->s->kv,
                                       .parent = f->row,
                                       .want_logits = true};
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
    int32_t node = tree_add(t, f->node, c->token, t->nodes[f->node].p_accept * c->chance, d->small_model.base.source);
    fr_assert(node > 0);
    if (m->declares) {
        DrawKind kind = d->shape.growth == DRAFT_PATHS ? DRAW_IID : DRAW_WITHOUT_REPLACEMENT;
        bool fits = draft_dists_add(t->dists, f->node, node, kind, d->dists[c->parent]);
        fr_assert(fits); /* there are no more draws than nodes in the largest tree */
    }
    if (has_children && small_model_token(&d->small_model, c->token) >= 0)
        add_front(d, c, node)->paths |= (uint64_t)1 << c->path;
}

static int grow_level(DraftModel *d, int32_t level, fr_error *err) {
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
            bool goes_on = level + 1 < m->n_levels;
            int32_t rank = d->shape.growth == DRAFT_BEAM ? 0 : k;
            if (goes_on && d->shape.growth == DRAFT_PATHS) rank = c->path * n_splits(&d->shape, level + 1);
            add_child(d, c, goes_on && rank < m->n_left); /* later ones have no share of the budget */
        }
    }
    DraftFront *old = d->front;
    d->front = d->next;
    d->next = old;
    d->n_front = d->n_next;
    return FR_OK;
}

/* ---- a proposal -------------------------------------------------------------------------------------- */

/* Adds rows for the context tokens of member i that have not run yet, and puts its root on the front. */
static int start_member(DraftModel *d, int32_t i, fr_error *err) {
    DraftMember *m = &d->group[i];
    fr_assert(m->s->begun && m->tree->nodes[0].token == m->s->tokens[m->s->n - 1]);
    m->first_row = d->small_model.n_rows;
    int status = small_model_put_context(&d->small_model, m->s, &m->n_context_rows, err);
    if (status) return status;
    uint64_t i_model = d->shape.i_model, seed = m->s->dist.seed;
    DrawNoise noise = {.silent = m->s->greedy, .seed = seed, .position = m->s->position};
    if (m->own_noise) {
        noise.stream = RNG_DRAFT;
        if (i_model > 0) noise.seed = hash64(&i_model, sizeof i_model, seed);
    } else {
        noise.stream = RNG_TARGET;
    }
    d->front[d->n_front++] = (DraftFront){.i = i, .row = d->small_model.n_rows - 1, .paths = 1, .parent.noise = noise};
    return FR_OK;
}

static int draft_together(DraftModel *d, fr_error *err) {
    SmallModel *r = &d->small_model;
    r->n_rows = d->n_front = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < d->n_group && !status; i++)
        if (d->group[i].s) status = start_member(d, i, err);
    if (status || d->n_front == 0) return status;
    status = executor_forward(r->executor, r->rows, r->n_rows, err);
    for (int32_t level = 0; !status && d->n_front > 0; level++) {
        r->n_forwards++;
        status = grow_level(d, level, err);
        if (!status && d->n_front > 0) status = executor_extend(r->executor, r->rows, d->n_front, err);
        r->n_rows += d->n_front;
    }
    if (status) return status;
    for (int32_t i = 0; i < d->n_group; i++) {
        const DraftMember *m = &d->group[i];
        if (!m->s) continue;
        small_model_commit_context(r, m->s, m->first_row, m->n_context_rows);
        if (!m->declares) union_prune(m->tree, m->budget);
    }
    return FR_OK;
}

static DraftMember member_of(const DraftModel *d, int32_t sequence, int32_t budget, Tree *tree) {
    if (budget <= 0 || !small_model_can_draft(&d->small_model, sequence)) return (DraftMember){.s = NULL};
    bool declares = draft_model_declares(&d->small_model.base, sequence, tree);
    return (DraftMember){.s = small_model_sequence(&d->small_model, sequence),
                         .tree = tree,
                         .declares = declares,
                         .own_noise = declares || !d->shape.coupled,
                         .budget = budget,
                         .n_levels = budget < d->shape.n_levels ? budget : d->shape.n_levels,
                         .n_left = declares ? budget : TREE_MAX_NODES};
}

int draft_model_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                        fr_error *err) {
    DraftModel *d = (DraftModel *)drafter;
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++)
        if (budgets[i] > 0 && small_model_can_draft(&d->small_model, sequences[i]))
            status = small_model_catch_up(&d->small_model, small_model_sequence(&d->small_model, sequences[i]), err);
    for (int i = 0; i < n && !status; i += d->n_group) {
        d->n_group = n - i < d->max_group ? n - i : d->max_group;
        for (int k = 0; k < d->n_group; k++) d->group[k] = member_of(d, sequences[i + k], budgets[i + k], trees[i + k]);
        status = draft_together(d, err);
    }
    return status;
}

bool draft_model_declares(const Drafter *drafter, int32_t sequence, const Tree *t) {
    const DraftModel *d = (const DraftModel *)drafter;
    return t->dists && !small_model_sequence(&d->small_model, sequence)->greedy;
}

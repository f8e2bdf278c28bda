/* draft_model.c - a small model drafts for the target: how `sps`, `rsd-c`, `rsd-s`, `spectr` and
 * `specinfer` grow their trees.
 *
 * The problem: a small model of the same vocabulary guesses well what the target will say, but one forward
 * for each guess is dear. The idea (Leviathan et al. 2023; Chen et al. 2023; Recursive Speculative Decoding
 * for trees): grow the tree of a step level by level, all nodes of a level, of all sequences, in one forward
 * of the draft model. A tree of depth L costs L forwards, however wide it is and however many sequences there
 * are.
 *
 *   run 1             2     3       rows of one sequence in the draft model's batch
 *   context ── a ──┬── b ─┬ d ..    1 executor_forward: the context tokens committed since the last step,
 *   (some rows)    │      └ e ..      the pending token a last
 *                  └── c ── f ..    2, 3 executor_extend: b c below a, then d e f below b c
 *
 * Leaves of the tree are not run: nobody asks what follows them.
 *
 * Drawing. The children of a node come from the draft's distribution there, q: penalties, temperature and filters are
 * those of the request (sampler_dist), and draw.h draws from it: without replacement, or (DRAFT_PATHS) once for
 * each path that passes the node, independently. coupled=1 draws with the noise with which the target will choose
 * its own token at that output position (verifier.c), so that the two agree more often than two independent draws
 * of p and q would; coupled=0 has noise of its own for each node. Independent paths are never coupled: with the
 * same noise they would all be the same path. Greedy requests take the top-k of q at temperature 1. Under the
 * sampled rule nothing of this can change the text: drafted tokens only ever save a forward.
 *
 * p_accept of a node is the product of its path's chances. Without noise, or with noise that the target does not
 * know, the chance of a child is q. A coupled draw has seen the noise, and q is the wrong number: a token of
 * small q that the noise favours is what the target will probably say too. Greedy drafting asks which token
 * has the greatest logit z; softmax(z) answers, as sure as the draft model is of its logits. Coupled drafting
 * asks which has the greatest z + T G; we answer likewise with softmax(z + T G): weights e^(T (log q + G)),
 * since z = T log q + const, over the N_RIVALS best. On the shipped models at T = 1 and with 4 nodes a step,
 * rsd-c's acceptance length is 2.37 with it and 2.01 where nodes are ranked by q (docs/METHODS.md).
 *
 * Example: the text ends with "the", coupled, branch 2-1. The draft's distribution after "the" with the noise of
 * position 7 ranks cat, dog; after "the cat" and "the dog" with the noise of position 8: sat, ran. The tree
 * is the(cat(sat), dog(ran)). The target says "dog" and then "barked": "dog" is accepted, and the next step
 * starts by running "dog barked", two rows in front of its first level.
 *
 * DraftDists. A ratio rule (draft_dists.h) divides by the distribution that a token was drawn from, and is exact only if each token of a
 * group has that distribution given everything that was known when it was offered. So where a tree asks for distributions
 *
 *   - the draw is never coupled: the target's noise is not the drafter's to know;
 *   - each draw is declared with the very array it was drawn from;
 *   - nothing is cut by p_accept or by anything else that tells about a token that goes. The budget cuts the shape
 *     beforehand: levels are filled from the root on, the last one gets what is left, dealt out to its parents (or
 *     paths) in their order, and deeper levels are not grown. How many children a node gets may depend on the
 *     levels above, which stay as they are; the tokens of its own level it does not know.
 *
 * The beam is the one shape that cuts after drawing: of the children of all nodes it keeps those of greatest psi.
 * That tells nothing about tokens, either. Of independent Gumbel variables located at log q(x) the greatest value
 * is independent of which x has it, and given the first values and tokens, the next value is independent of the
 * next token: the rest is the same race among the tokens left, run below the last value (Kool et al. 2019, and the
 * memorylessness of the exponential distribution behind it). Whether a node keeps its k-th child depends on its psi, which
 * is a function of the k-th value, the first one and what the levels above fixed, and on other nodes' noise; never
 * on the k-th token. So the k-th child that stays has the distribution q without the tokens drawn before, and siblings that
 * stay are always a beginning of those drawn (draw_beam keeps their order). Where the row of siblings ends is then
 * a stop that knows only the past, and a rule that is exact whether or not a further child is offered is exact
 * with it. Pruning by q is the counter-example: a token of small q among the kept ones would be a rare sight,
 * and the distribution declared for it too large. tests/test_draft_dists.c shows both.
 *
 * Noise is used once. A node at depth k of a tree whose root stands before output position P draws with the noise
 * (seed hashed with the k tokens from the root down to it, P + k). A later tree has P' > P, for every step
 * settles at least one token; its node at the same position has a depth k' < k, so its seed is hashed k' times and
 * not k times and is another number (two of 2^64 might be equal). What a verdict revealed about the draws of one
 * step therefore says nothing about those of the next. The number of a path, or of a model among several, is
 * hashed in as 8 bytes and tokens are as 4, so that these never meet. The coins of the rules and the target's own
 * noise are other streams (rng.h).
 *
 * Invariants: a proposal is a pure function of context, sampling options, output position, budget, and whether
 * distributions are asked for; sequences do not see each other. Without distributions a tree larger than the budget loses its nodes of
 * least p_accept. Levels beyond the budget are not run.
 * Cost: min(levels, budget) forwards of the draft model and one pass over V for each node that has children, or for
 * each path that passes it. A declared distribution is V floats until the step is over.
 * When it loses: where a forward of the draft model is not far cheaper than the target's.
 * Proof: tests/test_draft_model.c, tests/test_draft_dists.c. */
#include "spec/drafters/small/draft_model.h"

#include "base/hash.h"
#include "base/mem.h"
#include "spec/drafters/small/small_model_kv.h"
#include "spec/sampling/draw.h"
#include "spec/tree/union.h"

#include <math.h>

enum { N_RIVALS = 16 }; /* children of a coupled draw at least, to weigh the first ones against */

/* A node whose children are to be drawn, its row having run. */
typedef struct Front {
    int32_t i; /* which member of the group */
    int32_t node, row;
    uint64_t paths; /* DRAFT_PATHS: bit j for path j, which passes here */
    DrawParent parent;
} Front;

/* One sequence of those that draft together. */
typedef struct Member {
    DraftSequence *s; /* NULL: its budget is 0 */
    Tree *tree;
    bool declares, own_noise;
    int32_t budget, n_levels;
    int32_t n_left; /* draws that its shape may still make */
    int32_t first_row, n_context_rows;
} Member;

enum { MAX_GROUP = EXECUTOR_MAX_ROWS / SMALL_MODEL_MAX_NEW };

typedef struct DraftModel {
    Drafter base;
    DraftShape shape;
    SmallModelKv small_model;
    int32_t max_group; /* sequences that can draft at once in the runner's rows */
    Member group[MAX_GROUP];
    int32_t n_group;
    Front *front, *next; /* [max_rows] this level's nodes, and the next one's */
    int32_t n_front, n_next;
    DrawChild *children;    /* of one sequence at one level */
    const float **dists;     /* [max_rows] of each node of the front: its distribution, where one is declared */
    float *dist;             /* [n_vocab] of the node being expanded, where none is */
} DraftModel;

/* ---- opening ------------------------------------------------------------------------------------ */

/* Nodes of the shape's tree, and the most children that are drawn for one level; 0 where it is too large. */
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

static int open_memory(DraftModel *d, int32_t n_nodes, int32_t max_children, fr_error *err) {
    size_t n = (size_t)d->small_model.max_rows;
    d->max_group = d->small_model.max_rows / (SMALL_MODEL_MAX_NEW + n_nodes);
    d->front = mem_calloc(n, sizeof *d->front);
    d->next = mem_calloc(n, sizeof *d->next);
    d->dists = mem_calloc(n, sizeof *d->dists);
    d->children = mem_calloc((size_t)max_children + N_RIVALS, sizeof *d->children);
    d->dist = mem_calloc((size_t)d->small_model.n_vocab, sizeof *d->dist);
    if (d->front && d->next && d->dists && d->children && d->dist) return FR_OK;
    return error_memory(err, "a draft model's trees", n * sizeof *d->front);
}

int draft_model_get_coupled(const DraftSpec *spec, const DrafterClass *class, bool *coupled, fr_error *err) {
    int64_t value;
    int status = draft_spec_get_int(spec, class, "coupled", 0, 1, &value, err);
    *coupled = status == FR_OK && value == 1;
    return status;
}

int draft_model_open(Drafter **out, const char *path, const DrafterClass *class, const DraftShape *shape,
                     const DrafterEnv *env, fr_error *err) {
    int32_t max_children, n_nodes = measure_shape(shape, &max_children);
    if (n_nodes == 0)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: such a tree has more than %d nodes; make it narrower or shallower", class->name,
                         TREE_MAX_NODES - 1);
    if (!*path)
        return error_set(err, FR_ERR_ARGUMENT, "%s: no draft model given; write %s:%s=FILE.gguf", class->name,
                         class->name, class->options[0].key);
    if (!env->target)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: a draft model drafts for a target, and none runs here; use run or "
                         "compare",
                         class->name);
    DraftModel *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, class->name, sizeof *d);
    d->shape = *shape;
    int status = small_model_kv_open(&d->small_model, path, n_nodes, env, err);
    if (!status) status = open_memory(d, n_nodes, max_children, err);
    if (status) {
        draft_model_close(&d->base);
        return status;
    }
    *out = &d->base;
    return FR_OK;
}

void draft_model_close(Drafter *drafter) {
    DraftModel *d = (DraftModel *)drafter;
    void *all[] = {d->front, d->next, d->dists, d->children, d->dist};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    small_model_kv_close(&d->small_model);
    mem_free(d);
}

/* ---- sequences ---------------------------------------------------------------------------------- */

static SmallModelKv *small_model_of(Drafter *drafter) { return &((DraftModel *)drafter)->small_model; }

void draft_model_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling,
                              uint64_t position) {
    small_model_kv_set_sampling(small_model_of(drafter), sequence, sampling, position);
}

int draft_model_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    return small_model_kv_begin(small_model_of(drafter), sequence, tokens, n, err);
}

int draft_model_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    return small_model_kv_observe(small_model_of(drafter), sequence, tokens, n, err);
}

void draft_model_end(Drafter *drafter, int32_t sequence) { small_model_kv_end(small_model_of(drafter), sequence); }

/* ---- drawing the children of one node ------------------------------------------------------------ */

/* Fills in the distribution after a node of the front: a row of the tree's distributions, or memory that the next node takes. */
static int find_dist(DraftModel *d, int32_t at, fr_error *err) {
    const Front *f = &d->front[at];
    Member *m = &d->group[f->i];
    float *dist = m->declares ? draft_dists_row(m->tree->dists) : d->dist;
    if (!dist) return error_memory(err, "the distributions of a tree", (size_t)d->small_model.n_vocab * sizeof *dist);
    small_model_kv_law(&d->small_model, m->s, m->tree, f->node, f->row, dist);
    d->dists[at] = dist;
    return FR_OK;
}

/* How likely is each of the children drawn, in falling order of value, to be what the target says there? Of
 * greedy and of uncoupled draws the distribution knows: q. A coupled draw has seen the noise: see the essay. */
static void estimate(const Member *m, DrawChild *drawn, int32_t n) {
    double sum = 0, t = (double)m->s->dist.temperature;
    bool by_dist = m->s->greedy || m->own_noise;
    for (int32_t i = 0; i < n; i++) sum += exp(t * (drawn[i].value - drawn[0].value));
    for (int32_t i = 0; i < n; i++)
        drawn[i].chance = by_dist ? drawn[i].q : (float)(exp(t * (drawn[i].value - drawn[0].value)) / sum);
}

/* The `width` best children of a node, in falling order of value. */
static int32_t draw_best(DraftModel *d, int32_t at, int32_t width, DrawChild *out) {
    const Front *f = &d->front[at];
    const Member *m = &d->group[f->i];
    int32_t k = width < N_RIVALS && !m->own_noise && !m->s->greedy ? N_RIVALS : width;
    int32_t n = draw_children(d->dists[at], d->small_model.n_vocab, &f->parent, at, k, out);
    estimate(m, out, n);
    return n < width ? n : width;
}

/* One child for each path that passes a node, of the paths below `width`. Greedy paths part at the first node, where
 * each takes the next best token; but under a ratio rule they are one path, as draws from a distribution of one token are. */
static int32_t draw_paths(DraftModel *d, int32_t at, int32_t width, DrawChild *out) {
    const Front *f = &d->front[at];
    const Member *m = &d->group[f->i];
    if (m->s->greedy && m->tree->dists && width > 1) width = 1;
    uint64_t paths[DRAFT_MODEL_MAX_WIDTH];
    int32_t n_paths = 0, n = 0;
    for (uint64_t path = 0; path < (uint64_t)width; path++)
        if (f->paths >> path & 1) paths[n_paths++] = path;
    if (m->s->greedy || !m->own_noise)
        n = draw_best(d, at, n_paths, out);
    else
        for (; n < n_paths; n++) { /* a distribution gives every draw a token */
            DrawParent one = f->parent;
            if (paths[n] > 0) one.noise.seed = hash64(&paths[n], sizeof paths[n], one.noise.seed);
            (void)draw_children(d->dists[at], d->small_model.n_vocab, &one, at, 1, &out[n]);
            out[n].chance = out[n].q;
        }
    for (int32_t k = 0; k < n; k++) out[k].path = (int32_t)paths[k];
    return n;
}

/* ---- growing a level ------------------------------------------------------------------------------ */

/* The draws of a node that is number k of n on its level: its share of what the budget leaves. */
static int32_t share_of(int32_t width, int32_t n_left, int32_t k, int32_t n) {
    int32_t share = n_left / n + (k < n_left % n);
    return width < share ? width : share;
}

/* Draws the children of the nodes [at, end) of the front, all of one sequence, into d->children; their number. */
static int draw_level(DraftModel *d, int32_t at, int32_t end, int32_t level, int32_t *n_drawn, fr_error *err) {
    const Member *m = &d->group[d->front[at].i];
    int32_t n = 0, width = d->shape.width[level], first = at;
    int32_t of_level = width < m->n_left ? width : m->n_left; /* nodes of a beam, or paths */
    for (; at < end; at++) {
        int status = find_dist(d, at, err);
        if (status) return status;
        if (d->shape.growth == DRAFT_PATHS)
            n += draw_paths(d, at, of_level, d->children + n);
        else if (d->shape.growth == DRAFT_BEAM)
            n += draw_best(d, at, of_level, d->children + n);
        else
            n += draw_best(d, at, share_of(width, m->n_left, at - first, end - first), d->children + n);
    }
    *n_drawn = d->shape.growth == DRAFT_BEAM ? draw_beam(d->children, n, of_level) : n;
    return FR_OK;
}

/* The node's place on the next front, and its row there. */
static Front *add_front(DraftModel *d, const DrawChild *c, int32_t node) {
    const Front *f = &d->front[c->parent];
    const Member *m = &d->group[f->i];
    for (int32_t i = d->n_next - 1; i >= 0 && d->next[i].i == f->i; i--)
        if (d->next[i].node == node) return &d->next[i]; /* another path came here first */
    DrawNoise noise = f->parent.noise;
    noise.position++;
    if (m->own_noise) noise.seed = hash64(&c->token, sizeof c->token, noise.seed);
    int32_t i_row = d->n_next;
    d->small_model.rows[i_row] =
        (Row){.token = c->token, .sequence = m->s->kv, .parent = f->row, .want_logits = true};
    d->next[d->n_next++] = (Front){.i = f->i,
                                   .node = node,
                                   .row = d->small_model.n_rows + i_row,
                                   .parent = {.log_q = c->log_q, .psi = c->psi, .noise = noise}};
    return &d->next[i_row];
}

/* Adds a drawn child to its tree and, where it is to have children itself, to the next front. */
static void take_child(DraftModel *d, const DrawChild *c, bool goes_on) {
    const Front *f = &d->front[c->parent];
    const Member *m = &d->group[f->i];
    Tree *t = m->tree;
    int32_t node = tree_add(t, f->node, c->token, t->nodes[f->node].p_accept * c->chance, d->base.source);
    fr_assert(node > 0);
    if (m->declares) {
        DrawKind kind = d->shape.growth == DRAFT_PATHS ? DRAW_IID : DRAW_WITHOUT_REPLACEMENT;
        bool fits = draft_dists_add(t->dists, f->node, node, kind, d->dists[c->parent]);
        fr_assert(fits); /* fewer draws than nodes in the largest tree */
    }
    if (goes_on) add_front(d, c, node)->paths |= (uint64_t)1 << c->path;
}

/* Draws the children of the whole front, whose rows have run. Leaves the next front, and its rows in the
 * runner's. */
static int grow_level(DraftModel *d, int32_t level, fr_error *err) {
    d->n_next = 0;
    for (int32_t at = 0, end; at < d->n_front; at = end) {
        Member *m = &d->group[d->front[at].i];
        int32_t n;
        for (end = at; end < d->n_front && d->front[end].i == d->front[at].i;) end++;
        int status = draw_level(d, at, end, level, &n, err);
        if (status) return status;
        m->n_left -= n;
        for (int32_t k = 0; k < n; k++) {
            const DrawChild *c = &d->children[k];
            int32_t place = d->shape.growth == DRAFT_PATHS ? c->path : d->shape.growth == DRAFT_BEAM ? 0 : k;
            take_child(d, c, level + 1 < m->n_levels && place < m->n_left); /* as share_of deals out */
        }
    }
    Front *old = d->front;
    d->front = d->next;
    d->next = old;
    d->n_front = d->n_next;
    return FR_OK;
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

/* Rows for the context that the sequence of member i has not run yet, and its root onto the front. */
static int start_member(DraftModel *d, int32_t i, fr_error *err) {
    Member *m = &d->group[i];
    fr_assert(m->s->begun && m->tree->nodes[0].token == m->s->tokens[m->s->n - 1]);
    m->first_row = d->small_model.n_rows;
    int status = small_model_kv_put_context(&d->small_model, m->s, &m->n_context_rows, err);
    if (status) return status;
    uint64_t i_model = d->shape.i_model, seed = m->s->dist.seed;
    DrawNoise noise = {.silent = m->s->greedy, .seed = seed, .position = m->s->position};
    if (m->own_noise) {
        noise.stream = RNG_DRAFT;
        if (i_model > 0) noise.seed = hash64(&i_model, sizeof i_model, seed);
    } else
        noise.stream = RNG_TARGET;
    d->front[d->n_front++] =
        (Front){.i = i, .row = d->small_model.n_rows - 1, .paths = UINT64_MAX, .parent.noise = noise};
    return FR_OK;
}

static int draft_together(DraftModel *d, fr_error *err) {
    SmallModelKv *r = &d->small_model;
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
        const Member *m = &d->group[i];
        if (!m->s) continue;
        small_model_kv_commit(r, m->s, m->first_row, m->n_context_rows);
        if (!m->declares) union_prune(m->tree, m->budget);
    }
    return FR_OK;
}

static Member member_of(const DraftModel *d, int32_t sequence, int32_t budget, Tree *tree) {
    if (budget <= 0) return (Member){.s = NULL};
    bool declares = draft_model_declares(&d->base, sequence, tree);
    return (Member){.s = small_model_kv_sequence(&d->small_model, sequence),
                    .tree = tree,
                    .declares = declares,
                    .own_noise = declares || !d->shape.coupled,
                    .budget = budget,
                    .n_levels = budget < d->shape.n_levels ? budget : d->shape.n_levels,
                    .n_left = declares ? budget : TREE_MAX_NODES};
}

int draft_model_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets,
                        Tree *const *trees, int n, fr_error *err) {
    DraftModel *d = (DraftModel *)drafter;
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++)
        if (budgets[i] > 0)
            status = small_model_kv_catch_up(&d->small_model, small_model_kv_sequence(&d->small_model, sequences[i]), err);
    for (int i = 0; i < n && !status; i += d->n_group) {
        d->n_group = n - i < d->max_group ? n - i : d->max_group;
        for (int k = 0; k < d->n_group; k++) d->group[k] = member_of(d, sequences[i + k], budgets[i + k], trees[i + k]);
        status = draft_together(d, err);
    }
    return status;
}

bool draft_model_declares(const Drafter *drafter, int32_t sequence, const Tree *t) {
    const DraftModel *d = (const DraftModel *)drafter;
    return t->dists && !small_model_kv_sequence(&d->small_model, sequence)->greedy;
}

int64_t draft_model_n_forwards(const Drafter *drafter) { return ((const DraftModel *)drafter)->small_model.n_forwards; }

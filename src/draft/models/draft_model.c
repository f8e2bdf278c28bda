/* draft_model.c - a small model drafts for the target: `sps`, `rsd-c`, `rsd-s`, `spectr` and `specinfer`.
 *
 * The problem: a small model with the same vocabulary predicts the target's tokens well, but one forward for each
 * proposed token is expensive. The idea (Leviathan et al. 2023; Chen et al. 2023; Recursive Speculative Decoding for
 * trees): grow the tree of a step level by level, with one forward of the draft model for all nodes of a level, of
 * all sequences. A tree of depth L costs L forwards, however wide it is and however many sequences there are.
 *
 *   forward 1         2     3       rows of one sequence in the draft model's batch
 *   context ── a ──┬── b ─┬ d ..    1 executor_forward: the context tokens committed since the last step; the last row is
 *   (some rows)    │      └ e ..      the pending token a
 *                  └── c ── f ..    2, 3 executor_extend: b c below a, then d e f below b c
 *
 * Leaves of the tree are not run, because nothing follows them. How children are drawn, what p_accept is, and why the
 * declared distributions are right: grow_level.c.
 *
 * Example: the text ends with "the", coupled=1, branch=2-1. After "the", the draft's distribution with the noise of
 * position 7 ranks cat, dog; after "the cat" and "the dog", with the noise of position 8, it ranks sat and ran first.
 * The tree is the(cat(sat), dog(ran)). The target generates "dog" and then "barked": "dog" is accepted, and the next
 * step starts by running "dog barked", two rows in front of its first level.
 *
 * Noise is used once. Let the root of a tree be followed by output position P. A node at depth k draws with the noise
 * (seed hashed with the k tokens from the root down to it, P + k). A later tree has P' > P, because every step
 * commits at least one token; its node at the same position has a depth k' < k, so its seed was hashed k' times
 * instead of k times and is another number (except for hash collisions, with probability 2^-64). So what a
 * verification revealed about the draws of one step is independent of those of the next. The number of a path, or of
 * a model among several, is hashed as 8 bytes and tokens as 4, so that these cannot coincide. The random source of
 * the rules and the target's own noise are other streams (rng.h).
 *
 * Invariants: a proposal is a pure function of context, sampling options, output position, budget, and whether
 * distributions are declared; sequences do not affect each other. Without distributions, a tree larger than the
 * budget loses its nodes of least p_accept. Levels beyond the budget are not run. Cost: min(levels, budget) forwards
 * of the draft model, and one pass over the vocabulary for each node that has children, or for each path through it.
 * A declared distribution occupies V floats until the end of the step. When it loses: if a forward of the draft model
 * is not far cheaper than the target's. Proof: tests/draft/test_draft_model.c, tests/lossless/test_draft_dists.c. */
#include "draft/models/draft_model.h"

#include "base/hash.h"
#include "base/mem.h"
#include "draft/models/grow_level.h"
#include "tree/tree.h"

/* ---- opening ------------------------------------------------------------------------------------ */

/* The number of nodes of the shape, or 0 if that is too large; *max_children is the most that are drawn for one
 * level. */
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
    const ArenaItem items[] = {ARENA_ITEM(&d->front, n), ARENA_ITEM(&d->next, n), ARENA_ITEM(&d->dists, n),
                               ARENA_ITEM(&d->children, max_children + GROW_N_RIVALS),
                               ARENA_ITEM(&d->dist, d->small_model.n_vocab)};
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
    arena_free(&d->arena);
    small_model_kv_close(&d->small_model);
    mem_free(d);
}

/* ---- sequences ---------------------------------------------------------------------------------- */

static SmallModelKv *small_model_of(Drafter *drafter) { return &((DraftModel *)drafter)->small_model; }

void draft_model_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position) {
    small_model_kv_set_sampling(small_model_of(drafter), sequence, sampling, position);
}

int draft_model_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    return small_model_kv_begin(small_model_of(drafter), sequence, tokens, n, err);
}

int draft_model_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                               fr_error *err) {
    (void)hidden;
    return small_model_kv_observe_prompt(small_model_of(drafter), sequence, first + n, err);
}

void draft_model_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    small_model_kv_take_over(small_model_of(drafter), from, to, n);
}

int32_t draft_model_n_held(const Drafter *drafter, int32_t sequence) {
    return small_model_kv_n_held(&((const DraftModel *)drafter)->small_model, sequence);
}

int32_t draft_model_reach(const Drafter *drafter, int32_t sequence, int32_t n) {
    return small_model_kv_reach(&((const DraftModel *)drafter)->small_model, sequence, n);
}

int draft_model_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    return small_model_kv_observe(small_model_of(drafter), sequence, tokens, n, err);
}

void draft_model_end(Drafter *drafter, int32_t sequence) { small_model_kv_end(small_model_of(drafter), sequence); }

/* ---- a proposal ----------------------------------------------------------------------------------- */

/* Adds rows for the context tokens of member i that have not run yet, and puts its root on the front. */
static int start_member(DraftModel *d, int32_t i, fr_error *err) {
    DraftMember *m = &d->group[i];
    fr_assert(m->s->begun && m->tree->nodes[0].token == m->s->tokens[m->s->n - 1]);
    m->first_row = d->small_model.n_rows;
    int status = small_model_kv_put_context(&d->small_model, m->s, &m->n_context_rows, err);
    if (status) return status;
    uint64_t i_model = d->shape.i_model, seed = m->s->dist.seed;
    DrawNoise noise = {.silent = m->s->greedy, .seed = seed, .position = m->s->position};
    if (m->own_noise) {
        noise.stream = RNG_DRAFT;
        if (i_model > 0) noise.seed = hash64(&i_model, sizeof i_model, seed);
    } else {
        noise.stream = RNG_TARGET;
    }
    d->front[d->n_front++] =
        (DraftFront){.i = i, .row = d->small_model.n_rows - 1, .paths = UINT64_MAX, .parent.noise = noise};
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
        const DraftMember *m = &d->group[i];
        if (!m->s) continue;
        small_model_kv_commit_context(r, m->s, m->first_row, m->n_context_rows);
        if (!m->declares) union_prune(m->tree, m->budget);
    }
    return FR_OK;
}

static DraftMember member_of(const DraftModel *d, int32_t sequence, int32_t budget, Tree *tree) {
    if (budget <= 0) return (DraftMember){.s = NULL};
    bool declares = draft_model_declares(&d->base, sequence, tree);
    return (DraftMember){.s = small_model_kv_sequence(&d->small_model, sequence),
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
        if (budgets[i] > 0)
            status = small_model_kv_catch_up(&d->small_model, small_model_kv_sequence(&d->small_model, sequences[i]),
                                             err);
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

/* draft_model.c - a small model drafts for the target: the machinery of `sps`, `rsd-c` and `rsd-s`.
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
 * Drawing. The children of a node come from the draft's law there, q: penalties, temperature and filters are
 * those of the request (sampler_law), and draw.h draws from it without replacement. coupled=1 draws with the
 * noise with which the target will choose its own token at that output position (verifier.c), so that the two
 * agree more often than two independent draws of p and q would; coupled=0 has noise of its own for each node.
 * Greedy requests take the top-k of q at temperature 1. Nothing of this can change the text: drafted tokens
 * only ever save a forward.
 *
 * est of a node is the product of its path's chances. Without noise, or with noise that the target does not
 * know, the chance of a child is q. A coupled draw has seen the noise, and q is the wrong number: a token of
 * small q that the noise favours is what the target will probably say too. Greedy drafting asks which token
 * has the greatest logit z; softmax(z) answers, as sure as the draft model is of its logits. Coupled drafting
 * asks which has the greatest z + T G; we answer likewise with softmax(z + T G): weights e^(T (log q + G)),
 * since z = T log q + const, over the N_RIVALS best. On the shipped models at T = 1 and with 4 nodes a step,
 * rsd-c's acceptance length is 2.37 with it and 2.01 where nodes are ranked by q (docs/METHODS.md).
 *
 * Example: the text ends with "the", coupled, branch 2-1. The draft's law after "the" with the noise of
 * position 7 ranks cat, dog; after "the cat" and "the dog" with the noise of position 8: sat, ran. The tree
 * is the(cat(sat), dog(ran)). The target says "dog" and then "barked": "dog" is accepted, and the next step
 * starts by running "dog barked", two rows in front of its first level.
 *
 * Keys and values. Between steps the draft model's KV holds the context up to the token that was pending when
 * it last drafted. Tree rows are forgotten after each proposal: what was accepted of them is run again as
 * context, a few cheap rows in a forward that is needed anyway, and so the cache is always that of a fresh
 * prefill, bit for bit.
 *
 * Invariants: a proposal is a pure function of context, sampling options, output position and budget;
 * sequences do not see each other. A tree larger than the budget loses its nodes of least est, and levels
 * beyond the budget are not run.
 * Cost: min(levels, budget) forwards of the draft model and one pass over V for each node that has children.
 * When it loses: where a forward of the draft model is not far cheaper than the target's.
 * Proof: tests/test_draft_model.c. */
#include "spec/draft_model.h"

#include "base/hash.h"
#include "base/mem.h"
#include "model/executor.h"
#include "spec/draw.h"
#include "spec/union.h"
#include "text/vocab_match.h"

#include <math.h>
#include <string.h>

enum {
    PREFILL_CHUNK = 256,
    MAX_NEW_CONTEXT = 32, /* context rows of a sequence in a level's forward; longer stretches run before */
    PAGE_SIZE = 16,
    N_RIVALS = 16, /* children drawn at least, to weigh the first ones against */
};

typedef struct Sequence {
    bool begun;
    int32_t kv;      /* its id in the executor */
    int32_t *tokens; /* the context, the pending token last; room for the path of a node behind it */
    int32_t n;
    uint64_t position; /* output position of the token after the pending one */
    SamplingOptions
        law; /* what q is made with: the request's, and temperature 1 without filters where it is greedy */
    bool greedy;
} Sequence;

/* A node whose children are to be drawn, its row having run. */
typedef struct Front {
    int32_t i; /* which of the sequences of this call */
    int32_t node, row;
    DrawParent parent;
} Front;

typedef struct DraftModel {
    Drafter base;
    DraftShape shape;
    bool coupled;
    Gguf *gguf;
    Model *model;
    Executor *executor;
    Sampler *sampler;
    int32_t n_vocab, max_sequences, n_ctx;
    int32_t n_nodes; /* of the whole shape */
    int32_t max_rows;
    int32_t max_group; /* sequences that can draft at once in max_rows rows */
    int64_t n_forwards;
    Sequence *sequences; /* [max_sequences] */
    Row *rows;           /* [max_rows] of the coming forward */
    int32_t n_rows;
    int32_t *row_ids;    /* [max_rows] argument of a commit */
    Front *front, *next; /* [max_rows] this level's nodes, and the next one's */
    int32_t n_front, n_next;
    DrawChild *children; /* of one sequence at one level */
    float *law;          /* [n_vocab] of the node being expanded */
} DraftModel;

/* One call's arguments for sequences that draft together. */
typedef struct Group {
    const int32_t *sequences, *budgets;
    Tree *const *trees;
    int n;
    int32_t first_row[EXECUTOR_MAX_ROWS / MAX_NEW_CONTEXT],
        n_context_rows[EXECUTOR_MAX_ROWS / MAX_NEW_CONTEXT];
} Group;

/* ---- opening ------------------------------------------------------------------------------------ */

/* Nodes of the shape's tree, and the most children that are drawn for one level; 0 where it is too large. */
static int32_t measure_shape(const DraftShape *shape, int32_t *max_children) {
    int32_t n_nodes = 0, level = 1;
    *max_children = 0;
    for (int32_t l = 0; l < shape->n_levels; l++) {
        int32_t n_children = level * shape->width[l];
        level = shape->beam && n_children > shape->width[l] ? shape->width[l] : n_children;
        if (n_children > *max_children) *max_children = n_children;
        n_nodes += level;
        if (n_nodes > TREE_MAX_NODES - 1) return 0;
    }
    return n_nodes;
}

static int open_files(DraftModel *d, const char *path, const DrafterEnv *env, fr_error *err) {
    int rc = gguf_open(&d->gguf, path, err);
    if (!rc) rc = vocab_match(d->gguf, env->target, err);
    ModelOptions options = {.kernels = env->kernels, .activations = env->activations, .n_threads = env->n_threads};
    if (!rc) rc = model_open(&d->model, d->gguf, &options, err);
    if (rc) return rc;
    if (d->model->hparams.n_vocab == env->n_vocab) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: has %d embeddings, but the target %s has %d; a draft model needs as many", path,
                     d->model->hparams.n_vocab, gguf_path(env->target), env->n_vocab);
}

static int open_memory(DraftModel *d, int32_t max_children, const DrafterEnv *env, fr_error *err) {
    int64_t per_sequence = MAX_NEW_CONTEXT + d->n_nodes, rows = per_sequence * env->max_sequences;
    if (rows > EXECUTOR_MAX_ROWS) rows = EXECUTOR_MAX_ROWS;
    d->max_rows = rows > PREFILL_CHUNK ? (int32_t)rows : PREFILL_CHUNK;
    d->max_group = (int32_t)(d->max_rows / per_sequence);
    size_t n = (size_t)d->max_rows;
    d->sequences = mem_calloc((size_t)env->max_sequences, sizeof *d->sequences);
    d->rows = mem_calloc(n, sizeof *d->rows);
    d->row_ids = mem_calloc(n, sizeof *d->row_ids);
    d->front = mem_calloc(n, sizeof *d->front);
    d->next = mem_calloc(n, sizeof *d->next);
    d->children = mem_calloc((size_t)max_children + N_RIVALS, sizeof *d->children);
    d->law = mem_calloc((size_t)d->n_vocab, sizeof *d->law);
    d->sampler = sampler_new(d->n_vocab);
    if (!d->sequences || !d->rows || !d->row_ids || !d->front || !d->next || !d->children || !d->law ||
        !d->sampler)
        return error_memory(err, "a draft model's trees", n * sizeof *d->front);
    ExecutorOptions options = {.n_threads = env->n_threads,
                               .kv_type = KV_F16,
                               .page_size = PAGE_SIZE,
                               .n_ctx = d->n_ctx + d->n_nodes,
                               .max_sequences = env->max_sequences,
                               .max_rows = d->max_rows};
    return executor_open(&d->executor, d->model, &options, err);
}

int draft_model_open(Drafter **out, const DraftSpec *spec, const DrafterClass *class, const DraftShape *shape,
                     const DrafterEnv *env, fr_error *err) {
    const char *path = draft_spec_get(spec, class, "model");
    int32_t max_children, n_nodes = measure_shape(shape, &max_children);
    int64_t coupled;
    int rc = draft_spec_get_int(spec, class, "coupled", 0, 1, &coupled, err);
    if (rc) return rc;
    if (n_nodes == 0)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: such a tree has more than %d nodes; make it narrower or shallower", class->name,
                         TREE_MAX_NODES - 1);
    if (!*path)
        return error_set(err, FR_ERR_ARGUMENT, "%s: no draft model given; write %s:model=FILE.gguf",
                         class->name, class->name);
    if (!env->target)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: a draft model drafts for a target, and none runs here; use run or "
                         "compare",
                         class->name);
    DraftModel *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, class->name, sizeof *d);
    d->shape = *shape;
    d->coupled = coupled == 1;
    d->n_nodes = n_nodes;
    d->n_vocab = env->n_vocab;
    d->max_sequences = env->max_sequences;
    d->n_ctx = env->n_ctx;
    rc = open_files(d, path, env, err);
    if (!rc) rc = open_memory(d, max_children, env, err);
    if (rc) {
        draft_model_close(&d->base);
        return rc;
    }
    for (int32_t i = 0; i < d->max_sequences; i++)
        draft_model_set_sampling(&d->base, i, &SAMPLING_DEFAULT, 0);
    *out = &d->base;
    return FR_OK;
}

void draft_model_close(Drafter *drafter) {
    DraftModel *d = (DraftModel *)drafter;
    for (int32_t i = 0; d->sequences && i < d->max_sequences; i++) mem_free(d->sequences[i].tokens);
    void *all[] = {d->sequences, d->rows, d->row_ids, d->front, d->next, d->children, d->law};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    executor_close(d->executor);
    sampler_free(d->sampler);
    model_close(d->model);
    gguf_close(d->gguf);
    mem_free(d);
}

/* ---- sequences ---------------------------------------------------------------------------------- */

static Sequence *sequence_of(const DraftModel *d, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->sequences[sequence];
}

void draft_model_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling,
                              uint64_t position) {
    Sequence *s = sequence_of((DraftModel *)drafter, sequence);
    s->position = position;
    s->greedy = sampling->temperature == 0;
    s->law = *sampling;
    if (s->greedy) s->law.temperature = 1, s->law.top_k = 0, s->law.top_p = 1, s->law.min_p = 0;
}

static int append(const DraftModel *d, Sequence *s, const int32_t *tokens, int64_t n, fr_error *err) {
    if (n > d->n_ctx - s->n)
        return error_set(err, FR_ERR_CONTEXT, "the draft model's context of %d tokens is full", d->n_ctx);
    memcpy(s->tokens + s->n, tokens, (size_t)n * sizeof *tokens);
    s->n += (int32_t)n;
    return FR_OK;
}

/* The next n context tokens as rows behind d->n_rows ones, reserved together with room for n_more. */
static int put_context(DraftModel *d, const Sequence *s, int32_t n, int32_t n_more, fr_error *err) {
    int32_t done = executor_sequence_length(d->executor, s->kv);
    int rc = executor_reserve(d->executor, s->kv, n + n_more, err);
    for (int32_t i = 0; i < n && !rc; i++, d->n_rows++)
        d->rows[d->n_rows] =
            (Row){.token = s->tokens[done + i], .sequence = s->kv, .parent = i ? d->n_rows - 1 : -1};
    return rc;
}

static void commit_context(DraftModel *d, const Sequence *s, int32_t first_row, int32_t n) {
    for (int32_t i = 0; i < n; i++) d->row_ids[i] = first_row + i;
    executor_commit(d->executor, s->kv, d->row_ids, n);
}

/* Runs the context up to token `end`, which may be long, by itself. */
static int prefill(DraftModel *d, const Sequence *s, int32_t end, fr_error *err) {
    for (int32_t n; (n = end - executor_sequence_length(d->executor, s->kv)) > 0;) {
        if (n > PREFILL_CHUNK) n = PREFILL_CHUNK;
        d->n_rows = 0;
        int rc = put_context(d, s, n, 0, err);
        if (!rc) rc = executor_forward(d->executor, d->rows, n, err);
        if (rc) return rc;
        d->n_forwards++;
        commit_context(d, s, 0, n);
    }
    return FR_OK;
}

int draft_model_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    DraftModel *d = (DraftModel *)drafter;
    Sequence *s = sequence_of(d, sequence);
    fr_assert(!s->begun && n > 0);
    size_t room = (size_t)d->n_ctx + DRAFT_MODEL_MAX_LEVELS;
    s->tokens = mem_calloc(room, sizeof *s->tokens);
    if (!s->tokens) return error_memory(err, "a draft model's context", room * sizeof *s->tokens);
    s->n = 0;
    int rc = executor_sequence_open(d->executor, &s->kv, err);
    s->begun = rc == FR_OK;
    if (!rc) rc = append(d, s, tokens, n, err);
    return rc ? rc : prefill(d, s, s->n - 1, err);
}

int draft_model_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    DraftModel *d = (DraftModel *)drafter;
    Sequence *s = sequence_of(d, sequence);
    s->position += (uint64_t)n;
    return append(d, s, tokens, n, err);
}

void draft_model_end(Drafter *drafter, int32_t sequence) {
    DraftModel *d = (DraftModel *)drafter;
    Sequence *s = sequence_of(d, sequence);
    if (s->begun) executor_sequence_close(d->executor, s->kv);
    mem_free(s->tokens);
    s->tokens = NULL;
    s->begun = false;
    draft_model_set_sampling(drafter, sequence, &SAMPLING_DEFAULT, 0);
}

/* ---- drafting ----------------------------------------------------------------------------------- */

static int32_t levels_of(const DraftModel *d, int32_t budget) {
    return budget < d->shape.n_levels ? budget : d->shape.n_levels;
}

/* Rows for the context that sequence i of the group has not run yet, and its root onto the front. */
static int start_sequence(DraftModel *d, Group *g, int i, fr_error *err) {
    Sequence *s = sequence_of(d, g->sequences[i]);
    fr_assert(s->begun && g->trees[i]->nodes[0].token == s->tokens[s->n - 1]);
    /* A step may pass without the proposal being used: then the pending token has run already. */
    if (executor_sequence_length(d->executor, s->kv) == s->n)
        executor_sequence_truncate(d->executor, s->kv, s->n - 1);
    int32_t n = s->n - executor_sequence_length(d->executor, s->kv);
    g->first_row[i] = d->n_rows;
    g->n_context_rows[i] = n;
    int rc = put_context(d, s, n, d->n_nodes, err);
    if (rc) return rc;
    d->rows[d->n_rows - 1].want_logits = true;
    bool own = !d->coupled;
    d->front[d->n_front++] = (Front){.i = i,
                                     .node = 0,
                                     .row = d->n_rows - 1,
                                     .parent.noise = {.silent = s->greedy,
                                                      .stream = own ? RNG_DRAFT : RNG_TARGET,
                                                      .seed = s->law.seed,
                                                      .position = s->position}};
    return FR_OK;
}

/* Fills d->law with the draft's law after a node. */
static void find_law(DraftModel *d, const Group *g, const Front *f) {
    Sequence *s = sequence_of(d, g->sequences[f->i]);
    const Tree *t = g->trees[f->i];
    for (int32_t node = f->node; node > 0; node = t->nodes[node].parent)
        s->tokens[s->n + t->nodes[node].depth - 1] = t->nodes[node].token;
    sampler_law(d->sampler, &s->law, executor_logits(d->executor, f->row), s->tokens,
                s->n + t->nodes[f->node].depth, d->law);
}

/* How likely is each of the children drawn, in falling order of value, to be what the target says there? Of
 * greedy and of uncoupled draws the law knows: q. A coupled draw has seen the noise: see the essay. */
static void estimate(const DraftModel *d, const Sequence *s, DrawChild *drawn, int32_t n) {
    double sum = 0, t = (double)s->law.temperature;
    bool by_law = s->greedy || !d->coupled;
    for (int32_t i = 0; i < n; i++) sum += exp(t * (drawn[i].value - drawn[0].value));
    for (int32_t i = 0; i < n; i++)
        drawn[i].chance = by_law ? drawn[i].q : (float)(exp(t * (drawn[i].value - drawn[0].value)) / sum);
}

/* Draws the children of one node of the front; returns how many. */
static int32_t draw_of(DraftModel *d, const Group *g, int32_t at, int32_t width, DrawChild *out) {
    const Front *f = &d->front[at];
    find_law(d, g, f);
    int32_t n = draw_children(d->law, d->n_vocab, &f->parent, at, width > N_RIVALS ? width : N_RIVALS, out);
    estimate(d, sequence_of(d, g->sequences[f->i]), out, n);
    return n < width ? n : width;
}

/* Adds a drawn child to its tree and, where it is to have children itself, to the next front. */
static void take_child(DraftModel *d, const Group *g, const DrawChild *c, bool goes_on) {
    const Front *f = &d->front[c->parent];
    Tree *t = g->trees[f->i];
    int32_t node = tree_add(t, f->node, c->token, t->nodes[f->node].est * c->chance, d->base.source);
    fr_assert(node > 0);
    if (!goes_on) return;
    DrawNoise noise = f->parent.noise;
    noise.position++;
    if (!d->coupled) noise.seed = hash64(&c->token, sizeof c->token, noise.seed);
    int32_t i_row = d->n_next;
    d->rows[i_row] = (Row){.token = c->token,
                           .sequence = sequence_of(d, g->sequences[f->i])->kv,
                           .parent = f->row,
                           .want_logits = true};
    d->next[d->n_next++] = (Front){.i = f->i,
                                   .node = node,
                                   .row = d->n_rows + i_row,
                                   .parent = {.log_q = c->log_q, .psi = c->psi, .noise = noise}};
}

/* Draws the children of the whole front, whose rows have run. Leaves the next front, and its rows in d->rows.
 */
static void grow_level(DraftModel *d, const Group *g, int32_t level) {
    int32_t width = d->shape.width[level];
    d->n_next = 0;
    for (int32_t at = 0; at < d->n_front;) {
        int32_t i = d->front[at].i, n = 0;
        for (; at < d->n_front && d->front[at].i == i; at++) n += draw_of(d, g, at, width, d->children + n);
        if (d->shape.beam) n = draw_beam(d->children, n, width);
        bool goes_on = level + 1 < levels_of(d, g->budgets[i]);
        for (int32_t k = 0; k < n; k++) take_child(d, g, &d->children[k], goes_on);
    }
    Front *old = d->front;
    d->front = d->next;
    d->next = old;
    d->n_front = d->n_next;
}

static int draft_together(DraftModel *d, Group *g, fr_error *err) {
    d->n_rows = d->n_front = 0;
    int rc = FR_OK;
    for (int i = 0; i < g->n && !rc; i++) {
        g->n_context_rows[i] = 0;
        if (g->budgets[i] > 0) rc = start_sequence(d, g, i, err);
    }
    if (rc || d->n_front == 0) return rc;
    rc = executor_forward(d->executor, d->rows, d->n_rows, err);
    for (int32_t level = 0; !rc && d->n_front > 0; level++) {
        d->n_forwards++;
        grow_level(d, g, level);
        if (d->n_front > 0) rc = executor_extend(d->executor, d->rows, d->n_front, err);
        d->n_rows += d->n_front;
    }
    if (rc) return rc;
    for (int i = 0; i < g->n; i++) {
        if (g->n_context_rows[i] == 0) continue;
        commit_context(d, sequence_of(d, g->sequences[i]), g->first_row[i], g->n_context_rows[i]);
        union_prune(g->trees[i], g->budgets[i]);
    }
    return FR_OK;
}

int draft_model_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets,
                        Tree *const *trees, int n, fr_error *err) {
    DraftModel *d = (DraftModel *)drafter;
    for (int i = 0; i < n; i++) {
        const Sequence *s = sequence_of(d, sequences[i]);
        int rc = budgets[i] > 0 ? prefill(d, s, s->n - MAX_NEW_CONTEXT, err) : FR_OK;
        if (rc) return rc;
    }
    for (int i = 0; i < n; i += d->max_group) {
        Group g = {.sequences = sequences + i,
                   .budgets = budgets + i,
                   .trees = trees + i,
                   .n = n - i < d->max_group ? n - i : d->max_group};
        int rc = draft_together(d, &g, err);
        if (rc) return rc;
    }
    return FR_OK;
}

int64_t draft_model_n_forwards(const Drafter *drafter) { return ((const DraftModel *)drafter)->n_forwards; }

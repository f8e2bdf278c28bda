/* learned.c - the common part of learned drafters: opening, the target's hidden states, the backend's operations, and
 * what several methods need for their trees. */
#include "draft/learned/learned.h"

#include "base/math_functions.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------ */

int learned_open(LearnedDrafter *d, const char *path, const char *method, const DrafterEnv *env, fr_error *err) {
    int status = learned_open_target(d, method, env, err);
    if (!status) status = drafter_file_open(&d->file, path, method, d->target, err);
    if (!status) status = head_tokens_read(d, &d->file, err);
    if (!status) d->weights_mark = gguf_weights_mark(d->file.gguf);
    return status;
}

int learned_layers_open(LearnedDrafter *d, const Model *layers, Weights **out, fr_error *err) {
    enum { ROWS = 4 }; /* about as many as a level of a tree has */
    return weights_open_draft(out, d->device, d->weights, layers, ROWS, err);
}

int learned_open_target(LearnedDrafter *d, const char *method, const DrafterEnv *env, fr_error *err) {
    if (!env->weights)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: drafts from the target's hidden states and needs a running target; use run or compare",
                         method);
    d->weights = env->weights;
    d->target = env->weights->model;
    d->backend = env->weights->backend;
    d->device = env->device;
    d->n_embd = d->target->hparams.n_embd;
    d->n_vocab = d->head.n = d->target->hparams.n_vocab;
    d->max_sequences = env->max_sequences;
    d->n_ctx = env->n_ctx;
    d->env = *env;
    float *hidden;
    int32_t *contexts;
    int64_t n = d->max_sequences, room = (int64_t)d->n_ctx + 2 * TREE_MAX_NODES;
    const ArenaItem items[] = {ARENA_ITEM(&d->sequences, n), ARENA_ITEM(&hidden, n * d->n_embd),
                               ARENA_ITEM(&contexts, n * room), ARENA_ITEM(&d->dist, d->n_vocab),
                               ARENA_ITEM(&d->children, TOP_K_MAX)};
    int status = arena_take(&d->arena, items, ARENA_COUNT(items), method, err);
    if (!status && !(d->sampler = sampler_new(d->n_vocab))) status = error_memory(err, method, (size_t)d->n_vocab);
    if (!status) sampler_use_kernels(d->sampler, d->device->rows);
    if (!status && !(d->draw_cache = draw_cache_new(d->n_vocab, d->device->rows)))
        status = error_memory(err, method, (size_t)d->n_vocab * sizeof(uint32_t));
    for (int32_t i = 0; i < d->max_sequences && !status; i++) {
        d->sequences[i].context = contexts + i * room;
        d->sequences[i].sampling = SAMPLING_DEFAULT;
        d->sequences[i].sampling.temperature = 1;
        d->sequences[i].hidden = hidden + (int64_t)i * d->n_embd;
    }
    return status;
}

void learned_note_quantisation(LearnedDrafter *d, const char *path, const char *remedy) {
    const char *type = drafter_target_quantisation(d->target);
    if (!type) return;
    snprintf(d->notice, sizeof d->notice,
             "%.200s: was published for 16-bit weights, and the target is quantised (%s), so fewer tokens may be "
             "accepted; %s",
             path, type, remedy);
}

int learned_reserve_group(LearnedDrafter *d, int32_t max_group, LearnedDraftFn *draft, fr_error *err) {
    const ArenaItem items[] = {ARENA_ITEM(&d->members, max_group)};
    d->max_group = max_group;
    d->draft = draft;
    return arena_take(&d->arena, items, 1, "a proposal", err);
}

LearnedName learned_name(const char *method, const char *what) {
    LearnedName name;
    snprintf(name.text, sizeof name.text, "%s.%s", method, what);
    return name;
}

void learned_release(LearnedDrafter *d) {
    while (d->n_buffers > 0) buffer_close(d->buffers[--d->n_buffers]);
    arena_free(&d->arena);
    sampler_free(d->sampler);
    draw_cache_free(d->draw_cache);
    head_tokens_close(d);
    drafter_file_close(&d->file);
}

/* ---- operations ----------------------------------------------------------------------------------- */

int learned_linear_open(LearnedDrafter *d, const char *name, int64_t n_in, int64_t n_out, bool has_bias,
                        int64_t max_rows, Linear **out, fr_error *err) {
    if (max_rows > INT32_MAX)
        return error_set(err, FR_ERR_MEMORY, "a drafter with %lld rows at once is too large; choose smaller options",
                         (long long)max_rows);
    char tensor[96];
    const GgufTensor *w;
    float *bias = NULL;
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    int status = drafter_file_matrix(&d->file, tensor, n_in, n_out, &w, err);
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    if (!status && has_bias) status = drafter_file_vector(&d->file, tensor, n_out, &bias, err);
    if (!status) status = d->backend->linear_open(out, d->device, d->weights, w, bias, (int32_t)max_rows, err);
    mem_free(bias);
    return status;
}

void learned_linear_close(LearnedDrafter *d, Linear *l) {
    if (l) d->backend->linear_close(l);
}

int learned_open_buffers(LearnedDrafter *d, const LearnedBuffer *buffers, int32_t n, fr_error *err) {
    int status = FR_OK;
    for (int32_t i = 0; i < n && !status; i++) {
        fr_assert(d->n_buffers < LEARNED_MAX_BUFFERS);
        status = d->backend->buffer_open(buffers[i].out, d->device, buffers[i].n, err);
        if (!status) d->buffers[d->n_buffers++] = *buffers[i].out;
    }
    return status;
}

void learned_write(Buffer *b, int64_t first, const float *floats, int64_t n) {
    memcpy(b->floats + first, floats, (size_t)n * sizeof *floats);
    buffer_push(b, first, n);
}

void learned_linear(LearnedDrafter *d, const Linear *l, LinearOp op, Buffer *x, int32_t n_rows, Buffer *y) {
    d->backend->linear(d->device, l, op, (Slice){x, 0}, n_rows, (Slice){y, 0});
}

void learned_embed(const LearnedDrafter *d, const int32_t *tokens, int32_t n, Slice out) {
    d->backend->embed(d->device, d->weights, tokens, n, out);
}

/* ---- trees ---------------------------------------------------------------------------------------- */

int32_t learned_path(const Tree *t, int32_t node, int32_t path[TREE_MAX_NODES]) {
    int32_t depth = t->nodes[node].depth;
    for (; node > 0; node = t->nodes[node].parent) path[t->nodes[node].depth - 1] = t->nodes[node].token;
    return depth;
}

int32_t learned_best_nodes(const double *log_p, int32_t first, int32_t end, int32_t k, int32_t *nodes) {
    bool taken[TREE_MAX_NODES] = {false};
    int32_t n = 0;
    for (; n < k && n < end - first; n++) {
        int32_t best = -1;
        for (int32_t i = first; i < end; i++)
            if (!taken[i] && (best < 0 || log_p[i] > log_p[best])) best = i;
        taken[nodes[n] = best] = true;
    }
    return n;
}

/* The tree is grown best first: each node offers its next child, by rank, and the best offer of all is taken. The
 * product of a child is at most its parent's, so no better node comes later. tests/draft/test_draft_medusa.c compares
 * the result with all products. */
void learned_grow_products(const ProductRanks *r, int32_t budget, int32_t source, Tree *t) {
    double log_p[TREE_MAX_NODES] = {0};
    int32_t next_rank[TREE_MAX_NODES] = {0};
    for (int32_t n = 0; n < budget && t->n < TREE_MAX_NODES; n++) {
        int32_t best = -1;
        double best_log_p = -INFINITY;
        for (int32_t i = 0; i < t->n; i++) {
            int32_t depth = t->nodes[i].depth;
            if (depth == r->n_levels || next_rank[i] == r->n_tokens[depth]) continue;
            double sum = log_p[i] + r->log_p[depth * r->n_ranks + next_rank[i]];
            if (sum > best_log_p) best = i, best_log_p = sum;
        }
        if (best < 0) return;
        int32_t token = r->tokens[t->nodes[best].depth * r->n_ranks + next_rank[best]++];
        int32_t child = tree_add(t, best, token, (float)math_exp(best_log_p), source);
        log_p[child] = best_log_p;
        next_rank[child] = 0;
    }
}

void learned_grow_block(LearnedDrafter *d, const LearnedMember *m, const float *const *logits, int32_t n_levels,
                        const BlockRanks *r) {
    int32_t n_tokens[LEARNED_MAX_BLOCK];
    for (int32_t i = 0; i < n_levels; i++) {
        int32_t at = i * r->n_ranks;
        learned_spread(d, logits[i], r->logits);
        n_tokens[i] = learned_top(d, m->sequence, NULL, i, r->logits, r->n_ranks, r->tokens + at, r->log_p + at);
    }
    const ProductRanks ranks = {n_levels, r->n_ranks, r->tokens, r->log_p, n_tokens};
    learned_grow_products(&ranks, m->budget, d->base.source, m->tree);
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

int learned_propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                    fr_error *err) {
    LearnedDrafter *d = (LearnedDrafter *)drafter;
    int32_t n_members = 0;
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) {
        const float *hidden = budgets[i] > 0 ? learned_hidden(d, sequences[i]) : NULL;
        if (hidden) learned_start(d, sequences[i], trees[i]);
        if (hidden)
            d->members[n_members++] =
                (LearnedMember){.tree = trees[i], .sequence = sequences[i], .budget = budgets[i], .hidden = hidden};
        if (n_members == 0 || (n_members < d->max_group && i < n - 1)) continue;
        status = d->draft(d, d->members, n_members, err);
        n_members = 0;
    }
    return status;
}

/* ---- sequences ---------------------------------------------------------------------------------- */

static LearnedSequence *sequence_of(const Drafter *drafter, int32_t sequence) {
    const LearnedDrafter *d = (const LearnedDrafter *)drafter;
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->sequences[sequence];
}

const float *learned_hidden(const LearnedDrafter *d, int32_t sequence) {
    const LearnedSequence *s = sequence_of(&d->base, sequence);
    return s->n_hidden > 0 && s->n_hidden == s->n_tokens - 1 ? s->hidden : NULL;
}

void learned_set_sampling(Drafter *drafter, int32_t sequence, const SamplingOptions *sampling, uint64_t position) {
    LearnedSequence *s = sequence_of(drafter, sequence);
    s->sampling = *sampling;
    s->position = position;
    s->has_noise = sampling->temperature > 0;
}

/* A ratio rule uses random numbers of its own, so that its choice does not depend on the target's noise. It can use
 * tokens that were drawn with noise of their own. */
void learned_start(LearnedDrafter *d, int32_t sequence, const Tree *tree) {
    LearnedSequence *s = sequence_of(&d->base, sequence);
    s->is_coupled = d->coupled && s->has_noise && !tree->dists;
    s->is_drawing = d->draws && s->has_noise && tree->dists && !tree->dists->only_points;
    s->dists = tree->dists;
    s->n_draws = s->n_expanded = 0;
}

static int append(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const LearnedDrafter *d = (const LearnedDrafter *)drafter;
    LearnedSequence *s = sequence_of(drafter, sequence);
    int status = feedback_check_tokens(tokens, n, d->n_vocab, err);
    if (status) return status;
    if (n > d->n_ctx + TREE_MAX_NODES - s->n_tokens)
        return error_set(err, FR_ERR_CONTEXT, "%s: the drafter's context of %d tokens is full", drafter->class->name,
                         d->n_ctx);
    memcpy(s->context + s->n_tokens, tokens, (size_t)n * sizeof *tokens);
    s->n_tokens += n;
    return FR_OK;
}

int learned_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    LearnedSequence *s = sequence_of(drafter, sequence);
    s->n_tokens = s->n_hidden = 0;
    return append(drafter, sequence, tokens, n, err);
}

/* The target has read n more tokens of the sequence, from position `first` on; `last` is the hidden state of the last
 * of them. Those of earlier tokens may be missing, such as those of a prompt that was not shown to the drafter. */
static int store_hidden(Drafter *drafter, int32_t sequence, int64_t first, int32_t n, const float *last,
                        fr_error *err) {
    LearnedSequence *s = sequence_of(drafter, sequence);
    if (first < s->n_hidden)
        return error_set(err, FR_ERR_INTERNAL, "got hidden states from token %lld on instead of from token %lld on",
                         (long long)first, (long long)s->n_hidden);
    s->n_hidden = first + n;
    memcpy(s->hidden, last, (size_t)((const LearnedDrafter *)drafter)->n_embd * sizeof *last);
    return FR_OK;
}

int learned_observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                           fr_error *err) {
    return store_hidden(drafter, sequence, first, n, hidden[n - 1], err);
}

void learned_take_over(Drafter *drafter, int32_t from, int32_t to, int32_t n) {
    (void)from;
    sequence_of(drafter, to)->n_hidden = n;
}

int learned_observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    int32_t depth = v->verdict->n_path;
    return store_hidden(drafter, sequence, sequence_of(drafter, sequence)->n_tokens - 1, depth + 1,
                        v->hidden[feedback_node(v, depth)], err);
}

int learned_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    sequence_of(drafter, sequence)->position += (uint64_t)n;
    return append(drafter, sequence, tokens, n, err);
}

void learned_end(Drafter *drafter, int32_t sequence) {
    LearnedSequence *s = sequence_of(drafter, sequence);
    s->n_tokens = s->n_hidden = 0;
    s->has_noise = s->is_drawing = false;
}

const char *learned_notice(const Drafter *drafter) { return ((const LearnedDrafter *)drafter)->notice; }

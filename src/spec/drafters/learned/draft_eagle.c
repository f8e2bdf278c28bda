/* draft_eagle.c - the drafter `eagle`: EAGLE-2 (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature
 * Uncertainty", arXiv 2401.15077, and "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", arXiv
 * 2406.16858).
 *
 * The problem. Tokens are hard to predict for a small model. The target's next hidden state is easier, because hidden
 * states change more regularly than tokens; but it depends on which token was chosen.
 *
 * The idea. One transformer layer f with a KV cache of its own predicts hidden states, given the chosen token:
 *
 *     f_t = f(fc [E(x_{t+1}) ; h_t])        E(x) the target's embedding, h_t its hidden state after the final norm
 *     distribution of x_{t+2} = softmax(W_head f_t)  the target's own LM head
 *
 * The cache holds an entry for each token that the target has read. Below the pending token the layer continues with
 * its own f in place of h, as a tree (eagle_tree.c): a node's row attends to its ancestors.
 *
 *     entry      0            1            2                      tree
 *     input   E(x1) h0     E(x2) h1     E(x3) h2        x3 pending ── cat: E(cat) f_2 ── sat: E(sat) f_cat
 *                                        gives f_2                 └─ dog: E(dog) f_2
 *
 * After a step, the rows of the tree are discarded, and entries of the accepted tokens are computed from the target's
 * hidden states (observe_tree). Under the ratio rules recursive and transport the children of a node are drawn at random
 * (learned_draw.c), and all ranking is by psi.
 *
 * The layer runs in the executor (backend/executor.h) as a model with one layer whose rows bring their input, so
 * paging, tree attention, threads and quantised weights work as they do for the target. EAGLE's layer has no norm
 * before its attention and none at its end.
 *
 * Files: eagle.h. If the drafter was trained with token info (token_info.h), the info of a token is added to the
 * logits after it.
 *
 * Cost: a forward of the layer for the accepted tokens of each sequence, then one a level for all sequences together,
 * and the LM head for up to `top` rows a sequence in each. When it loses: if the target has few layers. Proof:
 * tests/unit/test_draft_eagle.c, against the layer in double precision over each path by itself. */
#include "base/mem.h"
#include "spec/drafter/feedback.h"
#include "spec/drafters/learned/eagle.h"
#include "spec/drafters/learned/eagle_tree.h"

#include <string.h>

enum { CHUNK = 64 }; /* entries computed at once */

typedef struct EagleOptions {
    const char *file;
    bool coupled, draws;
    int32_t depth, top;
    bool is_static;
} EagleOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(EagleOptions),
    {.key = "depth",
     OPT_INT(EagleOptions, depth, 1, EAGLE_MAX_DEPTH),
     .default_value = "5",
     .help = "maximal length of a path"},
    {.key = "top",
     OPT_INT(EagleOptions, top, 1, EAGLE_MAX_TOP),
     .default_value = "8",
     .help = "children of a node, and nodes expanded at each level"},
    {.key = "tree",
     OPT_CHOICE(EagleOptions, is_static, "dynamic", "static"),
     .default_value = "dynamic",
     .help = "dynamic: EAGLE-2's tree; static: EAGLE-1's, whose shape is fixed in advance"},
    LEARNED_OPTION_COUPLED(EagleOptions),
    LEARNED_OPTION_DRAW(EagleOptions),
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_eagle(Drafter *drafter) {
    Eagle *d = (Eagle *)drafter;
    learned_linear_close(&d->learned, d->fc);
    token_info_close(&d->info);
    one_layer_close(&d->layer);
    learned_release(&d->learned);
    mem_free(d);
}

static int read_weights(Eagle *d, fr_error *err) {
    static const OneLayerNames names = {.key_feed_forward = EAGLE_KEY_FEED_FORWARD,
                                        .q = EAGLE_ATTN_Q,
                                        .k = EAGLE_ATTN_K,
                                        .v = EAGLE_ATTN_V,
                                        .o = EAGLE_ATTN_OUTPUT,
                                        .ffn_norm = EAGLE_FFN_NORM,
                                        .gate = EAGLE_FFN_GATE,
                                        .up = EAGLE_FFN_UP,
                                        .down = EAGLE_FFN_DOWN};
    LearnedDrafter *l = &d->learned;
    int64_t embd = l->n_embd;
    int status = learned_linear_open(l, EAGLE_FC, 2 * embd, embd, true, d->max_rows, &d->fc, err);
    return status ? status : one_layer_open(&d->layer, l, &names, err);
}

static int allocate(Eagle *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t h = l->n_embd, rows = d->max_rows, front = l->max_group * d->top, n = l->max_sequences;
    float *features, *logits;
    const ArenaItem items[] = {
        ARENA_ITEM(&d->sequences, n),        ARENA_ITEM(&logits, n * l->n_vocab), ARENA_ITEM(&features, n * h),
        ARENA_ITEM(&d->group, l->max_group), ARENA_ITEM(&d->front, front),        ARENA_ITEM(&d->next, front),
        ARENA_ITEM(&d->front_rows, front),   ARENA_ITEM(&d->rows, rows),          ARENA_ITEM(&d->row_ids, rows),
        ARENA_ITEM(&d->pairs, rows * 2 * h), ARENA_ITEM(&d->inputs, rows * h),    ARENA_ITEM(&d->features, front * h),
        ARENA_ITEM(&d->logits, l->n_vocab),
    };
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "eagle", err);
    for (int64_t i = 0; i < n && !status; i++) {
        d->sequences[i].logits = logits + i * l->n_vocab;
        d->sequences[i].feature = features + i * h;
    }
    return status;
}

static int apply_options(Eagle *d, const EagleOptions *o, const DrafterEnv *env, fr_error *err) {
    int32_t depth = o->depth, top = o->top;
    if (top + (depth - 1) * top * top >= TREE_MAX_NODES)
        return error_set(err, FR_ERR_ARGUMENT,
                         "eagle: depth %d with top %d finds more than the %d nodes of a tree; make one of "
                         "them smaller",
                         depth, top, TREE_MAX_NODES - 1);
    double chance[EAGLE_MAX_DEPTH * EAGLE_MAX_TOP];
    static_tree_prior(chance, depth, top);
    static_tree_build(&d->shape, chance, depth, top, top);
    int32_t rows = depth * top, n = EAGLE_MAX_ROWS / rows, max_group = n < env->max_sequences ? n : env->max_sequences;
    d->depth = depth;
    d->top = top;
    d->is_static = o->is_static;
    d->n_ctx = env->n_ctx;
    d->max_rows = max_group * rows > CHUNK ? max_group * rows : CHUNK;
    return learned_reserve_group(&d->learned, max_group, err);
}

static int open_eagle(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const EagleOptions *o = options;
    Eagle *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "eagle", sizeof *d);
    int status = apply_options(d, o, env, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open(&d->learned, o->file, "eagle", env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = token_info_open(&d->info, &d->learned, "eagle", TOKEN_INFO_F16, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = allocate(d, err);
    if (!status)
        status = one_layer_open_executor(&d->layer, &d->learned, env->n_ctx, EAGLE_MAX_DEPTH * EAGLE_MAX_TOP,
                                         d->max_rows, err);
    if (status) {
        close_eagle(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- rows of the layer ------------------------------------------------------------------------------- */

static EagleSequence *sequence_of(const Drafter *drafter, int32_t sequence) {
    return &((const Eagle *)drafter)->sequences[sequence];
}

void eagle_set_pair(Eagle *d, int32_t i, int32_t token, const float *feature) {
    int64_t h = d->learned.n_embd;
    float *pair = d->pairs + i * 2 * h;
    learned_embed(&d->learned, token, pair);
    memcpy(pair + h, feature, (size_t)h * sizeof *pair);
}

void eagle_fuse(Eagle *d, int32_t n) {
    learned_linear(&d->learned, d->fc, LINEAR_SET, d->pairs, n, d->inputs);
    for (int32_t i = 0; i < n; i++) d->rows[i].input = d->inputs + (int64_t)i * d->learned.n_embd;
}

void eagle_read_logits(Eagle *d, int32_t row, int32_t token, float *logits) {
    memcpy(logits, executor_logits(d->layer.executor, row), (size_t)d->learned.n_vocab * sizeof *logits);
    token_info_add(&d->info, &token, 1, logits);
}

void eagle_find_top(Eagle *d, const EagleMember *m, int32_t node, const float *logits, EagleTop *out) {
    int32_t path[TREE_MAX_NODES], n_path = learned_path(m->tree, node, path);
    if (logits != d->logits) memcpy(d->logits, logits, (size_t)d->learned.n_vocab * sizeof *logits);
    out->n = learned_top(&d->learned, (int32_t)(m->s - d->sequences), path, n_path, d->logits, d->top, out->tokens,
                         out->log_p);
}

/* ---- entries: the tokens that the target has read --------------------------------------------------- */

/* Adds n <= CHUNK entries, from hidden states and the token that follows each. */
static int add_entries(Eagle *d, EagleSequence *s, const int32_t *tokens, const float *const *hidden, int32_t n,
                       fr_error *err) {
    for (int32_t i = 0; i < n; i++) {
        eagle_set_pair(d, i, tokens[i], hidden[i]);
        d->rows[i] = (Row){.token = tokens[i], .sequence = s->kv, .parent = i - 1, .want_logits = i == n - 1};
        d->row_ids[i] = i;
    }
    eagle_fuse(d, n);
    int status = executor_reserve(d->layer.executor, s->kv, n, err);
    if (!status) status = executor_forward(d->layer.executor, d->rows, n, err);
    if (status) return status;
    memcpy(s->feature, executor_hidden(d->layer.executor, n - 1), (size_t)d->learned.n_embd * sizeof *s->feature);
    eagle_read_logits(d, n - 1, tokens[n - 1], s->logits);
    executor_commit(d->layer.executor, s->kv, d->row_ids, n);
    return FR_OK;
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Eagle *d = (Eagle *)drafter;
    EagleSequence *s = sequence_of(drafter, sequence);
    int status = learned_begin(drafter, sequence, tokens, n, err);
    if (!status) status = executor_sequence_open(d->layer.executor, &s->kv, err);
    s->begun = status == FR_OK;
    return status;
}

static int observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n,
                          fr_error *err) {
    Eagle *d = (Eagle *)drafter;
    EagleSequence *s = sequence_of(drafter, sequence);
    const int32_t *after = d->learned.sequences[sequence].context + first + 1;
    int status = learned_observe_prompt(drafter, sequence, first, hidden, n, err);
    for (int32_t i = 0; i < n && !status; i += CHUNK)
        status = add_entries(d, s, after + i, hidden + i, n - i < CHUNK ? n - i : CHUNK, err);
    return status;
}

static int observe_tree(Drafter *drafter, int32_t sequence, const VerifiedTree *v, fr_error *err) {
    int status = learned_observe_tree(drafter, sequence, v, err);
    const float *hidden[CHUNK];
    int32_t tokens[CHUNK], n = 0;
    for (int32_t depth = 0; depth <= v->verdict->n_path && !status; depth++) {
        hidden[n] = v->hidden[feedback_node(v, depth)];
        tokens[n++] = feedback_after(v, depth);
        if (n < CHUNK && depth < v->verdict->n_path) continue;
        status = add_entries((Eagle *)drafter, sequence_of(drafter, sequence), tokens, hidden, n, err);
        n = 0;
    }
    return status;
}

static void end(Drafter *drafter, int32_t sequence) {
    EagleSequence *s = sequence_of(drafter, sequence);
    if (s->begun) executor_sequence_close(((Eagle *)drafter)->layer.executor, s->kv);
    s->begun = false;
    learned_end(drafter, sequence);
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Eagle *d = (Eagle *)learned;
    d->n_group = n;
    for (int32_t i = 0; i < n; i++) {
        EagleMember *m = &d->group[i];
        m->s = sequence_of(&learned->base, members[i].sequence);
        m->tree = members[i].tree;
        m->budget = members[i].budget;
    }
    return eagle_grow_trees(d, err);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    return learned_propose((LearnedDrafter *)drafter, sequences, budgets, trees, n, draft_together, err);
}

extern const DrafterClass draft_eagle_class;
const DrafterClass draft_eagle_class = {
    .name = "eagle",
    .summary = "one layer trained for the target predicts its next hidden states: EAGLE-2 and EAGLE-1",
    .option_table = option_table,
    .options_size = sizeof(EagleOptions),
    .needs_hidden = true,
    .open = open_eagle,
    .close = close_eagle,
    .set_sampling = learned_set_sampling,
    .begin = begin,
    .observe_prompt = observe_prompt,
    .observe_tree = observe_tree,
    .observe = learned_observe,
    .propose = propose,
    .end = end,
};

/* draft_eagle.c - the drafter `eagle`: EAGLE-2 (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature
 * Uncertainty", arXiv 2401.15077, and "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", arXiv
 * 2406.16858).
 *
 * The problem. Tokens are hard to foresee for a small model; the target's next hidden state is easier, for hidden states
 * go on more regularly than tokens do. But which way they go hangs on the token that was chosen.
 *
 * The idea. One transformer layer f with a KV cache of its own guesses hidden states, told of the token that came:
 *
 *     f_t = f(fc [E(x_{t+1}) ; h_t])        E(x) the target's embedding, h_t its hidden state after the final norm
 *     distribution of x_{t+2} = softmax(W_head f_t)  the target's own LM head
 *
 * The cache holds an entry for each token that the target has read. Below the pending token the layer goes on with its
 * own f in the place of h, as a tree: a node's row sees its ancestors.
 *
 *     entry      0            1            2                      tree
 *     input   E(x1) h0     E(x2) h1     E(x3) h2        x3 pending ── cat: E(cat) f_2 ── sat: E(sat) f_cat
 *                                        gives f_2                 └─ dog: E(dog) f_2
 *
 * Entries of accepted tokens are made anew from the target's true h (observe_tree); those of the tree are forgotten.
 *
 * The tree (EAGLE-2): each expanded node gets its `top` most probable tokens as children; at each level only the `top`
 * nodes of greatest joint probability are expanded, for `depth` levels; of all nodes the budget's best stay. EAGLE-1's
 * tree has a shape fixed in advance (tree=static): which ranks below which is decided by a prior (static_tree.c), at most
 * `top` nodes of a level being expanded, and the layer says the tokens. Nothing is drawn: under a ratio rule all groups
 * are points.
 *
 * The layer runs in the executor (model/executor.h) as a model of one layer whose rows bring their input, so that paging,
 * tree attention, threads and quantised weights are those of the target. EAGLE's layer has no norm before its attention
 * and none at its end.
 *
 * Files: eagle.h; where it was trained with token info (token_info.h), a token's info is added to the logits behind it.
 *
 * Cost: a forward of the layer for the accepted tokens of each sequence, then one a level for all sequences together, and
 * the LM head for up to `top` rows a sequence each. When it loses: where the target has few layers. Proof:
 * tests/test_draft_eagle.c, against the layer in double precision over each path by itself. */
#include "base/mem.h"
#include "spec/drafters/learned/eagle.h"
#include "spec/drafters/learned/one_layer.h"
#include "spec/tree/static_tree.h"
#include "spec/drafters/learned/token_info.h"
#include "spec/drafter/feedback.h"
#include "spec/tree/union.h"

#include <math.h>
#include <string.h>

extern const DrafterClass draft_eagle_class;

enum { MAX_DEPTH = 16, MAX_TOP = 16, CHUNK = 64, MAX_ROWS = 512 };

/* What may follow a node. */
typedef struct Followers {
    int32_t n, tokens[MAX_TOP];
    double log_p[MAX_TOP];
} Followers;

typedef struct EagleSequence {
    int32_t kv;
    bool begun;
    int32_t *tokens;     /* [n_ctx + TREE_MAX_NODES] */
    int64_t n_tokens;
    float *feature;      /* [H] f of the last entry */
    Followers followers; /* of the pending token */
} EagleSequence;

/* A sequence in a proposal. */
typedef struct Member {
    EagleSequence *s;
    Tree *tree;
    int32_t budget;
    double log_p[TREE_MAX_NODES];       /* of each node, the sum along its path */
    int32_t expanded_by[TREE_MAX_NODES]; /* the place of its parent on the front it was found from */
    int32_t shape[TREE_MAX_NODES];       /* its place in the shape of a static tree */
} Member;

/* A node that is expanded: a row of the level. */
typedef struct Front {
    int32_t member, node;
    Followers followers;
} Front;

typedef struct Eagle {
    LearnedDrafter learned;
    int32_t top, depth, n_ctx;
    bool is_static;
    StaticTree shape;
    Linear *fc;
    TokenInfo info;
    OneLayer layer;
    EagleSequence *sequences; /* [max_sequences] */
    Member *group;            /* [max_group] */
    int32_t n_group, max_rows;
    Front *front, *next;      /* [max_group * top] */
    int32_t *front_rows;      /* [max_group * top] their executor rows */
    Row *rows;                /* [max_rows] */
    int32_t *row_ids;
    float *pairs, *inputs;    /* [max_rows][2H], [max_rows][H]: what is fused, and the result */
    float *features;          /* [max_group * top][H] f of the front */
    float *logits;            /* [V] */
} Eagle;

static const DrafterOption options[] = {
    LEARNED_OPTION_FILE,
    {"depth", "5", "tokens of a path at most"},
    {"top", "8", "children of a node, and nodes expanded at each level"},
    {"tree", "dynamic", "EAGLE-2's; or static: EAGLE-1's, its shape fixed in advance"},
    {NULL, NULL, NULL},
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
    static const OneLayerNames names = {
        .key_feed_forward = EAGLE_KEY_FEED_FORWARD, .q = EAGLE_ATTN_Q, .k = EAGLE_ATTN_K, .v = EAGLE_ATTN_V, .o = EAGLE_ATTN_OUTPUT,
        .ffn_norm = EAGLE_FFN_NORM, .gate = EAGLE_FFN_GATE, .up = EAGLE_FFN_UP, .down = EAGLE_FFN_DOWN};
    LearnedDrafter *l = &d->learned;
    int64_t embd = l->n_embd;
    int status = learned_linear_open(l, EAGLE_FC, 2 * embd, embd, true, d->max_rows, &d->fc, err);
    return status ? status : one_layer_open(&d->layer, l, &names, err);
}

static int allocate(Eagle *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t h = l->n_embd, rows = d->max_rows, front = l->max_group * d->top, n_tokens = d->n_ctx + TREE_MAX_NODES;
    int32_t *tokens;
    float *features;
    const ArenaItem items[] = {
        ARENA_ITEM(&d->sequences, l->max_sequences), ARENA_ITEM(&tokens, l->max_sequences * n_tokens),
        ARENA_ITEM(&features, l->max_sequences * h), ARENA_ITEM(&d->group, l->max_group),
        ARENA_ITEM(&d->front, front),                ARENA_ITEM(&d->next, front),
        ARENA_ITEM(&d->front_rows, front),           ARENA_ITEM(&d->rows, rows),
        ARENA_ITEM(&d->row_ids, rows),               ARENA_ITEM(&d->pairs, rows * 2 * h),
        ARENA_ITEM(&d->inputs, rows * h),            ARENA_ITEM(&d->features, front * h),
        ARENA_ITEM(&d->logits, l->n_vocab),
    };
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "eagle", err);
    for (int32_t i = 0; i < l->max_sequences && !status; i++) {
        d->sequences[i].tokens = tokens + i * n_tokens;
        d->sequences[i].feature = features + i * h;
    }
    return status;
}

static int read_options(Eagle *d, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    int64_t depth, top;
    int status = draft_spec_get_int(spec, &draft_eagle_class, "depth", 1, MAX_DEPTH, &depth, err);
    if (!status) status = draft_spec_get_int(spec, &draft_eagle_class, "top", 1, MAX_TOP, &top, err);
    if (!status) status = learned_tree_option(spec, &draft_eagle_class, &d->is_static, err);
    if (status) return status;
    if (top + (depth - 1) * top * top >= TREE_MAX_NODES)
        return error_set(err, FR_ERR_ARGUMENT, "eagle: depth %d with top %d finds more than the %d nodes of a tree; make one of "
                         "them smaller", (int)depth, (int)top, TREE_MAX_NODES - 1);
    double chance[MAX_DEPTH * MAX_TOP];
    static_tree_prior(chance, (int32_t)depth, (int32_t)top);
    static_tree_build(&d->shape, chance, (int32_t)depth, (int32_t)top, (int32_t)top);
    int64_t rows = depth * top, n = MAX_ROWS / rows;
    int32_t max_group = n < env->max_sequences ? (int32_t)n : env->max_sequences;
    d->depth = (int32_t)depth;
    d->top = (int32_t)top;
    d->n_ctx = env->n_ctx;
    d->max_rows = max_group * (int32_t)rows > CHUNK ? max_group * (int32_t)rows : CHUNK;
    return learned_reserve_group(&d->learned, max_group, err);
}

static int open_eagle(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    Eagle *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "eagle", sizeof *d);
    int status = read_options(d, spec, env, err);
    if (!status) status = learned_open(&d->learned, spec, &draft_eagle_class, env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = token_info_open(&d->info, &d->learned, "eagle", TOKEN_INFO_F16, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = allocate(d, err);
    if (!status) status = one_layer_open_executor(&d->layer, &d->learned, env->n_ctx, MAX_DEPTH * MAX_TOP, d->max_rows, err);
    if (status) {
        close_eagle(&d->learned.base);
        return status;
    }
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- entries: what the target has read ------------------------------------------------------------ */

static EagleSequence *sequence_of(const Drafter *drafter, int32_t sequence) { return &((const Eagle *)drafter)->sequences[sequence]; }

/* The pair of row i: a token and what is known or guessed of the place before it. */
static void set_pair(Eagle *d, int32_t i, int32_t token, const float *feature) {
    int64_t h = d->learned.n_embd;
    float *pair = d->pairs + i * 2 * h;
    learned_embed(&d->learned, token, pair);
    memcpy(pair + h, feature, (size_t)h * sizeof *pair);
}

/* Fuses n pairs into the inputs of n rows. */
static void fuse(Eagle *d, int32_t n) {
    learned_linear(&d->learned, d->fc, LINEAR_SET, d->pairs, n, d->inputs);
    for (int32_t i = 0; i < n; i++) d->rows[i].input = d->inputs + (int64_t)i * d->learned.n_embd;
}

/* What may follow `token` of a sequence, of which that is the row. */
static void find_followers(Eagle *d, const EagleSequence *s, int32_t row, int32_t token, Followers *out) {
    memcpy(d->logits, executor_logits(d->layer.executor, row), (size_t)d->learned.n_vocab * sizeof *d->logits);
    token_info_add(&d->info, &token, 1, d->logits);
    out->n = learned_top(&d->learned, (int32_t)(s - d->sequences), d->logits, d->top, out->tokens, out->log_p);
}

/* n more entries, at most CHUNK: of the hidden states given and the tokens that came after each. */
static int add_entries(Eagle *d, EagleSequence *s, const int32_t *tokens, const float *const *hidden, int32_t n, fr_error *err) {
    for (int32_t i = 0; i < n; i++) {
        set_pair(d, i, tokens[i], hidden[i]);
        d->rows[i] = (Row){.token = tokens[i], .sequence = s->kv, .parent = i - 1, .want_logits = i == n - 1};
        d->row_ids[i] = i;
    }
    fuse(d, n);
    int status = executor_reserve(d->layer.executor, s->kv, n, err);
    if (!status) status = executor_forward(d->layer.executor, d->rows, n, err);
    if (status) return status;
    memcpy(s->feature, executor_hidden(d->layer.executor, n - 1), (size_t)d->learned.n_embd * sizeof *s->feature);
    find_followers(d, s, n - 1, tokens[n - 1], &s->followers);
    executor_commit(d->layer.executor, s->kv, d->row_ids, n);
    return FR_OK;
}

static int append_tokens(const Eagle *d, EagleSequence *s, const int32_t *tokens, int64_t n, fr_error *err) {
    if (n > d->n_ctx + TREE_MAX_NODES - s->n_tokens)
        return error_set(err, FR_ERR_CONTEXT, "eagle: its context of %d tokens is full", d->n_ctx);
    memcpy(s->tokens + s->n_tokens, tokens, (size_t)n * sizeof *tokens);
    s->n_tokens += n;
    return FR_OK;
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    Eagle *d = (Eagle *)drafter;
    EagleSequence *s = sequence_of(drafter, sequence);
    s->n_tokens = 0;
    int status = learned_begin(drafter, sequence, tokens, n, err);
    if (!status) status = executor_sequence_open(d->layer.executor, &s->kv, err);
    s->begun = status == FR_OK;
    return status ? status : append_tokens(d, s, tokens, n, err);
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    int status = learned_observe(drafter, sequence, tokens, n, err);
    return status ? status : append_tokens((Eagle *)drafter, sequence_of(drafter, sequence), tokens, n, err);
}

static int observe_prompt(Drafter *drafter, int32_t sequence, int64_t first, const float *const *hidden, int32_t n, fr_error *err) {
    EagleSequence *s = sequence_of(drafter, sequence);
    int status = learned_observe_prompt(drafter, sequence, first, hidden, n, err);
    for (int32_t i = 0; i < n && !status; i += CHUNK)
        status = add_entries((Eagle *)drafter, s, s->tokens + first + i + 1, hidden + i, n - i < CHUNK ? n - i : CHUNK, err);
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

/* The node of the shape that is child `rank` of its node `parent`, where the budget takes it; else -1. */
static int32_t child_in_shape(const Eagle *d, const Member *m, int32_t parent, int32_t rank) {
    for (int32_t i = parent + 1; i < d->shape.n && i <= m->budget; i++)
        if (d->shape.nodes[i].parent == parent && d->shape.nodes[i].rank == rank) return i;
    return -1;
}

/* The children of a node, found from place `from` of the front (-1: the root): all followers, or those in the shape. */
static void add_children(const Eagle *d, Member *m, int32_t node, const Followers *f, int32_t from) {
    int32_t place = 0;
    for (int32_t i = 0; i < f->n; i++) {
        if (d->is_static && (place = child_in_shape(d, m, m->shape[node], i)) < 0) return;
        double log_p = m->log_p[node] + f->log_p[i];
        int32_t child = tree_add(m->tree, node, f->tokens[i], (float)exp(log_p), d->learned.base.source);
        m->log_p[child] = log_p;
        m->expanded_by[child] = from;
        m->shape[child] = place;
    }
}

/* The nodes [first, tree->n) of a member that are expanded: in the shape those with children, else the `top` best. */
static int32_t nodes_to_expand(const Eagle *d, const Member *m, int32_t first, int32_t nodes[MAX_TOP]) {
    if (!d->is_static) return learned_best_nodes(m->log_p, first, m->tree->n, d->top, nodes);
    int32_t n = 0;
    for (int32_t i = first; i < m->tree->n; i++)
        if (child_in_shape(d, m, m->shape[i], 0) >= 0) nodes[n++] = i;
    return n;
}

/* Puts those of member i onto the next front, with their rows. */
static void choose_front(Eagle *d, int32_t i, int32_t first, int32_t n_run, int32_t *n_next) {
    const Member *m = &d->group[i];
    int32_t nodes[MAX_TOP], n = nodes_to_expand(d, m, first, nodes);
    for (int32_t k = 0; k < n; k++) {
        int32_t best = nodes[k];
        int32_t from = m->expanded_by[best], place = (*n_next)++;
        const TreeNode *node = &m->tree->nodes[best];
        set_pair(d, place, node->token, from < 0 ? m->s->feature : d->features + (int64_t)from * d->learned.n_embd);
        d->rows[place] = (Row){.token = node->token, .sequence = m->s->kv, .parent = from < 0 ? -1 : d->front_rows[from], .want_logits = true};
        d->row_ids[place] = n_run + place;
        d->next[place] = (Front){.member = i, .node = best};
    }
}

/* Runs the n chosen rows behind n_run ones; their features and followers. */
static int run_front(Eagle *d, int32_t n, int32_t n_run, fr_error *err) {
    fuse(d, n);
    int status = n_run ? executor_extend(d->layer.executor, d->rows, n, err) : executor_forward(d->layer.executor, d->rows, n, err);
    if (status) return status;
    Front *old = d->front;
    d->front = d->next;
    d->next = old;
    size_t h = (size_t)d->learned.n_embd;
    for (int32_t i = 0; i < n; i++) {
        d->front_rows[i] = d->row_ids[i];
        memcpy(d->features + (size_t)i * h, executor_hidden(d->layer.executor, n_run + i), h * sizeof *d->features);
        find_followers(d, d->group[d->front[i].member].s, n_run + i, d->rows[i].token, &d->front[i].followers);
    }
    return FR_OK;
}

static int grow_trees(Eagle *d, fr_error *err) {
    int32_t first[MAX_ROWS], n_run = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < d->n_group && !status; i++) {
        Member *m = &d->group[i];
        status = executor_reserve(d->layer.executor, m->s->kv, (d->depth - 1) * d->top, err);
        first[i] = m->tree->n;
        m->log_p[0] = 0;
        m->shape[0] = 0;
        add_children(d, m, 0, &m->s->followers, -1);
    }
    for (int32_t level = 1; level < d->depth && !status; level++) {
        int32_t n = 0;
        for (int32_t i = 0; i < d->n_group; i++) {
            if (level < d->group[i].budget) choose_front(d, i, first[i], n_run, &n);
            first[i] = d->group[i].tree->n;
        }
        if (n == 0) break;
        status = run_front(d, n, n_run, err);
        n_run += n;
        for (int32_t k = 0; k < n && !status; k++)
            add_children(d, &d->group[d->front[k].member], d->front[k].node, &d->front[k].followers, k);
    }
    for (int32_t i = 0; i < d->n_group && !status; i++) {
        executor_commit(d->layer.executor, d->group[i].s->kv, NULL, 0); /* the tree's rows are forgotten */
        union_prune(d->group[i].tree, d->group[i].budget);
    }
    return status;
}

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Eagle *d = (Eagle *)learned;
    d->n_group = n;
    for (int32_t i = 0; i < n; i++) {
        Member *m = &d->group[i];
        m->s = sequence_of(&learned->base, members[i].sequence);
        m->tree = members[i].tree;
        m->budget = members[i].budget;
    }
    return grow_trees(d, err);
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n, fr_error *err) {
    return learned_propose((LearnedDrafter *)drafter, sequences, budgets, trees, n, draft_together, err);
}

const DrafterClass draft_eagle_class = {
    .name = "eagle",
    .summary = "one layer trained for the target guesses its next hidden states: EAGLE-2 and EAGLE-1",
    .options = options,
    .needs_hidden = true,
    .open = open_eagle,
    .close = close_eagle,
    .set_sampling = learned_set_sampling,
    .begin = begin,
    .observe_prompt = observe_prompt,
    .observe_tree = observe_tree,
    .observe = observe,
    .propose = propose,
    .end = end,
};

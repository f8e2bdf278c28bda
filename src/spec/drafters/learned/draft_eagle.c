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
 * Files (drafter_file.h): eagle.feed_forward_length; eagle.fc.weight [H][2H], embedding first, eagle.fc.bias [H];
 * eagle.attn_q, _k, _v, _output.weight, eagle.ffn_norm.weight, eagle.ffn_gate, _up, _down.weight, with the target's heads
 * and rope. Where it was trained with token info (token_info.h), a token's info is added to the logits behind it.
 *
 * Cost: a forward of the layer for the accepted tokens of each sequence, then one a level for all sequences together, and
 * the LM head for up to `top` rows a sequence each. When it loses: where the target has few layers. Proof:
 * tests/test_draft_eagle.c, against the layer in double precision over each path by itself. */
#include "base/mem.h"
#include "backend/executor.h"
#include "spec/drafters/learned/learned.h"
#include "spec/tree/static_tree.h"
#include "spec/drafters/learned/token_info.h"
#include "spec/drafter/feedback.h"
#include "spec/tree/union.h"

#include <math.h>
#include <string.h>

extern const DrafterClass draft_eagle_class;

enum { MAX_DEPTH = 16, MAX_TOP = 16, CHUNK = 64, MAX_ROWS = 512, PAGE_SIZE = 16 };

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
    LearnedLinear fc;
    TokenInfo info;
    Model model; /* one layer; rope, embedding and output are the target's */
    LayerWeights layer;
    Executor *executor;
    EagleSequence *sequences; /* [max_sequences] */
    Member *group;            /* [max_group] */
    int32_t max_group, n_group, max_rows;
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
    LayerWeights *w = &d->layer;
    PackedMatrix *matrices[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) packed_free(matrices[i]);
    mem_free(w->ffn_norm);
    learned_linear_free(&d->fc);
    token_info_close(&d->info);
    executor_close(d->executor);
    for (int32_t i = 0; d->sequences && i < d->learned.max_sequences; i++) {
        mem_free(d->sequences[i].tokens);
        mem_free(d->sequences[i].feature);
    }
    void *all[] = {d->sequences, d->group, d->front, d->next, d->front_rows, d->rows, d->row_ids, d->pairs, d->inputs,
                   d->features, d->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    learned_release(&d->learned);
    mem_free(d);
}

static int read_weights(Eagle *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    LayerWeights *w = &d->layer;
    Hparams *h = &d->model.hparams;
    d->model = *l->target; /* shape, rope, kernels; embedding and output are borrowed */
    d->model.layers = w;
    d->model.output_norm = NULL;
    h->n_layer = 1;
    int64_t embd = h->n_embd, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h);
    int status = drafter_file_int(&l->file, "eagle.feed_forward_length", 1, 1 << 20, &h->n_ff, err);
    if (!status) status = learned_linear_read(l, "eagle.fc", 2 * embd, embd, true, &d->fc, err);
    if (!status) status = drafter_file_vector(&l->file, "eagle.ffn_norm.weight", embd, &w->ffn_norm, err);
    const struct { const char *name; int64_t n_in, n_out; PackedMatrix *out; } matrices[] = {
        {"eagle.attn_q.weight", embd, q_dim, &w->q},
        {"eagle.attn_k.weight", embd, kv_dim, &w->k},
        {"eagle.attn_v.weight", embd, kv_dim, &w->v},
        {"eagle.attn_output.weight", q_dim, embd, &w->o},
        {"eagle.ffn_gate.weight", embd, h->n_ff, &w->gate},
        {"eagle.ffn_up.weight", embd, h->n_ff, &w->up},
        {"eagle.ffn_down.weight", h->n_ff, embd, &w->down},
    };
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices && !status; i++)
        status = drafter_file_matrix(&l->file, matrices[i].name, matrices[i].n_in, matrices[i].n_out, matrices[i].out, err);
    return status;
}

static int allocate(Eagle *d, fr_error *err) {
    size_t h = (size_t)d->learned.n_embd, rows = (size_t)d->max_rows, front = (size_t)(d->max_group * d->top);
    const struct { void *out; size_t n, each; } wants[] = {
        {&d->sequences, (size_t)d->learned.max_sequences, sizeof *d->sequences},
        {&d->group, (size_t)d->max_group, sizeof *d->group},
        {&d->front, front, sizeof *d->front},
        {&d->next, front, sizeof *d->next},
        {&d->front_rows, front, sizeof *d->front_rows},
        {&d->rows, rows, sizeof *d->rows},
        {&d->row_ids, rows, sizeof *d->row_ids},
        {&d->pairs, rows * 2 * h, sizeof *d->pairs},
        {&d->inputs, rows * h, sizeof *d->inputs},
        {&d->features, front * h, sizeof *d->features},
        {&d->logits, (size_t)d->learned.n_vocab, sizeof *d->logits},
    };
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        void *p = mem_calloc(wants[i].n, wants[i].each);
        if (!p) return error_memory(err, "eagle", wants[i].n * wants[i].each);
        memcpy(wants[i].out, &p, sizeof p);
    }
    for (int32_t i = 0; i < d->learned.max_sequences; i++) {
        EagleSequence *s = &d->sequences[i];
        s->tokens = mem_calloc((size_t)d->n_ctx + TREE_MAX_NODES, sizeof *s->tokens);
        s->feature = mem_calloc(h, sizeof *s->feature);
        if (!s->tokens || !s->feature) return error_memory(err, "eagle", (size_t)d->n_ctx * sizeof *s->tokens);
    }
    return FR_OK;
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
    d->depth = (int32_t)depth;
    d->top = (int32_t)top;
    d->n_ctx = env->n_ctx;
    d->max_group = n < env->max_sequences ? (int32_t)n : env->max_sequences;
    d->max_rows = d->max_group * (int32_t)rows > CHUNK ? d->max_group * (int32_t)rows : CHUNK;
    return FR_OK;
}

static int open_eagle(Drafter **out, const DraftSpec *spec, const DrafterEnv *env, fr_error *err) {
    Eagle *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "eagle", sizeof *d);
    int status = read_options(d, spec, env, err);
    if (!status) status = learned_open(&d->learned, spec, &draft_eagle_class, env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = token_info_open(&d->info, &d->learned.file, "eagle", d->learned.target, TOKEN_INFO_F16, env->n_threads, err);
    if (!status) status = drafter_file_finish(&d->learned.file, err);
    if (!status) status = learned_open_products(&d->learned, env, 2 * (int64_t)d->learned.n_embd, d->max_rows, err);
    if (!status) status = allocate(d, err);
    ExecutorOptions eo = {.n_threads = env->n_threads, .kv_type = KV_F16, .page_size = PAGE_SIZE,
                          .n_ctx = env->n_ctx + TREE_MAX_NODES + MAX_DEPTH * MAX_TOP, .max_sequences = env->max_sequences,
                          .max_rows = d->max_rows};
    if (!status) status = executor_open(&d->executor, &d->model, &eo, err);
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
    model_embedding(d->learned.target, token, pair);
    memcpy(pair + h, feature, (size_t)h * sizeof *pair);
}

/* Fuses n pairs into the inputs of n rows. */
static void fuse(Eagle *d, int32_t n) {
    learned_linear_run(&d->learned, &d->fc, d->pairs, n, d->inputs);
    for (int32_t i = 0; i < n; i++) d->rows[i].input = d->inputs + (int64_t)i * d->learned.n_embd;
}

/* What may follow `token` of a sequence, of which that is the row. */
static void find_followers(Eagle *d, const EagleSequence *s, int32_t row, int32_t token, Followers *out) {
    memcpy(d->logits, executor_logits(d->executor, row), (size_t)d->learned.n_vocab * sizeof *d->logits);
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
    int status = executor_reserve(d->executor, s->kv, n, err);
    if (!status) status = executor_forward(d->executor, d->rows, n, err);
    if (status) return status;
    memcpy(s->feature, executor_hidden(d->executor, n - 1), (size_t)d->learned.n_embd * sizeof *s->feature);
    find_followers(d, s, n - 1, tokens[n - 1], &s->followers);
    executor_commit(d->executor, s->kv, d->row_ids, n);
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
    if (!status) status = executor_sequence_open(d->executor, &s->kv, err);
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
    if (s->begun) executor_sequence_close(((Eagle *)drafter)->executor, s->kv);
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
    int status = n_run ? executor_extend(d->executor, d->rows, n, err) : executor_forward(d->executor, d->rows, n, err);
    if (status) return status;
    Front *old = d->front;
    d->front = d->next;
    d->next = old;
    size_t h = (size_t)d->learned.n_embd;
    for (int32_t i = 0; i < n; i++) {
        d->front_rows[i] = d->row_ids[i];
        memcpy(d->features + (size_t)i * h, executor_hidden(d->executor, n_run + i), h * sizeof *d->features);
        find_followers(d, d->group[d->front[i].member].s, n_run + i, d->rows[i].token, &d->front[i].followers);
    }
    return FR_OK;
}

static int grow_trees(Eagle *d, fr_error *err) {
    int32_t first[MAX_ROWS], n_run = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < d->n_group && !status; i++) {
        Member *m = &d->group[i];
        status = executor_reserve(d->executor, m->s->kv, (d->depth - 1) * d->top, err);
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
        executor_commit(d->executor, d->group[i].s->kv, NULL, 0); /* the tree's rows are forgotten */
        union_prune(d->group[i].tree, d->group[i].budget);
    }
    return status;
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n, fr_error *err) {
    Eagle *d = (Eagle *)drafter;
    int status = FR_OK;
    d->n_group = 0;
    for (int i = 0; i < n && !status; i++) {
        if (budgets[i] > 0 && learned_hidden(&d->learned, sequences[i])) {
            Member *m = &d->group[d->n_group++];
            m->s = sequence_of(drafter, sequences[i]);
            m->tree = trees[i];
            m->budget = budgets[i];
        }
        if (d->n_group < d->max_group && i < n - 1) continue;
        status = grow_trees(d, err);
        d->n_group = 0;
    }
    return status;
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

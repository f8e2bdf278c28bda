/* draft_hydra.c - the drafter `hydra`: heads that know the tokens proposed before them (Ankner et al. 2024, "Hydra:
 * Sequentially-Dependent Draft Heads for Medusa Decoding", arXiv 2402.05109).
 *
 * The problem. Medusa's heads predict the positions ahead independently. The token two positions ahead depends on the
 * token one position ahead, which the second head does not know.
 *
 * The idea. Head i (from 0) predicts the token at depth i + 1 of the tree from the target's hidden state h and from
 * the path to it, given by the target's embeddings E of the pending token and of the i drafted tokens below it:
 *
 *     c = [h ; E(pending) ; E(d_1) ; ... ; E(d_i)]                              (i + 2) H numbers
 *     x = R c + SiLU(W c + b)                   the first block; its residual path has a matrix R, as c is wider than x
 *     x = x + SiLU(A x + a)                     the others
 *     distribution of d_{i+1} = softmax(O x)             O [V][H] the head's own, or the target's LM head
 *
 * h belongs to the token before the pending one. A head runs once for each node that is expanded, and there are as
 * many levels as heads.
 *
 * The tree is found best first, like eagle's: each expanded node gets its `top` most probable tokens as children, at
 * each level the `top` nodes of greatest joint probability are expanded, and the best of all nodes found stay within
 * the budget.
 *
 *     head 0   [h ; the]        cat .6  dog .3      the ── cat .6 ── sat .48        with a budget of 4; the
 *     head 1   [h ; the ; cat]  sat .8  ran .1       └─ dog .3 ── ran .21           next two have .06 each
 *              [h ; the ; dog]  ran .7  sat .2
 *
 * Hydra++, the form in which the authors publish their weights, has a transformer layer between the target and the
 * heads, with a KV cache of its own. A head then reads what this layer makes of the hidden states of the whole context:
 *
 *     entry of t    g_t = norm(Layer(h_t))        for every token that the target has read (layer_entries.c)
 *     c             [g ; E(pending) ; ...]        g of the token before the pending one
 *
 * The layer runs once for each token of the text, not for the nodes of the tree.
 *
 * Under the rules `recursive` and `transport` the children of a node are drawn at random, and all ranking is by psi
 * (learned_top.c); under other ratio rules all groups are points. The paper accepts tokens by Medusa's typical
 * acceptance, but the heads work with any rule.
 *
 * The authors' weights (train/hydra.c) have two more biases, of `skip` and `output`.
 *
 * Invariants: the nodes of a level, of all sequences, are one product with each matrix; the draft of a sequence does
 * not depend on the other sequences. A level has no more rows than the budget can keep of its nodes. Cost: for each
 * head, the LM head over up to `top` rows a sequence, and 2 (i + 2) H^2 numbers of head i. When it loses: W and R grow
 * with the depth; those of the fifth head are as large as an LM head for 12 H tokens. Proof:
 * tests/draft/test_draft_hydra.c, against the heads and the layer in double precision, each path by itself. */
#include "base/math_functions.h"
#include "base/mem.h"
#include "draft/learned/layer_entries.h"
#include "draft/learned/learned_files.h"
#include "draft/feedback.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TOP = 16, MAX_ROWS = 128, MAX_ENTRY_ROWS = 256 };

typedef struct Head {
    Linear *in, *skip;                /* [H][(i+2)H] */
    Linear *blocks[HYDRA_MAX_BLOCKS]; /* [0] is unused, because `in` and `skip` are the first block */
    Linear *output;
} Head;

/* A sequence in a proposal. */
typedef struct Member {
    Tree *tree;
    int32_t sequence;
    const float *hidden;          /* h, or g of Hydra++ */
    int32_t budget, first;        /* first: the first node of the deepest level so far */
    double log_p[TREE_MAX_NODES]; /* the sum along the path to each node */
} Member;

/* A node that is expanded. It has one of the rows that its level runs. */
typedef struct Front {
    Member *member;
    int32_t node;
} Front;

typedef struct Hydra {
    LearnedDrafter learned;
    int32_t n_heads, n_blocks, top, max_rows;
    bool has_own_output, has_prefix;
    Head heads[HYDRA_MAX_HEADS];
    OneLayer prefix; /* the layer of Hydra++, and its entries */
    EntryQueue entries;
    Member *group; /* [max_group] */
    int32_t n_group;
    Front *front;           /* [max_rows] */
    Buffer *c, *x, *logits; /* [max_rows] rows of (n_heads+1)H, H, V */
} Hydra;

typedef struct HydraOptions {
    const char *file;
    bool coupled, draws;
    int32_t top;
} HydraOptions;

static const Option option_table[] = {
    LEARNED_OPTION_FILE(HydraOptions),
    {.key = "top",
     OPT_INT(HydraOptions, top, 1, MAX_TOP),
     .default_value = "8",
     .help = "children of a node, and nodes expanded at each level"},
    LEARNED_OPTION_COUPLED(HydraOptions),
    LEARNED_OPTION_DRAW(HydraOptions),
    {.key = NULL},
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void close_hydra(Drafter *drafter) {
    Hydra *d = (Hydra *)drafter;
    for (int32_t i = 0; i < HYDRA_MAX_HEADS; i++) {
        Head *head = &d->heads[i];
        learned_linear_close(&d->learned, head->in);
        learned_linear_close(&d->learned, head->skip);
        learned_linear_close(&d->learned, head->output);
        for (int32_t k = 0; k < HYDRA_MAX_BLOCKS; k++) learned_linear_close(&d->learned, head->blocks[k]);
    }
    entry_queue_close(&d->entries);
    one_layer_close(&d->prefix);
    learned_release(&d->learned);
    mem_free(d);
}

static bool has_bias(const Hydra *d, const char *layer) {
    return drafter_file_has_printed(&d->learned.file, "%s.bias", layer);
}

static int read_head(Hydra *d, int32_t i, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    Head *head = &d->heads[i];
    int64_t h = l->n_embd, wide = (i + 2) * h;
    char name[64];
    snprintf(name, sizeof name, HYDRA_HEAD HYDRA_IN, i);
    int status = learned_linear_open(l, name, wide, h, true, d->max_rows, &head->in, err);
    snprintf(name, sizeof name, HYDRA_HEAD HYDRA_SKIP, i);
    if (!status) status = learned_linear_open(l, name, wide, h, has_bias(d, name), d->max_rows, &head->skip, err);
    for (int32_t k = 1; k < d->n_blocks && !status; k++) {
        snprintf(name, sizeof name, HYDRA_HEAD HYDRA_BLOCK, i, k);
        status = learned_linear_open(l, name, h, h, true, d->max_rows, &head->blocks[k], err);
    }
    if (status || !d->has_own_output) return status;
    snprintf(name, sizeof name, HYDRA_HEAD HYDRA_OUTPUT, i);
    return learned_output_open(l, name, h, has_bias(d, name), d->max_rows, &head->output, err);
}

/* Reads the layer of Hydra++, if the file has it. */
static int read_prefix(Hydra *d, fr_error *err) {
    static const OneLayerParts parts = {.first = "hydra.prefix", .has_attn_norm = true, .has_output_norm = true};
    d->has_prefix = gguf_find_key(d->learned.file.gguf, DRAFTER_KEY(HYDRA_PREFIX LAYER_KEY_FEED_FORWARD)) >= 0;
    return d->has_prefix ? one_layer_open(&d->prefix, &d->learned, &parts, err) : FR_OK;
}

static int read_weights(Hydra *d, fr_error *err) {
    static const char *const outputs[] = {"own", "target", NULL};
    const DrafterFile *f = &d->learned.file;
    int output = 0, status = drafter_file_int(f, HYDRA_KEY_HEAD_COUNT, 1, HYDRA_MAX_HEADS, &d->n_heads, err);
    if (!status) status = drafter_file_int(f, HYDRA_KEY_BLOCK_COUNT, 1, HYDRA_MAX_BLOCKS, &d->n_blocks, err);
    if (!status) status = drafter_file_choice(f, HYDRA_KEY_OUTPUT, outputs, &output, err);
    d->has_own_output = output == 0;
    for (int32_t i = 0; i < d->n_heads && !status; i++) status = read_head(d, i, err);
    if (!status) status = read_prefix(d, err);
    if (!status) status = drafter_file_finish(f, err);
    if (!status && d->top + (d->n_heads - 1) * d->top * d->top >= TREE_MAX_NODES)
        status = error_set(err, FR_ERR_ARGUMENT,
                           "hydra: %d heads with top %d find more than the %d nodes of a tree; make top smaller",
                           d->n_heads, d->top, TREE_MAX_NODES - 1);
    return status;
}

static int allocate(Hydra *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int64_t rows = d->max_rows, h = l->n_embd;
    const ArenaItem items[] = {ARENA_ITEM(&d->group, l->max_group), ARENA_ITEM(&d->front, rows)};
    const LearnedBuffer buffers[] = {{&d->c, rows * (d->n_heads + 1) * h},
                                     {&d->x, rows * h},
                                     {&d->logits, rows * l->n_vocab}};
    int status = arena_take(&l->arena, items, ARENA_COUNT(items), "hydra", err);
    if (!status) status = learned_open_buffers(l, buffers, ARENA_COUNT(buffers), err);
    return status ? status : learned_head_reserve(l, rows, err);
}

static int open_entries(Hydra *d, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int status = one_layer_open_executor(&d->prefix, l, l->n_ctx, 0, MAX_ENTRY_ROWS, 1, err);
    return status ? status
                  : entry_queue_open(&d->entries, l, &d->prefix, &(EntryQueueOptions){.max_rows = MAX_ENTRY_ROWS}, err);
}

static LearnedDraftFn draft_together; /* below */
static const DrafterClass prefix_class;

static int open_hydra(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    const HydraOptions *o = options;
    Hydra *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "hydra", sizeof *d);
    d->top = o->top;
    int32_t max_group = MAX_ROWS / d->top < env->max_sequences ? MAX_ROWS / d->top : env->max_sequences;
    d->max_rows = max_group * d->top;
    int status = learned_reserve_group(&d->learned, max_group, draft_together, err);
    d->learned.coupled = o->coupled;
    d->learned.draws = o->draws;
    if (!status) status = learned_open(&d->learned, o->file, "hydra", env, err);
    if (!status) status = read_weights(d, err);
    if (!status) status = allocate(d, err);
    if (!status && d->has_prefix) status = open_entries(d, err);
    if (status) {
        close_hydra(&d->learned.base);
        return status;
    }
    if (d->has_prefix) d->learned.base.class = &prefix_class;
    *out = &d->learned.base;
    return FR_OK;
}

/* ---- a proposal --------------------------------------------------------------------------------- */

/* Chooses which nodes of the deepest level are expanded, and writes them to the front. A child of the k-th best node of
 * a level (from 0) has k + 1 better nodes on its parent's level and level - 1 above it, so with a smaller budget it
 * would not be kept. */
static int32_t choose_front(const Hydra *d, Member *m, int32_t level, Front *out) {
    int32_t nodes[MAX_TOP], n = m->budget - level < d->top ? m->budget - level : d->top;
    if (n < 1) return 0;
    n = learned_best_nodes(m->log_p, m->first, m->tree->n, n, nodes);
    for (int32_t i = 0; i < n; i++) out[i] = (Front){.member = m, .node = nodes[i]};
    m->first = m->tree->n;
    return n;
}

/* Fills row r of the input c of nodes at depth `level`: h or g, then the embeddings along its path from the pending
 * token down. */
static void set_input(const Hydra *d, const Front *f, int32_t level, int32_t r) {
    int64_t h = d->learned.n_embd, at = (int64_t)r * (level + 2) * h;
    int32_t tokens[HYDRA_MAX_HEADS];
    for (int32_t node = f->node, k = level; k >= 0; k--, node = f->member->tree->nodes[node].parent)
        tokens[k] = f->member->tree->nodes[node].token;
    learned_write(d->c, at, f->member->hidden, h);
    learned_embed(&d->learned, tokens, level + 1, (Slice){d->c, at + h});
}

/* Computes the logits of head `level` for the nodes of the front. */
static void run_head(Hydra *d, int32_t level, int32_t n_rows) {
    LearnedDrafter *l = &d->learned;
    const Head *head = &d->heads[level];
    for (int32_t r = 0; r < n_rows; r++) set_input(d, &d->front[r], level, r);
    learned_linear(l, head->skip, LINEAR_SET, d->c, n_rows, d->x);
    learned_linear(l, head->in, LINEAR_ADD_SILU, d->c, n_rows, d->x);
    for (int32_t k = 1; k < d->n_blocks; k++) learned_linear(l, head->blocks[k], LINEAR_ADD_SILU, d->x, n_rows, d->x);
    if (d->has_own_output) learned_output(l, head->output, d->x, n_rows, d->logits);
    else learned_head(l, d->x, n_rows, d->logits);
}

static void add_children(Hydra *d, const Front *f, float *logits) {
    int32_t tokens[MAX_TOP], path[TREE_MAX_NODES];
    double log_p[MAX_TOP];
    Member *m = f->member;
    int32_t n_path = learned_path(m->tree, f->node, path);
    int32_t n = learned_top(&d->learned, m->sequence, path, n_path, logits, d->top, tokens, log_p);
    for (int32_t i = 0; i < n; i++) {
        double sum = m->log_p[f->node] + log_p[i];
        m->log_p[tree_add(m->tree, f->node, tokens[i], (float)math_exp(sum), d->learned.base.source)] = sum;
    }
}

static void grow_trees(Hydra *d) {
    for (int32_t level = 0; level < d->n_heads; level++) {
        int32_t n_rows = 0;
        for (int32_t i = 0; i < d->n_group; i++) n_rows += choose_front(d, &d->group[i], level, d->front + n_rows);
        if (n_rows == 0) break;
        run_head(d, level, n_rows);
        for (int32_t r = 0; r < n_rows; r++)
            add_children(d, &d->front[r], d->logits->floats + (int64_t)r * d->learned.n_vocab);
    }
    for (int32_t i = 0; i < d->n_group; i++) {
        learned_prune(&d->learned, d->group[i].sequence, d->group[i].tree, d->group[i].budget);
    }
}

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Hydra *d = (Hydra *)learned;
    int32_t sequences[MAX_ROWS] = {0};
    for (int32_t i = 0; i < n; i++) sequences[i] = members[i].sequence;
    int status = d->has_prefix ? entry_queue_run(&d->entries, sequences, n, err) : FR_OK;
    if (status) return status;
    d->n_group = n;
    for (int32_t i = 0; i < n; i++) {
        Member *m = &d->group[i];
        m->tree = members[i].tree;
        m->sequence = members[i].sequence;
        m->hidden = d->has_prefix ? d->entries.sequences[m->sequence].feature : members[i].hidden;
        m->budget = members[i].budget;
        m->first = 0;
        m->log_p[0] = 0;
    }
    grow_trees(d);
    return FR_OK;
}

#define HYDRA_DESCRIPTION \
    .name = "hydra", .summary = "heads on the target's hidden state and the path drafted so far, trained for it", \
    .option_table = option_table, .options_size = sizeof(HydraOptions), .open = open_hydra, .close = close_hydra

static const DrafterClass prefix_class = {HYDRA_DESCRIPTION, ENTRY_CALLS};

extern const DrafterClass draft_hydra_class;
const DrafterClass draft_hydra_class = {
    HYDRA_DESCRIPTION,
    .needs_hidden = true,
    .set_sampling = learned_set_sampling,
    .begin = learned_begin,
    .observe_prompt = learned_observe_prompt,
    .take_over = learned_take_over,
    .observe_tree = learned_observe_tree,
    .observe = learned_observe,
    .propose = learned_propose,
    .end = learned_end,
};

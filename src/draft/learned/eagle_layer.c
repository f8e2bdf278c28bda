/* eagle_layer.c - the common part of `eagle`, `eagle3` and `mtp`: memory, the entries of the sequences, and growing the
 * trees level by level. The essay on the method is in draft_eagle.c.
 *
 * EAGLE-2's tree (dynamic): each expanded node gets its `top` most probable tokens as children. At each level, only the
 * `top` nodes of greatest joint probability are expanded, for `depth` levels, and of all nodes found, the best stay
 * within the budget.
 *
 * EAGLE-1's tree (static): the shape is fixed in advance by a prior on the rank of each token (tree_shapes.c), with at
 * most `top` nodes of a level expanded; the layer only chooses the tokens.
 *
 * The nodes expanded at a level form the front. The rows of all sequences' fronts are one forward of the layer, in
 * which each row attends to its sequence's entries and to its ancestors in the tree.
 *
 * Several layers (`mtp`; layer_entries.c). The nodes at depth d come from layer min(d, n). Layer k <= n reads features
 * of layer k - 1, and attends to what it has made itself of the tokens before, drafted ones included. So at level
 * k - 1 it first runs rows for the ancestors of the front, too. Layer n goes on from its own features.
 *
 *     tokens                x4 pending ── cat ── sat
 *     level 1, layer 2      [cat] f(x4)                             gives sat
 *     level 2, layer 3      [cat] g(x4), [sat] g(cat)               g: features of layer 2; gives the token after sat
 *     level 3, layer 3      ..., [the] f'(sat)                      f': features of layer 3
 */
#include "draft/learned/eagle_layer.h"

#include "base/math_functions.h"

#include <string.h>

/* All trees that grow together have at most MAX_ROWS rows. A prompt is read in chunks of at least MIN_ROWS. */
enum { MAX_ROWS = 512, MIN_ROWS = 64 };

/* The most probable tokens after a node. */
typedef struct EagleTop {
    int32_t n, tokens[EAGLE_MAX_TOP];
    double log_p[EAGLE_MAX_TOP];
} EagleTop;

struct EagleMember {
    int32_t sequence;
    const EntrySequence *entries; /* its feature is f of the last entry, its logits are those after the pending token */
    Tree *tree;
    int32_t budget;
    double log_p[TREE_MAX_NODES];   /* the sum along the path to each node */
    int32_t row_of[TREE_MAX_NODES]; /* the node's row in the layer that ran last; -1: it has none */
    int32_t shape[TREE_MAX_NODES];  /* index of the node in the shape of a static tree */
};

struct EagleFront {
    int32_t member, node;
    EagleTop top;
};

struct EagleRow {
    int32_t member, node;
    bool is_front;
};

/* ---- opening ------------------------------------------------------------------------------------ */

static LearnedDraftFn draft_together; /* below */

int eagle_check_tree(const char *method, int32_t depth, int32_t top, fr_error *err) {
    if (top + (depth - 1) * top * top < TREE_MAX_NODES) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "%s: depth %d with top %d finds more than the %d nodes of a tree; make one of them smaller",
                     method, depth, top, TREE_MAX_NODES - 1);
}

int eagle_plan(Eagle *d, const char *method, const EaglePlan *plan, const DrafterEnv *env, fr_error *err) {
    int32_t depth = plan->depth, top = plan->top;
    int status = eagle_check_tree(method, depth, top, err);
    if (status) return status;
    double chance[EAGLE_MAX_DEPTH * EAGLE_MAX_TOP];
    static_tree_prior(chance, depth, top);
    static_tree_build(&d->shape, chance, depth, top, top);
    int32_t rows = depth * top, n = MAX_ROWS / rows, max_group = n < env->max_sequences ? n : env->max_sequences;
    d->depth = depth;
    d->top = top;
    d->is_static = plan->is_static;
    d->n_ctx = env->n_ctx;
    d->max_rows = max_group * rows > MIN_ROWS ? max_group * rows : MIN_ROWS;
    return learned_reserve_group(&d->learned, max_group, draft_together, err);
}

int eagle_open_layer(Eagle *d, const char *method, const EntryQueueOptions *input, fr_error *err) {
    LearnedDrafter *l = &d->learned;
    int32_t front = l->max_group * d->top, n_more = EAGLE_MAX_DEPTH * EAGLE_MAX_TOP;
    EntryQueueOptions entries = *input;
    entries.fc = d->fc, entries.wants_logits = true, entries.max_rows = d->max_rows;
    const ArenaItem items[] = {
        ARENA_ITEM(&d->group, l->max_group),
        ARENA_ITEM(&d->front, front),
        ARENA_ITEM(&d->rows, d->max_rows),
        ARENA_ITEM(&d->logits, l->n_vocab),
        ARENA_ITEM(&d->features, (int64_t)d->max_rows * d->layer.weights->model->hparams.n_embd),
    };
    int status = one_layer_open_executor(&d->layer, l, d->n_ctx, n_more, d->max_rows, front, err);
    for (int32_t i = 0; i < input->n_later && !status; i++)
        status = one_layer_open_executor(input->later[i].layer, l, d->n_ctx, n_more, d->max_rows, front, err);
    if (!status) status = arena_take(&l->arena, items, ARENA_COUNT(items), method, err);
    return status ? status : entry_queue_open(&d->entries, l, &d->layer, &entries, err);
}

void eagle_release(Eagle *d) {
    learned_linear_close(&d->learned, d->fc);
    token_info_close(&d->info);
    confidence_close(&d->confidence);
    entry_queue_close(&d->entries);
    one_layer_close(&d->layer);
    learned_release(&d->learned);
}

/* ---- nodes ---------------------------------------------------------------------------------------- */

/* Finds the tokens that the target most probably chooses after a node, from the layer's output f and its logits
 * there. */
static void find_top(Eagle *d, const EagleMember *m, int32_t node, const float *feature, const float *logits,
                     EagleTop *out) {
    int32_t path[TREE_MAX_NODES], n_path = learned_path(m->tree, node, path);
    learned_spread(&d->learned, logits, d->logits);
    token_info_add(&d->info, &m->tree->nodes[node].token, 1, d->logits);
    out->n = learned_top(&d->learned, m->sequence, path, n_path, d->logits, d->top, out->tokens, out->log_p);
    if (!d->learned.sequences[m->sequence].is_drawing) /* drawn tokens have psi, which is not an estimate */
        confidence_correct(&d->confidence, confidence_of_state(&d->confidence, feature), out->log_p, out->n);
}

/* Returns the index in the shape of child `rank` of its node `parent`, or -1 if there is none within the budget. */
static int32_t child_in_shape(const Eagle *d, const EagleMember *m, int32_t parent, int32_t rank) {
    for (int32_t i = parent + 1; i < d->shape.n && i <= m->budget; i++)
        if (d->shape.nodes[i].parent == parent && d->shape.nodes[i].rank == rank) return i;
    return -1;
}

/* Adds the children of a node: all tokens of `top`, or for a static tree those in the shape. */
static void add_children(const Eagle *d, EagleMember *m, int32_t node, const EagleTop *top) {
    int32_t in_shape = 0;
    for (int32_t i = 0; i < top->n; i++) {
        if (d->is_static && (in_shape = child_in_shape(d, m, m->shape[node], i)) < 0) return;
        double log_p = m->log_p[node] + top->log_p[i];
        int32_t child = tree_add(m->tree, node, top->tokens[i], (float)math_exp(log_p), d->learned.base.source);
        m->log_p[child] = log_p;
        m->row_of[child] = -1;
        m->shape[child] = in_shape;
    }
}

/* Chooses which of the nodes [first, tree->n) of a member are expanded: those that have children in the shape, or the
 * `top` best. Returns their number. */
static int32_t nodes_to_expand(const Eagle *d, const EagleMember *m, int32_t first, int32_t nodes[EAGLE_MAX_TOP]) {
    if (!d->is_static) return learned_best_nodes(m->log_p, first, m->tree->n, d->top, nodes);
    int32_t n = 0;
    for (int32_t i = first; i < m->tree->n; i++)
        if (child_in_shape(d, m, m->shape[i], 0) >= 0) nodes[n++] = i;
    return n;
}

/* Puts the new nodes of member i, from `first` on, that are expanded on the front, which has *n_front nodes. */
static void choose_front(Eagle *d, int32_t i, int32_t first, int32_t *n_front) {
    int32_t nodes[EAGLE_MAX_TOP], n = nodes_to_expand(d, &d->group[i], first, nodes);
    for (int32_t k = 0; k < n; k++) d->front[(*n_front)++] = (EagleFront){.member = i, .node = nodes[k]};
}

/* ---- rows of the tree ------------------------------------------------------------------------------- */

/* Chooses the rows of a layer that has run no row of the tree yet: those of the front and of its ancestors, parents
 * first. A layer lacks the tokens that come too early for it in a short context. Returns the number of rows. */
static int32_t rows_of_paths(Eagle *d, int32_t layer, int32_t n_front) {
    int32_t n = 0;
    for (int32_t i = 0, f = 0; i < d->n_group; i++) {
        const EagleMember *m = &d->group[i];
        int32_t n_skipped = layer - entry_queue_n_entries(&d->entries, m->entries);
        bool is_front[TREE_MAX_NODES] = {false}, is_needed[TREE_MAX_NODES] = {false};
        for (; f < n_front && d->front[f].member == i; f++) {
            is_front[d->front[f].node] = true;
            for (int32_t k = d->front[f].node; k > 0; k = m->tree->nodes[k].parent) is_needed[k] = true;
        }
        for (int32_t k = 1; k < m->tree->n; k++)
            if (is_needed[k] && m->tree->nodes[k].depth > n_skipped)
                d->rows[n++] = (EagleRow){.member = i, .node = k, .is_front = is_front[k]};
    }
    return n;
}

static int32_t rows_of_front(Eagle *d, int32_t n_front) {
    for (int32_t f = 0; f < n_front; f++)
        d->rows[f] = (EagleRow){.member = d->front[f].member, .node = d->front[f].node, .is_front = true};
    return n_front;
}

/* Sets the inputs of n rows, which read features of layer `from`, and then the rows, after the n_run rows that the
 * layer has run. */
static void set_rows(Eagle *d, int32_t layer, int32_t from, int32_t n, int32_t n_run) {
    int64_t h = d->entries.shape->n_embd;
    for (int32_t i = 0; i < n; i++) {
        const EagleMember *m = &d->group[d->rows[i].member];
        const TreeNode *node = &m->tree->nodes[d->rows[i].node];
        const float *feature = node->parent == 0 ? m->entries->feature + from * h
                                                 : d->features + m->row_of[node->parent] * h;
        entry_queue_set_pair(&d->entries, layer, i, node->token, feature);
    }
    if (n_run == 0)
        for (int32_t i = 0; i < d->n_group; i++)
            for (int32_t k = 0; k < d->group[i].tree->n; k++) d->group[i].row_of[k] = -1;
    for (int32_t i = 0; i < n; i++) {
        EagleMember *m = &d->group[d->rows[i].member];
        const TreeNode *node = &m->tree->nodes[d->rows[i].node];
        m->row_of[d->rows[i].node] = n_run + i;
        d->entries.rows[i] = (Row){.token = node->token,
                                   .sequence = m->entries->kv,
                                   .parent = m->row_of[node->parent],
                                   .want_hidden = true,
                                   .want_logits = d->rows[i].is_front};
    }
    entry_queue_fuse(&d->entries, layer, n);
}

/* Runs the rows of the front at a level, and finds the tokens after its nodes. *n_run counts the rows that the layer
 * has run below the entries. */
static int run_front(Eagle *d, int32_t level, int32_t n_front, int32_t *n_run, fr_error *err) {
    int32_t last = d->entries.n_layers - 1, layer = level < last ? level : last;
    bool is_first = level <= last; /* of this layer, which reads features of the one before it */
    if (is_first) *n_run = 0;
    int32_t n = is_first ? rows_of_paths(d, layer, n_front) : rows_of_front(d, n_front);
    set_rows(d, layer, is_first ? layer - 1 : layer, n, *n_run);
    const OneLayer *l = d->entries.layers[layer].layer;
    int status = *n_run ? executor_extend(l->executor, d->entries.rows, n, err)
                        : executor_forward(l->executor, d->entries.rows, n, err);
    size_t h = (size_t)d->entries.shape->n_embd;
    for (int32_t i = *n_run; i < *n_run + n && !status; i++)
        memcpy(d->features + (size_t)i * h, executor_hidden(l->executor, i) + l->feature_at, h * sizeof *d->features);
    for (int32_t f = 0; f < n_front && !status; f++) {
        const EagleMember *m = &d->group[d->front[f].member];
        int32_t node = d->front[f].node, row = m->row_of[node];
        find_top(d, m, node, d->features + (size_t)row * h, executor_logits(l->executor, row), &d->front[f].top);
    }
    *n_run += n;
    return status;
}

/* ---- growing the trees ---------------------------------------------------------------------------- */

static int grow_trees(Eagle *d, fr_error *err) {
    int32_t first[MAX_ROWS] = {0}, n_run = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < d->n_group && !status; i++) {
        EagleMember *m = &d->group[i];
        status = entry_queue_reserve(&d->entries, m->entries, (d->depth - 1) * d->top, err);
        first[i] = m->tree->n;
        m->log_p[0] = 0;
        m->shape[0] = 0;
        EagleTop top;
        find_top(d, m, 0, m->entries->feature, m->entries->logits, &top);
        add_children(d, m, 0, &top);
    }
    for (int32_t level = 1; level < d->depth && !status; level++) {
        int32_t n = 0;
        for (int32_t i = 0; i < d->n_group; i++) {
            if (level < d->group[i].budget) choose_front(d, i, first[i], &n);
            first[i] = d->group[i].tree->n;
        }
        if (n == 0) break;
        status = run_front(d, level, n, &n_run, err);
        for (int32_t k = 0; k < n && !status; k++)
            add_children(d, &d->group[d->front[k].member], d->front[k].node, &d->front[k].top);
    }
    for (int32_t i = 0; i < d->n_group && !status; i++) {
        for (int32_t k = 0; k < d->entries.n_layers; k++) /* discards the rows of the tree */
            executor_commit(d->entries.layers[k].layer->executor, d->group[i].entries->kv, NULL, 0);
        if (d->is_static) learned_declare(&d->learned, d->group[i].sequence, d->group[i].tree);
        else learned_prune(&d->learned, d->group[i].sequence, d->group[i].tree, d->group[i].budget);
    }
    return status;
}

/* ---- a proposal ----------------------------------------------------------------------------------- */

static int draft_together(LearnedDrafter *learned, const LearnedMember *members, int32_t n, fr_error *err) {
    Eagle *d = (Eagle *)learned;
    int32_t sequences[MAX_ROWS];
    d->n_group = n;
    for (int32_t i = 0; i < n; i++) {
        EagleMember *m = &d->group[i];
        m->sequence = sequences[i] = members[i].sequence;
        m->entries = &d->entries.sequences[m->sequence];
        m->tree = members[i].tree;
        m->budget = members[i].budget;
    }
    int status = entry_queue_run(&d->entries, sequences, n, err);
    return status ? status : grow_trees(d, err);
}

/* eagle_tree.c - EAGLE-2's tree, and EAGLE-1's, level by level.
 *
 * EAGLE-2 (dynamic): each expanded node gets its `top` most probable tokens as children. At each level, only the
 * `top` nodes of greatest joint probability are expanded, for `depth` levels, and of all nodes found, the best stay
 * within the budget.
 *
 * EAGLE-1 (static): the shape is fixed in advance by a prior on the rank of each token (tree_shapes.c), with at most
 * `top` nodes of a level expanded; the layer chooses the tokens only.
 *
 * The nodes expanded at a level form the front. The rows of all sequences' fronts are one forward of the layer, in
 * which each row attends to its sequence's entries and to its ancestors in the tree. */
#include "draft/learned/eagle_tree.h"

#include <math.h>
#include <string.h>

/* The index in the shape of child `rank` of its node `parent`, or -1 if there is none within the budget. */
static int32_t child_in_shape(const Eagle *d, const EagleMember *m, int32_t parent, int32_t rank) {
    for (int32_t i = parent + 1; i < d->shape.n && i <= m->budget; i++)
        if (d->shape.nodes[i].parent == parent && d->shape.nodes[i].rank == rank) return i;
    return -1;
}

/* Adds the children of a node: all tokens of `top`, or those in the shape. `from` is the index of the node on the
 * front, -1 for the root. */
static void add_children(const Eagle *d, EagleMember *m, int32_t node, const EagleTop *top, int32_t from) {
    int32_t in_shape = 0;
    for (int32_t i = 0; i < top->n; i++) {
        if (d->is_static && (in_shape = child_in_shape(d, m, m->shape[node], i)) < 0) return;
        double log_p = m->log_p[node] + top->log_p[i];
        int32_t child = tree_add(m->tree, node, top->tokens[i], (float)exp(log_p), d->learned.base.source);
        m->log_p[child] = log_p;
        m->expanded_by[child] = from;
        m->shape[child] = in_shape;
    }
}

/* Which of the nodes [first, tree->n) of a member are expanded: those that have children in the shape, or the `top`
 * best. */
static int32_t nodes_to_expand(const Eagle *d, const EagleMember *m, int32_t first, int32_t nodes[EAGLE_MAX_TOP]) {
    if (!d->is_static) return learned_best_nodes(m->log_p, first, m->tree->n, d->top, nodes);
    int32_t n = 0;
    for (int32_t i = first; i < m->tree->n; i++)
        if (child_in_shape(d, m, m->shape[i], 0) >= 0) nodes[n++] = i;
    return n;
}

/* Puts the nodes of member i that are expanded on the next front, with their rows. */
static void choose_front(Eagle *d, int32_t i, int32_t first, int32_t *n_next) {
    const EagleMember *m = &d->group[i];
    int32_t nodes[EAGLE_MAX_TOP], n = nodes_to_expand(d, m, first, nodes);
    for (int32_t k = 0; k < n; k++) {
        int32_t best = nodes[k];
        int32_t from = m->expanded_by[best], i_next = (*n_next)++;
        const TreeNode *node = &m->tree->nodes[best];
        entry_queue_set_pair(&d->entries, i_next, node->token,
                             from < 0 ? m->entries->feature : d->features + (int64_t)from * d->learned.n_embd);
        d->entries.rows[i_next] = (Row){.token = node->token,
                                        .sequence = m->entries->kv,
                                        .parent = from < 0 ? -1 : d->front_rows[from],
                                        .want_logits = true};
        d->next[i_next] = (EagleFront){.member = i, .node = best};
    }
}

/* Runs the n chosen rows after the n_run rows of the levels above, and makes them the front. */
static int run_front(Eagle *d, int32_t n, int32_t n_run, fr_error *err) {
    entry_queue_fuse(&d->entries, n);
    int status = n_run ? executor_extend(d->layer.executor, d->entries.rows, n, err)
                       : executor_forward(d->layer.executor, d->entries.rows, n, err);
    if (status) return status;
    EagleFront *old = d->front;
    d->front = d->next;
    d->next = old;
    size_t h = (size_t)d->learned.n_embd;
    for (int32_t i = 0; i < n; i++) {
        d->front_rows[i] = n_run + i;
        memcpy(d->features + (size_t)i * h, executor_hidden(d->layer.executor, n_run + i), h * sizeof *d->features);
        eagle_find_top(d, &d->group[d->front[i].member], d->front[i].node, d->features + (size_t)i * h,
                       executor_logits(d->layer.executor, n_run + i), &d->front[i].top);
    }
    return FR_OK;
}

int eagle_grow_trees(Eagle *d, fr_error *err) {
    int32_t first[EAGLE_MAX_ROWS] = {0}, n_run = 0;
    int status = FR_OK;
    for (int32_t i = 0; i < d->n_group && !status; i++) {
        EagleMember *m = &d->group[i];
        status = cached_kv_reserve(&d->entries.cached, m->entries->kv, (d->depth - 1) * d->top, err);
        first[i] = m->tree->n;
        m->log_p[0] = 0;
        m->shape[0] = 0;
        EagleTop top;
        eagle_find_top(d, m, 0, m->entries->feature, m->entries->logits, &top);
        add_children(d, m, 0, &top, -1);
    }
    for (int32_t level = 1; level < d->depth && !status; level++) {
        int32_t n = 0;
        for (int32_t i = 0; i < d->n_group; i++) {
            if (level < d->group[i].budget) choose_front(d, i, first[i], &n);
            first[i] = d->group[i].tree->n;
        }
        if (n == 0) break;
        status = run_front(d, n, n_run, err);
        n_run += n;
        for (int32_t k = 0; k < n && !status; k++)
            add_children(d, &d->group[d->front[k].member], d->front[k].node, &d->front[k].top, k);
    }
    for (int32_t i = 0; i < d->n_group && !status; i++) {
        executor_commit(d->layer.executor, d->group[i].entries->kv, NULL, 0); /* discards the rows of the tree */
        if (d->is_static) learned_declare(&d->learned, d->group[i].sequence, d->group[i].tree);
        else learned_prune(&d->learned, d->group[i].sequence, d->group[i].tree, d->group[i].budget);
    }
    return status;
}

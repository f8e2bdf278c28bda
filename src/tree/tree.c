/* tree.c - building a token tree, checking one that a drafter built, and merging and pruning the trees of several
 * drafters.
 *
 * Children are found by a scan over the later nodes: trees have some dozen nodes, and an index would cost more than
 * it saves. tree_validate trusts nothing in a drafter's tree, because the forward and the verifiers use its parents
 * and tokens as array indices; a tree that fails the check costs its request the drafter, not the text. */
#include "tree/tree.h"

#include <math.h>
#include <stdlib.h>

void tree_reset(Tree *t, int32_t pending_token) {
    t->n = 1;
    t->dists = NULL;
    t->nodes[0] = (TreeNode){.token = pending_token, .parent = -1, .depth = 0, .source = -1, .p_accept = 1};
}

int32_t tree_child(const Tree *t, int32_t parent, int32_t token) {
    for (int32_t i = parent + 1; i < t->n; i++)
        if (t->nodes[i].parent == parent && t->nodes[i].token == token) return i;
    return -1;
}

int32_t tree_add(Tree *t, int32_t parent, int32_t token, float p_accept, int32_t source) {
    fr_assert(parent >= 0 && parent < t->n);
    int32_t i = tree_child(t, parent, token);
    if (i >= 0) {
        if (p_accept > t->nodes[i].p_accept) t->nodes[i].p_accept = p_accept;
        return i;
    }
    if (t->n >= TREE_MAX_NODES) return -1;
    i = t->n++;
    t->nodes[i] = (TreeNode){.token = token,
                             .parent = parent,
                             .depth = t->nodes[parent].depth + 1,
                             .source = source,
                             .p_accept = p_accept};
    return i;
}

/* Returns what is wrong with node 0, or NULL. */
static const char *root_fault(const TreeNode *root, int32_t pending_token) {
    if (root->token != pending_token) return "is not the pending token";
    if (root->parent != -1) return "has a parent";
    if (root->depth != 0) return "is not at depth 0";
    if (!(root->p_accept == 1)) return "has a p_accept other than 1";
    return NULL;
}

/* Returns what is wrong with node i > 0, all earlier nodes being sound, or NULL. */
static const char *node_fault(const Tree *t, int32_t i, int32_t n_vocab) {
    const TreeNode *node = &t->nodes[i];
    if (node->parent < 0 || node->parent >= i) return "does not come after its parent";
    const TreeNode *parent = &t->nodes[node->parent];
    if (node->depth != parent->depth + 1) return "is not one deeper than its parent";
    if (node->token < 0 || node->token >= n_vocab) return "holds a token outside the vocabulary";
    if (!(node->p_accept >= 0 && node->p_accept <= 1)) return "has a p_accept outside [0,1]";
    if (node->p_accept > parent->p_accept) return "has a p_accept above its parent's";
    if (node->tag < 0 || node->tag >= TREE_N_TAGS) return "has a tag outside [0,3]";
    if (tree_child(t, node->parent, node->token) != i) return "duplicates an earlier sibling";
    return NULL;
}

int tree_validate(const Tree *t, int32_t pending_token, int32_t n_vocab, int32_t max_nodes, fr_error *err) {
    if (max_nodes > TREE_MAX_NODES) max_nodes = TREE_MAX_NODES;
    if (t->n < 1 || t->n > max_nodes)
        return error_set(err, FR_ERR_INTERNAL,
                         "a draft tree has %d nodes where 1 to %d are allowed; report this drafter", t->n, max_nodes);
    const char *fault = root_fault(&t->nodes[0], pending_token);
    int32_t i = 0;
    while (!fault && ++i < t->n) fault = node_fault(t, i, n_vocab);
    if (!fault) return FR_OK;
    return error_set(err, FR_ERR_INTERNAL, "node %d of a draft tree (token %d) %s; report this drafter", i,
                     t->nodes[i].token, fault);
}

/* ---- several drafters under one budget ----------------------------------------------------------------
 *
 * The trees of several drafters are merged, and the nodes that are most likely to be accepted are kept. Both steps
 * rely on p_accept being comparable between drafters, which calibration.h is for. */

void union_merge(Tree *into, const Tree *from) {
    int32_t place[TREE_MAX_NODES]; /* the index in `into` of each node of `from`, or -1 */
    place[0] = 0;
    for (int32_t i = 1; i < from->n; i++) {
        const TreeNode *node = &from->nodes[i];
        int32_t parent = place[node->parent], n_before = into->n;
        place[i] = parent < 0 ? -1 : tree_add(into, parent, node->token, node->p_accept, node->source);
        if (into->n > n_before) into->nodes[place[i]].tag = node->tag;
    }
}

typedef struct Ranked {
    float p_accept;
    int32_t index;
} Ranked;

static int better_first(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->p_accept != y->p_accept) return x->p_accept > y->p_accept ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

void union_prune(Tree *t, int32_t budget) {
    if (t->n - 1 <= budget) return;
    Ranked ranked[TREE_MAX_NODES];
    for (int32_t i = 1; i < t->n; i++) ranked[i - 1] = (Ranked){t->nodes[i].p_accept, i};
    qsort(ranked, (size_t)(t->n - 1), sizeof *ranked, better_first);
    bool kept[TREE_MAX_NODES] = {true};
    for (int32_t i = 0; i < budget; i++) kept[ranked[i].index] = true;
    /* A parent's p_accept is never below its child's, and a tie goes to the earlier node, which is the parent. So
     * the parent of every kept node is kept. */
    int32_t place[TREE_MAX_NODES], n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (!kept[i]) continue;
        place[i] = n;
        t->nodes[n] = t->nodes[i];
        if (i > 0) t->nodes[n].parent = place[t->nodes[i].parent];
        n++;
    }
    t->n = n;
}

/* union.c - several drafters under one budget: merges their trees, then keeps the nodes most likely to be accepted.
 *
 * Both steps rely on p_accept being comparable between drafters; calibration.h makes it so. */
#include "tree/union.h"

#include <stdbool.h>
#include <stdlib.h>

void union_merge(Tree *into, const Tree *from) {
    int32_t place[TREE_MAX_NODES]; /* of each node of `from` in `into`, or -1 */
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
    /* A parent's p_accept is never below its child's, and a tie goes to the earlier node, which is the parent: so the
     * parent of every kept node is kept. */
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

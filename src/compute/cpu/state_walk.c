/* state_walk.c - in which order a forward passes the rows of its token trees, where layers have a recurrent state.
 *
 * The problem. A row begins with the state that its parent leaves: dim x dim numbers for each head, which lie in the cache of a
 * core for one head and are far too many for one copy a row.
 *
 * The idea. Depth first, one head at a time, with a few scratch states. A row that is the last child of its parent overwrites
 * the parent's state, which nobody needs any more; for another child a state of the next level is written. The child with
 * the most rows below it comes last. So a level more is a subtree of at most half the rows, and 4096 rows need 13 levels. A chain
 * needs one.
 *
 * Example. a has children b and c, b has child d:     visits  row  from       to
 *                                                             a    committed  0
 *                                                             c    0          1
 *                                                             b    0          0
 *                                                             d    0          0
 *
 * Rows of earlier runs (executor_extend) are passed again where rows of this one stand below them; the bits are those that they
 * had. Proof: tests/compute/test_state_walk.c. */
#include "compute/cpu/cpu.h"

#include "base/mem.h"

int state_walk_open(StateWalk *w, int32_t max_rows, fr_error *err) {
    size_t n = (size_t)max_rows;
    *w = (StateWalk){.visits = mem_calloc(n, sizeof *w->visits), .trees = mem_calloc(n, sizeof *w->trees)};
    int32_t **const lists[] = {&w->size, &w->first_child, &w->next, &w->heavy, &w->level, &w->stack};
    bool fits = w->visits && w->trees;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        fits = (*lists[i] = mem_calloc(n, sizeof **lists[i])) && fits;
    return fits ? FR_OK : error_memory(err, "the order of rows", n * sizeof *w->visits);
}

void state_walk_close(StateWalk *w) {
    void *const all[] = {w->visits, w->trees, w->size, w->first_child, w->next, w->heavy, w->level, w->stack};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
}

/* How many rows stand at and below each that are new, or have new ones below; 0: neither. Then, of each row, the list of its
 * children that count, and the one with the most rows. */
static void link_rows(StateWalk *w, const RowPlace *all, int32_t first_new, int32_t n) {
    for (int32_t i = 0; i < n; i++) w->size[i] = 0, w->first_child[i] = w->heavy[i] = -1;
    for (int32_t i = n - 1; i >= 0; i--) {
        int32_t parent = all[i].parent;
        if (i < first_new && w->size[i] == 0) continue;
        w->size[i]++;
        if (parent < 0) continue;
        w->size[parent] += w->size[i];
        w->next[i] = w->first_child[parent];
        w->first_child[parent] = i;
        if (w->heavy[parent] < 0 || w->size[i] > w->size[w->heavy[parent]]) w->heavy[parent] = i;
    }
}

/* The row and all below it, on level 0 and those above: nobody needs the states of earlier roots. */
static void visit_subtree(StateWalk *w, const RowPlace *all, int32_t root) {
    int32_t n_stack = 0;
    w->stack[n_stack++] = root;
    while (n_stack) {
        int32_t row = w->stack[--n_stack], parent = all[row].parent;
        StateVisit v = {.row = row, .from = STATE_COMMITTED, .to = 0};
        if (parent >= 0) {
            v.from = w->level[parent];
            v.to = v.from + (w->heavy[parent] != row);
        }
        fr_assert(v.to < STATE_LEVELS);
        w->visits[w->n_visits++] = v;
        w->level[row] = v.to;
        if (w->heavy[row] >= 0) w->stack[n_stack++] = w->heavy[row]; /* taken last */
        for (int32_t i = w->first_child[row]; i >= 0; i = w->next[i])
            if (i != w->heavy[row]) w->stack[n_stack++] = i;
    }
}

static StateTree *tree_of(StateWalk *w, int32_t sequence) {
    for (int32_t i = 0; i < w->n_trees; i++)
        if (w->trees[i].sequence == sequence) return &w->trees[i];
    return NULL;
}

void state_walk_plan(StateWalk *w, const RowPlace *rows, int32_t n) {
    const RowPlace *all = rows - rows[0].row;
    int32_t first_new = rows[0].row, n_all = first_new + n;
    w->n_visits = w->n_trees = 0;
    link_rows(w, all, first_new, n_all);
    for (int32_t i = first_new; i < n_all; i++)
        if (!tree_of(w, all[i].sequence)) w->trees[w->n_trees++] = (StateTree){.sequence = all[i].sequence};
    for (StateTree *t = w->trees; t < w->trees + w->n_trees; t++) {
        t->first = w->n_visits;
        for (int32_t i = 0; i < n_all; i++)
            if (all[i].sequence == t->sequence && all[i].parent < 0 && w->size[i] > 0) visit_subtree(w, all, i);
        t->n = w->n_visits - t->first;
    }
}

/* dflash_tree.c - the tree that the drafter `dflash` grows from the predictions of a block (draft_dflash.c): of the
 * products of positions that do not depend on each other or, with a Markov head, a selector or a confidence head, of
 * distributions that may depend on the token before. Proof: tests/draft/test_draft_dflash.c, against a plain search. */
#include "draft/learned/dflash.h"

#include "base/math_functions.h"

#include <math.h>

/* Grows the tree of products. Position i is row `first` + i. */
static void grow_products(Dflash *d, const LearnedMember *m, int32_t first) {
    const float *logits[DFLASH_MAX_SLOTS];
    int32_t n_levels = dflash_n_levels(d, m);
    for (int32_t i = 0; i < n_levels; i++) logits[i] = executor_logits(d->layers.executor, first + i);
    learned_grow_block(&d->learned, m, logits, n_levels, &(BlockRanks){d->n_ranks, d->tokens, d->log_p, d->logits});
}

/* Finds at most n_most children for a node, with the Markov head or the selector. Returns their number. */
static int32_t expand(Dflash *d, const LearnedMember *m, int32_t first, int32_t node, int32_t n_most) {
    const Executor *e = d->layers.executor;
    int32_t path[TREE_MAX_NODES], n_path = learned_path(m->tree, node, path), token = m->tree->nodes[node].token;
    const float *hidden = executor_hidden(e, first + n_path);
    const float *logits = executor_logits(e, first + n_path);
    if (d->markov.rank) logits = markov_head_logits(&d->markov, m->tree, node, hidden, logits);
    learned_spread(&d->learned, logits, d->logits);
    if (d->selector.rank) token_selector_apply(&d->selector, token, hidden, d->logits);
    int32_t n = learned_top(&d->learned, m->sequence, path, n_path, d->logits, n_most, d->tokens + node * d->n_ranks,
                            d->log_p + node * d->n_ranks);
    if (d->markov.confidence.weights &&
        !d->learned.sequences[m->sequence].is_drawing) /* drawn tokens have psi, which is not an estimate */
        markov_head_correct(&d->markov, token, hidden, d->log_p + node * d->n_ranks, n);
    return n;
}

/* A tree that grows with the Markov head or the selector, best first. A node that is not expanded has as much as its
 * best child can have. */
typedef struct Growth {
    double log_p[TREE_MAX_NODES];       /* of the path; psi if tokens are drawn */
    int32_t n_children[TREE_MAX_NODES]; /* that the node offers; NOT_EXPANDED */
    int32_t next[TREE_MAX_NODES];       /* how many of them are in the tree */
} Growth;
enum { NOT_EXPANDED = -1 };

static double log_p_of_next(const Dflash *d, const Growth *g, int32_t node) {
    return g->log_p[node] + (g->n_children[node] < 0 ? 0 : d->log_p[node * d->n_ranks + g->next[node]]);
}

/* Returns the node that is expanded or gets a child next; -1: there is none. */
static int32_t best_node(const Dflash *d, const Growth *g, const Tree *t, int32_t n_levels) {
    int32_t best = -1;
    double best_log_p = -INFINITY;
    for (int32_t i = 0; i < t->n; i++) {
        if (t->nodes[i].depth == n_levels || g->next[i] == g->n_children[i]) continue;
        double log_p = log_p_of_next(d, g, i);
        if (log_p > best_log_p) best = i, best_log_p = log_p;
    }
    return best;
}

static void add_child(const Dflash *d, Growth *g, Tree *t, int32_t node) {
    double log_p = log_p_of_next(d, g, node);
    int32_t token = d->tokens[node * d->n_ranks + g->next[node]++];
    int32_t child = tree_add(t, node, token, (float)math_exp(log_p), d->learned.base.source);
    g->log_p[child] = log_p;
    g->n_children[child] = NOT_EXPANDED;
    g->next[child] = 0;
}

/* Grows such a tree: of the children that nodes offer by rank, the one with the greatest product is
 * added. A child is at most as probable as its parent, so a node is expanded only when it is the most probable one of
 * all. The same holds for psi of drawn tokens, so that the tree is the one that learned_prune would leave of a larger
 * one. For a rule that looks at whole groups, a node gets all its children when it is expanded. */
static void grow_conditioned(Dflash *d, const LearnedMember *m, int32_t first) {
    Growth g = {.n_children = {NOT_EXPANDED}};
    Tree *t = m->tree;
    int32_t n_levels = dflash_n_levels(d, m), node;
    while (t->n - 1 < m->budget && t->n < TREE_MAX_NODES && (node = best_node(d, &g, t, n_levels)) >= 0) {
        if (g.n_children[node] >= 0) {
            add_child(d, &g, t, node);
            continue;
        }
        int32_t group = learned_group_size(&d->learned, m->sequence, m->budget, t->nodes[node].depth);
        int32_t left = m->budget - (t->n - 1), n_most = d->n_ranks;
        if (group && group < n_most) n_most = group;
        if (group && left < n_most) n_most = left;
        g.n_children[node] = expand(d, m, first, node, n_most);
        while (group && g.next[node] < g.n_children[node] && t->n < TREE_MAX_NODES) add_child(d, &g, t, node);
    }
    learned_declare(&d->learned, m->sequence, t);
}

void dflash_grow(Dflash *d, const LearnedMember *m, int32_t first) {
    (dflash_is_conditioned(d) ? grow_conditioned : grow_products)(d, m, first);
}

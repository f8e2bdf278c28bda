/* lyanna_tree.c - token-info sampling and re-sampling (Lyanna, sections 5.2, 5.3 and 6.2).
 *
 * The problem. The chain gives raw logits l_1 .. l_N, one row a place, whatever the tokens are. Trying the best tokens of each row
 * in all combinations makes trees whose neighbours do not fit each other.
 *
 * The idea (Algorithm 1). A node's own token says through its info E' (token_info.h) what may follow it:
 *
 *     distribution of the children of a node at depth i = softmax(l_{i+1} + E'(its token))
 *
 * Each expanded node gets its k most probable tokens as children; at each level only the k nodes of greatest joint
 * probability (the product along the path) are expanded; all that were found stay, and the budget's best by joint probability get a row.
 *
 *     k = 2    l_1 + E'(the)     the ─ .6 cat ─ .7 sat .42        expanded at depth 1: cat, dog
 *              l_2 + E'(cat)         │       └ .2 is  .12         expanded at depth 2: sat, ran (.24)
 *              l_2 + E'(dog)         └ .3 dog ─ .8 ran .24 ...
 *
 * Re-sampling (Algorithm 2). The target accepted some of the tree and then said a token of its own, m tokens in all. Rows
 * l_{m+1} .. l_N are as good as before, for no token went into them: the same function over them, from the target's token, is a
 * new tree without a forward. It knows now which token is at place m, which the tree before could only guess.
 *
 *     l_1 l_2 l_3 l_4 l_5      the → cat (accepted) → likes (the target's): m = 2, the new tree grows from "likes" by l_3 l_4 l_5
 *
 * Fusion. The re-sampled tree and the fresh one of the next chain have the same root and share one verification: nodes with
 * equal (parent, token) are one. Under a budget they compete by p_accept, which must mean the same in both. The fresh chain has seen
 * more of the text, so where both know a node the fresh tree's p_accept is taken; and a node that only the re-sampled tree has is one that
 * the fresh tree, asked at the same place, thought little of. What such nodes are worth is counted: wherever the text reached a node of both
 * trees, the sum of what the re-sampled tree promised of children that the fresh one has not, and whether one of them came.
 *
 *     trust = (kept / promised of those) / (kept / promised of fresh children), 1 at most
 *
 *     fresh        likes ─ .5 fish ─ .2 and           both have fish: .5
 *     re-sampled   likes ─ .4 fish ─ .2 but           but leaves at fish: .5 * trust * (.2 / .4)
 *                        └ .3 to   ─ .2 eat           to leaves at the root: trust * .3;  eat is below it: trust * .3 * (.2 / .3)
 *
 * Both ratios start as if PRIOR cases had been seen, kept at START_TRUST and 1. Counts are of one sequence, so that what is
 * drafted for a request hangs on that request alone. With a first trained file on the shipped target, trust was 0.26 greedy and
 * 0.51 at temperature 0.8 for nodes that leave, and 0.6 to 1 below them.
 *
 * Invariants: p_accept never rises along a path; ties go to the earlier node; a row that is not finite has no children. Cost: a row of
 * logits copied, summed with a row of info, softmax and top k, for 1 + (N - 1) k nodes. Proof: tests/test_draft_lyanna.c, by
 * enumeration in double precision. */
#include "spec/drafters/learned/lyanna_tree.h"

#include <math.h>
#include <string.h>

#define PRIOR 8.0
#define START_TRUST 0.4
#define MEMORY 256.0

/* The `top` best of the nodes from `first` on, best first. */
static int32_t choose_front(const Tree *t, const double *log_p, int32_t first, int32_t top, int32_t *front) {
    bool taken[TREE_MAX_NODES] = {false};
    for (int32_t n = 0; n < top; n++) {
        int32_t best = -1;
        for (int32_t i = first; i < t->n; i++)
            if (!taken[i] && (best < 0 || log_p[i] > log_p[best])) best = i;
        if (best < 0) return n;
        taken[front[n] = best] = true;
    }
    return top;
}

/* s->rows = the logits of one place, with the info of each node of the front. */
static void inject(const LyannaSampler *s, const float *logits, const Tree *t, const int32_t *front, int32_t n) {
    int64_t n_vocab = s->learned->n_vocab;
    int32_t tokens[LYANNA_MAX_TOP];
    for (int32_t i = 0; i < n; i++) {
        memcpy(s->rows + i * n_vocab, logits, (size_t)n_vocab * sizeof *logits);
        tokens[i] = t->nodes[front[i]].token;
    }
    token_info_add(s->info, tokens, n, s->rows);
}

void lyanna_build_subtree(const LyannaSampler *s, int32_t sequence, const float *logits, int32_t n_steps, int32_t tag, Tree *t) {
    double log_p[TREE_MAX_NODES] = {0};
    int32_t front[LYANNA_MAX_TOP] = {0}, n_front = 1;
    for (int32_t step = 0; step < n_steps && n_front > 0; step++) {
        int32_t first = t->n, tokens[LYANNA_MAX_TOP];
        double own[LYANNA_MAX_TOP];
        inject(s, logits + (int64_t)step * s->learned->n_vocab, t, front, n_front);
        for (int32_t f = 0; f < n_front; f++) {
            int32_t n = learned_top(s->learned, sequence, s->rows + (int64_t)f * s->learned->n_vocab, s->top, tokens, own);
            for (int32_t k = 0; k < n; k++) {
                double sum = log_p[front[f]] + own[k];
                int32_t child = tree_add(t, front[f], tokens[k], (float)exp(sum), s->learned->base.source);
                log_p[child] = sum;
                t->nodes[child].tag = tag;
            }
        }
        n_front = choose_front(t, log_p, first, s->top, front);
    }
}

/* What node promises of those of its children that are not below `other` in `beside`. */
static double promise_of(const Tree *t, int32_t node, const Tree *beside, int32_t other) {
    double sum = 0, p_accept = (double)t->nodes[node].p_accept;
    for (int32_t i = node + 1; i < t->n; i++)
        if (t->nodes[i].parent == node && !(beside && tree_child(beside, other, t->nodes[i].token) >= 0)) sum += (double)t->nodes[i].p_accept;
    return p_accept > 0 ? sum / p_accept : 0;
}

void lyanna_update_hit_rate(LyannaHitRate *p, const Tree *t, const Tree *beside, const int32_t *tokens, int64_t n) {
    int32_t node = 0, other = 0;
    for (int64_t i = 0; i < n && node >= 0 && other >= 0; i++) {
        double promised = promise_of(t, node, beside, other);
        node = tree_child(t, node, tokens[i]);
        if (beside) other = tree_child(beside, other, tokens[i]);
        p->promised += promised;
        p->kept += promised > 0 && node >= 0 && !(beside && other >= 0);
    }
    if (p->promised > MEMORY) p->promised /= 2, p->kept /= 2;
}

double lyanna_trust(const LyannaHitRate *resampled, const LyannaHitRate *fresh) {
    double a = (resampled->kept + PRIOR * START_TRUST) / (resampled->promised + PRIOR), b = (fresh->kept + PRIOR) / (fresh->promised + PRIOR);
    return a < b ? a / b : 1;
}

void lyanna_weigh(const Tree *resampled, const Tree *fresh, double trust, Tree *into) {
    int32_t place[TREE_MAX_NODES] = {0}; /* of each node in the fresh tree, or -1 */
    *into = *resampled;
    for (int32_t i = 1; i < into->n; i++) {
        TreeNode *node = &into->nodes[i];
        int32_t parent = node->parent, at = place[parent];
        float before = resampled->nodes[parent].p_accept, share = before > 0 ? node->p_accept / before : 0;
        place[i] = at < 0 ? -1 : tree_child(fresh, at, node->token);
        if (place[i] >= 0) node->p_accept = fresh->nodes[place[i]].p_accept;
        else node->p_accept = into->nodes[parent].p_accept * share * (at < 0 ? 1 : (float)trust);
    }
}

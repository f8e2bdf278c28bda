/* lyanna_tree.c - token-info sampling and re-sampling (Lyanna, sections 5.2, 5.3 and 6.2).
 *
 * The problem. The chain gives raw logits l_1 .. l_N, one row a position, which do not depend on any token. A tree
 * that combines the best tokens of each row freely contains paths whose tokens do not fit together.
 *
 * The idea (Algorithm 1). The info E' of a node's own token (token_info.h) is added to the logits of its children:
 *
 *     distribution of the children of a node at depth i = softmax(l_{i+1} + E'(its token))
 *
 * and, if the file has a gate, the bias of its token at h_{i+1} (lyanna_gate.h).
 *
 * Each expanded node gets its k most probable tokens as children. At each level only the k nodes of greatest joint
 * probability (the product along the path) are expanded. Of all nodes found, the best by joint probability are kept
 * within the budget.
 *
 *     k = 2    l_1 + E'(the)     the ─ .6 cat ─ .7 sat .42        expanded at depth 1: cat, dog
 *              l_2 + E'(cat)         │       └ .2 is  .12         expanded at depth 2: sat, ran (.24)
 *              l_2 + E'(dog)         └ .3 dog ─ .8 ran .24 ...
 *
 * Re-sampling (Algorithm 2). The target accepted some tokens of the tree and then chose one of its own, m tokens in
 * all. Rows l_{m+1} .. l_N are still valid, because no token went into them: the same function over them, from the
 * target's token, gives a new tree without a forward. This time the token at position m is known, which was only a
 * prediction in the tree before.
 *
 *     l_1 l_2 l_3 l_4 l_5      the → cat (accepted) → likes (the target's): m = 2, the new tree grows from "likes" by l_3 l_4 l_5
 *
 * Fusion. The re-sampled tree and the fresh one of the next chain have the same root and are verified together: nodes
 * with equal (parent, token) are one. Under a budget they compete by p_accept, which must have the same scale in
 * both. The fresh chain has read more of the text, so a node in both trees gets the fresh tree's p_accept. A node in
 * the re-sampled tree only is one that the fresh tree ranked low at the same position, so its p_accept is too high.
 * How much too high is measured: at each node of both trees that the text passed through, the expected number of hits
 * among the children that only the re-sampled tree has (the sum of their conditional probabilities), and the observed
 * number (whether one of them was the next token).
 *
 *     trust = (observed / expected of those) / (observed / expected of fresh children), at most 1
 *
 *     fresh        likes ─ .5 fish ─ .2 and           both have fish: .5
 *     re-sampled   likes ─ .4 fish ─ .2 but           but leaves at fish: .5 * trust * (.2 / .4)
 *                        └ .3 to   ─ .2 eat           to leaves at the root: trust * .3;  eat is below it: trust * .3 * (.2 / .3)
 *
 * Both ratios start as if PRIOR hits had been expected, at hit rates of START_TRUST and 1. Each sequence has its own
 * counts, so the drafts of a request do not depend on other requests. With the first trained file on the shipped
 * target, trust was 0.26 greedy and 0.51 at temperature 0.8 for nodes that leave the fresh tree, and 0.6 to 1 below
 * them.
 *
 * Invariants: p_accept never increases along a path; of equals the earlier node comes first; a row that is not finite
 * has no children. What the text taught about a token (live_info.c) is added like its info. Cost: for 1 + (N - 1) k nodes, a row of logits copied and added to a row of info, softmax and top
 * k. Proof: tests/draft/test_draft_lyanna.c, by enumeration in double precision. */
#include "draft/learned/lyanna_tree.h"

#include <math.h>
#include <string.h>

#define PRIOR 8.0
#define START_TRUST 0.4
#define MAX_EXPECTED 256.0 /* then the counts are halved, so that old ones lose weight */

static void add_to(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

/* s->rows = the logits of one position plus the info of each node of the front, the gate's bias at that state, and what
 * the text taught. */
static void add_info(const LyannaSampler *s, int32_t sequence, const float *logits, const float *state, const Tree *t,
                     const int32_t *front, int32_t n) {
    int64_t n_vocab = s->learned->n_vocab;
    int32_t tokens[LYANNA_MAX_TOP] = {0};
    for (int32_t i = 0; i < n; i++) tokens[i] = t->nodes[front[i]].token;
    if (s->gate->rank) lyanna_gate_bias(s->gate, state, tokens, n, s->rows);
    for (int32_t i = 0; i < n; i++) {
        float *row = s->rows + i * n_vocab;
        if (s->gate->rank) add_to(row, logits, n_vocab);
        else memcpy(row, logits, (size_t)n_vocab * sizeof *logits);
    }
    token_info_add(s->info, tokens, n, s->rows);
    for (int32_t i = 0; i < n && s->live; i++) live_info_add(&s->live[sequence], tokens[i], s->rows + i * n_vocab);
}

void lyanna_build_subtree(const LyannaSampler *s, int32_t sequence, const float *logits, const float *states,
                          const float *confidence, int32_t n_steps, int32_t tag, Tree *t) {
    double log_p[TREE_MAX_NODES] = {0};
    int32_t front[LYANNA_MAX_TOP] = {0}, n_front = 1;
    for (int32_t step = 0; step < n_steps && n_front > 0; step++) {
        int32_t first = t->n, tokens[LYANNA_MAX_TOP], path[TREE_MAX_NODES];
        double own[LYANNA_MAX_TOP];
        const float *state = s->gate->rank ? states + (int64_t)step * s->gate->rank : NULL;
        add_info(s, sequence, logits + (int64_t)step * s->learned->n_vocab, state, t, front, n_front);
        for (int32_t f = 0; f < n_front; f++) {
            int32_t n_path = learned_path(t, front[f], path);
            int32_t n = learned_top(s->learned, sequence, path, n_path, s->rows + (int64_t)f * s->learned->n_vocab,
                                    s->top, tokens, own);
            if (!s->learned->sequences[sequence].is_drawing) /* else these are psi, not estimates */
                confidence_correct(s->confidence, confidence[step], own, n);
            for (int32_t k = 0; k < n; k++) {
                double sum = log_p[front[f]] + own[k];
                int32_t child = tree_add(t, front[f], tokens[k], (float)exp(sum), s->learned->base.source);
                log_p[child] = sum;
                t->nodes[child].tag = tag;
            }
        }
        n_front = learned_best_nodes(log_p, first, t->n, s->top, front);
    }
}

void lyanna_learn(const LyannaSampler *s, int32_t sequence, const float *logits, const float *states, int32_t n_steps,
                  const VerifiedTree *v) {
    int32_t n_vocab = s->learned->n_vocab;
    float t = s->learned->sequences[sequence].sampling.temperature;
    double temperature = (double)(t > LEARNED_MIN_TEMPERATURE ? t : LEARNED_MIN_TEMPERATURE);
    for (int32_t depth = 0; s->live && depth <= v->verdict->n_path && depth < n_steps; depth++) {
        int32_t node = feedback_node(v, depth);
        const float *state = s->gate->rank ? states + (int64_t)depth * s->gate->rank : NULL;
        add_info(s, sequence, logits + (int64_t)depth * n_vocab, state, v->tree, &node, 1);
        live_info_learn(&s->live[sequence], v->tree->nodes[node].token, v->logits[node], s->rows, n_vocab, temperature);
    }
}

/* The sum of the conditional probabilities of those children of `node` that node `other` of tree `without` does not
 * have. */
static double expected_hits(const Tree *t, int32_t node, const Tree *without, int32_t other) {
    double sum = 0, p_accept = (double)t->nodes[node].p_accept;
    for (int32_t i = node + 1; i < t->n; i++)
        if (t->nodes[i].parent == node && !(without && tree_child(without, other, t->nodes[i].token) >= 0))
            sum += (double)t->nodes[i].p_accept;
    return p_accept > 0 ? sum / p_accept : 0;
}

void lyanna_update_hit_rate(LyannaHitRate *rate, const Tree *t, const Tree *without, const int32_t *tokens, int64_t n) {
    int32_t node = 0, other = 0;
    for (int64_t i = 0; i < n && node >= 0 && other >= 0; i++) {
        double expected = expected_hits(t, node, without, other);
        node = tree_child(t, node, tokens[i]);
        if (without) other = tree_child(without, other, tokens[i]);
        rate->expected += expected;
        rate->observed += expected > 0 && node >= 0 && !(without && other >= 0);
    }
    if (rate->expected > MAX_EXPECTED) rate->expected /= 2, rate->observed /= 2;
}

double lyanna_trust(const LyannaHitRate *resampled, const LyannaHitRate *fresh) {
    double of_resampled = (resampled->observed + PRIOR * START_TRUST) / (resampled->expected + PRIOR);
    double of_fresh = (fresh->observed + PRIOR) / (fresh->expected + PRIOR);
    return of_resampled < of_fresh ? of_resampled / of_fresh : 1;
}

void lyanna_reweight(const Tree *resampled, const Tree *fresh, double trust, Tree *into) {
    int32_t in_fresh[TREE_MAX_NODES] = {0}; /* each node's index in the fresh tree, or -1 */
    *into = *resampled;
    for (int32_t i = 1; i < into->n; i++) {
        TreeNode *node = &into->nodes[i];
        int32_t parent = node->parent, at = in_fresh[parent];
        float before = resampled->nodes[parent].p_accept, share = before > 0 ? node->p_accept / before : 0;
        in_fresh[i] = at < 0 ? -1 : tree_child(fresh, at, node->token);
        if (in_fresh[i] >= 0) node->p_accept = fresh->nodes[in_fresh[i]].p_accept;
        else node->p_accept = into->nodes[parent].p_accept * share * (at < 0 ? 1 : (float)trust);
    }
}

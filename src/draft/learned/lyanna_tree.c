/* lyanna_tree.c - token-info sampling and re-sampling (Lyanna, sections 5.2, 5.3 and 6.2), and the choice to verify a
 * re-sampled tree without a fresh one.
 *
 * The problem. The chain gives raw logits l_1 .. l_N, one row a position, which do not depend on any token. A tree
 * that combines the best tokens of each row freely contains paths whose tokens do not fit together.
 *
 * The idea (Algorithm 1). The info E' of a node's own token (logit_corrections.h) is added to the logits of its
 * children:
 *
 *     distribution of the children of a node at depth i = softmax(l_{i+1} + E'(its token))
 *
 * In some files this begins with the second step of a chain (info_step), because the first one has read the pending
 * token. If the file has a gate, the gated bias of the node's token at h_{i+1} is added as well, and so is what the
 * text taught about the token (live info).
 *
 * Each expanded node gets its k most probable tokens as children. At each level only the k nodes of greatest joint
 * probability (the product along the path) are expanded. The nodes of greatest joint probability among all that were
 * found are kept within the budget.
 *
 *     k = 2    l_1 + E'(the)     the ─ .6 cat ─ .7 sat .42        expanded at depth 1: cat, dog
 *              l_2 + E'(cat)         │       └ .2 is  .12         expanded at depth 2: sat, ran (.24)
 *              l_2 + E'(dog)         └ .3 dog ─ .8 ran .24 ...
 *
 * Re-sampling (Algorithm 2). The target accepted some tokens of the tree and then chose one of its own, m tokens in
 * all. Rows l_{m+1} .. l_N are still valid, because no token went into them. Algorithm 1 over these rows, starting at
 * the target's token, gives a new tree without a forward. This time the token at position m is known; in the tree
 * before it was only predicted.
 *
 *     l_1 l_2 l_3 l_4 l_5      the → cat (accepted) → likes (the target's): m = 2
 *                              the new tree grows from "likes" by l_3 l_4 l_5
 *
 * Fusion. The re-sampled tree and the fresh one of the next chain have the same root and are verified together: nodes
 * with equal (parent, token) are one. Under a budget they compete by p_accept, which must have the same scale in both.
 * The fresh chain has read more of the text, so a node in both trees gets the fresh tree's p_accept. A node that only
 * the re-sampled tree has was ranked low by the fresh tree, so its p_accept is too high. How much too high is measured
 * at each node of both trees that the text passed through: among the children that only the re-sampled tree has, the
 * number of hits that was expected (the sum of their conditional probabilities) is compared with the number that was
 * observed (whether one of them was the next token).
 *
 *     trust = (observed / expected of those) / (observed / expected of fresh children), at most 1
 *
 *     fresh        likes ─ .5 fish ─ .2 and           both have fish: .5
 *     re-sampled   likes ─ .4 fish ─ .2 but           but leaves at fish: .5 * trust * (.2 / .4)
 *                        └ .3 to   ─ .2 eat           to leaves at the root: trust * .3
 *                                                     eat is below it: trust * .3 * (.2 / .3)
 *
 * Both ratios start as if PRIOR hits had been expected, at hit rates of START_TRUST and 1. Each sequence has its own
 * counts, so the drafts of a request do not depend on other requests. With the first trained file on the shipped
 * target, the trust in nodes that leave the fresh tree was 0.26 for greedy texts and 0.51 at temperature 0.8; in nodes
 * below them it was 0.6 to 1.
 *
 * Invariants: p_accept never increases along a path; ties go to the earlier node; a row that is not finite has no
 * children. Cost: for each of 1 + (N - 1) k nodes, a row of logits is copied and a row of info added, and softmax and
 * top k run over the sum. Proof: tests/draft/test_draft_lyanna.c, by enumeration in double precision. */
#include "draft/learned/lyanna.h"

#include "base/math_functions.h"

#include <math.h>
#include <string.h>

#define PRIOR 8.0
#define START_TRUST 0.4
#define MAX_EXPECTED 256.0 /* beyond it the counts are halved, so that old ones lose weight */

static void add_to(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

/* Fills s->rows for the nodes of the front: the logits of a step of the chain plus, for each node, the info of its
 * token, the gate's bias at that state, and what the text taught. */
static void add_info(const LyannaSampler *s, int32_t sequence, int32_t step, const float *logits, const float *state,
                     const Tree *t, const int32_t *front, int32_t n) {
    bool has_info = step >= s->info_step, has_gate = has_info && s->gate->rank;
    int64_t n_vocab = s->learned->n_vocab;
    int32_t tokens[LYANNA_MAX_TOP] = {0};
    for (int32_t i = 0; i < n; i++) tokens[i] = t->nodes[front[i]].token;
    if (has_gate) info_gate_bias(s->gate, state, tokens, n, s->rows);
    for (int32_t i = 0; i < n; i++) {
        float *row = s->rows + i * n_vocab;
        if (has_gate) add_to(row, logits, n_vocab);
        else memcpy(row, logits, (size_t)n_vocab * sizeof *logits);
    }
    if (has_info) token_info_add(s->info, tokens, n, s->rows);
    for (int32_t i = 0; i < n && s->live; i++) live_info_add(&s->live[sequence], tokens[i], s->rows + i * n_vocab);
}

void lyanna_build_subtree(const LyannaSampler *s, int32_t sequence, int32_t first, const float *logits,
                          const float *states, const float *confidence, int32_t n_steps, int32_t tag, Tree *t) {
    double log_p[TREE_MAX_NODES] = {0};
    int32_t front[LYANNA_MAX_TOP] = {0}, n_front = 1;
    for (int32_t step = 0; step < n_steps && n_front > 0; step++) {
        int32_t first_child = t->n, tokens[LYANNA_MAX_TOP], path[TREE_MAX_NODES];
        double own[LYANNA_MAX_TOP];
        const float *state = s->gate->rank ? states + (int64_t)step * s->gate->rank : NULL;
        add_info(s, sequence, first + step, logits + (int64_t)step * s->learned->n_vocab, state, t, front, n_front);
        for (int32_t f = 0; f < n_front; f++) {
            int32_t n_path = learned_path(t, front[f], path);
            int32_t n = learned_top(s->learned, sequence, path, n_path, s->rows + (int64_t)f * s->learned->n_vocab,
                                    s->top, tokens, own);
            if (!s->learned->sequences[sequence].is_drawing) /* drawn tokens have psi, which is not an estimate */
                confidence_correct(s->confidence, confidence[step], own, n);
            for (int32_t k = 0; k < n; k++) {
                double sum = log_p[front[f]] + own[k];
                int32_t child = tree_add(t, front[f], tokens[k], (float)math_exp(sum), s->learned->base.source);
                log_p[child] = sum;
                t->nodes[child].tag = tag;
            }
        }
        n_front = learned_best_nodes(log_p, first_child, t->n, s->top, front);
    }
}

void lyanna_learn(const LyannaSampler *s, int32_t sequence, int32_t first, const float *logits, const float *states,
                  int32_t n_steps, const VerifiedTree *v) {
    int32_t n_vocab = s->learned->n_vocab;
    float t = s->learned->sequences[sequence].sampling.temperature;
    double temperature = (double)(t > LEARNED_MIN_TEMPERATURE ? t : LEARNED_MIN_TEMPERATURE);
    for (int32_t depth = 0; s->live && depth <= v->verdict->n_path && depth < n_steps; depth++) {
        int32_t node = feedback_node(v, depth);
        const float *state = s->gate->rank ? states + (int64_t)depth * s->gate->rank : NULL;
        add_info(s, sequence, first + depth, logits + (int64_t)depth * n_vocab, state, v->tree, &node, 1);
        live_info_learn(&s->live[sequence], v->tree->nodes[node].token, v->logits[node], s->rows, n_vocab, temperature);
    }
}

/* Sums the conditional probabilities of the children of `node`, without those that node `other` of tree `without` has
 * as well. */
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
    int32_t in_fresh[TREE_MAX_NODES] = {0}; /* index of each node in the fresh tree, or -1 */
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

/* ---- steps without a draft --------------------------------------------------------------------------- */

/* Whether a re-sampled tree is verified instead of a fresh one.
 *
 * The problem. A fresh draft costs time, and what is left of the last one costs almost none. But a fresh draft has read
 * more of the text, and more of it is accepted.
 *
 * The idea. Compare tokens per time. Let T be the time of a step without its draft, C that of a fresh draft, f the
 * average number of tokens that a step with a fresh draft commits, and r the number that the re-sampled tree promises.
 * The re-sampled tree is verified if
 *
 *     r / T >= f / (T + C)     or     r >= f (1 - C / (T + C))
 *
 *     r = 1 + trust * (sum of p_accept over the tree's nodes)      the sum is the expected length of the accepted path
 *
 * trust is the observed length of the path of the text through re-sampled trees relative to that sum. It is counted at
 * every step in which rows were left, so that it is known before such a tree is verified instead of a fresh one. C and
 * T are measured. If n sequences draft together, each of them saves a share of C, and all wait for T.
 *
 *     C / (T + C) = 0.2, f = 4:   a re-sampled tree is verified by itself if it promises 3.2 tokens
 *
 * The choice depends on times, so it may differ from run to run. Texts do not depend on it under the rule `sampled`.
 * Under a ratio rule, whose text depends on its trees, the caller does not ask.
 *
 * Proof: tests/draft/test_lyanna_choice.c. */
#define CHOICE_PRIOR 4.0
#define CHOICE_START_TRUST 0.5
#define MOST_CHANGE \
    0.25 /* one measurement changes a mean by at most this part: an idle engine looks like a long step */
enum { MEMORY = 16, MIN_FRESH = 4 };

static void observe_time(double *mean_s, double s) {
    if (*mean_s <= 0) *mean_s = s;
    double change = (s / *mean_s - 1) / MEMORY * 4;
    *mean_s *= 1 + fmin(fmax(change, -MOST_CHANGE), MOST_CHANGE);
}

void lyanna_times_begin(LyannaTimes *t, double now_s) {
    if (t->ended_s > 0 && now_s > t->ended_s) observe_time(&t->step_s, now_s - t->ended_s);
}

void lyanna_times_end(LyannaTimes *t, double now_s, double began_s, int32_t n_fresh) {
    if (n_fresh > 0 && now_s > began_s) observe_time(&t->draft_s, (now_s - began_s) / n_fresh);
    t->ended_s = now_s;
}

double lyanna_times_draft_share(const LyannaTimes *t, int32_t n) {
    return t->step_s > 0 ? n * t->draft_s / (n * t->draft_s + t->step_s) : 0;
}

void lyanna_choice_observe_fresh(LyannaChoice *c, int64_t n) {
    if (c->n_fresh < MEMORY) c->n_fresh++;
    c->fresh_tokens += ((double)n - c->fresh_tokens) / c->n_fresh;
}

/* Returns the expected length of the accepted path. */
static double promise(const Tree *t) {
    double sum = 0;
    for (int32_t i = 1; i < t->n; i++) sum += (double)t->nodes[i].p_accept;
    return sum;
}

void lyanna_choice_observe_resampled(LyannaChoice *c, const Tree *resampled, const int32_t *tokens, int64_t n) {
    c->resampled.expected += promise(resampled);
    for (int32_t i = 0, node = 0; i < n && (node = tree_child(resampled, node, tokens[i])) >= 0; i++)
        c->resampled.observed++;
    if (c->resampled.expected > 4 * MEMORY) c->resampled.expected /= 2, c->resampled.observed /= 2;
}

bool lyanna_choice_is_resampled(const LyannaChoice *c, const Tree *resampled, double draft_share) {
    double trust = (c->resampled.observed + CHOICE_PRIOR * CHOICE_START_TRUST) / (c->resampled.expected + CHOICE_PRIOR);
    if (resampled->n == 1 || c->n_fresh < MIN_FRESH || draft_share <= 0) return false;
    return 1 + fmin(trust, 1) * promise(resampled) >= c->fresh_tokens * (1 - draft_share);
}

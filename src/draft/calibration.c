/* calibration.c - turns a drafter's estimates into probabilities, learned online.
 *
 * The problem: a union compares nodes of different drafters, and the budget allocator weighs a node against the time
 * that its row costs. Both need probabilities. A drafter's `p_accept` is a probability only on texts like those on
 * which its constants were chosen: where an answer repeats nothing, for example, every estimate is too high.
 *
 * The idea: isotonic regression (Ayer et al. 1955: pool adjacent violators; for classifiers Zadrozny and Elkan 2002) on
 * the tokens that the target committed. Estimates fall into bins. Each bin counts how many nodes were observed and how
 * many were correct. Its value is the share of correct ones, as if PRIOR more nodes that agree with the prior had been
 * observed; neighbours in the wrong order are pooled to their mean. Between the middles of bins the map is linear.
 *
 * What is observed is the conditional estimate, p_accept(child) / p_accept(parent), of a child whose parent was
 * correct. `p_accept` itself is the estimate for a whole path, but whether a path was correct is not always known:
 * after a step that committed one token, a node at depth 2 is either known to be wrong (because its parent was) or
 * unknown. Counting only the known ones would make every deep node look wrong. But whether the token after a correct
 * parent is known does not depend on the parent's children, so the children at known positions are a fair sample, also
 * those that were proposed and got no row. The estimate of a path is the product of its calibrated conditional
 * estimates, so it never rises along the path.
 *
 *     proposal   the ─ 0.8 cat ─ 0.4 sat      committed: cat ran
 *                    └ 0.1 dog ─ 0.1 sat      counted: cat (0.8) right, dog (0.1) wrong, sat below cat (0.4 / 0.8)
 *                    wrong
 *                                             not counted: sat below dog, whose parent is wrong
 *
 * Bins are equal in the square root of the estimate, so they are finer at small estimates, which most nodes have. A bin
 * forgets: it holds at most WINDOW observations, and beyond that older ones fade. There is one calibration over all
 * requests, and it is the prior of one for each request: a new text starts with what earlier texts showed and then
 * learns its own map.
 *
 * Invariants: the map never falls and stays in [0, 1]. Cost: O(1) for each node, and O(bins) for each fit, which takes
 * place after FIT_EVERY observations. When it loses: if the estimates were already right, it gains nothing and costs a
 * little time. Proof: tests/draft/test_calibration.c. */
#include "draft/calibration.h"

#include <math.h>

enum { PRIOR = 8, WINDOW = 512, FIT_EVERY = 16 };

static float middle(int32_t bin) {
    float root = ((float)bin + 0.5f) / CALIBRATION_N_BINS;
    return root * root;
}

static int32_t bin_of(float p_accept) {
    int32_t bin = (int32_t)(sqrtf(p_accept) * CALIBRATION_N_BINS);
    return bin < CALIBRATION_N_BINS ? bin : CALIBRATION_N_BINS - 1;
}

void calibration_init(Calibration *c, const Calibration *prior) {
    *c = (Calibration){.n_since_fit = 0};
    for (int32_t i = 0; i < CALIBRATION_N_BINS; i++) c->value[i] = prior ? prior->value[i] : middle(i);
}

/* Returns the p_accept of a node divided by that of its parent; 0 if the parent's is 0. */
static float conditional(const Tree *t, int32_t i) {
    float parent = t->nodes[t->nodes[i].parent].p_accept;
    return parent > 0 ? t->nodes[i].p_accept / parent : 0;
}

static void count(Calibration *c, float p_accept, bool right) {
    int32_t bin = bin_of(p_accept);
    if (c->n[bin] >= WINDOW) {
        c->n[bin] *= 1 - 1.0f / WINDOW;
        c->n_right[bin] *= 1 - 1.0f / WINDOW;
    }
    c->n[bin] += 1;
    c->n_right[bin] += right;
    c->n_since_fit++;
}

void calibration_learn(Calibration *c, const Tree *proposal, const int32_t *tokens, int64_t n) {
    bool right[TREE_MAX_NODES]; /* whether each node so far is on the path of the committed tokens */
    right[0] = true;
    for (int32_t i = 1; i < proposal->n; i++) {
        const TreeNode *node = &proposal->nodes[i];
        bool is_known = right[node->parent] && node->depth <= n;
        right[i] = is_known && node->token == tokens[node->depth - 1];
        if (is_known) count(c, conditional(proposal, i), right[i]);
    }
}

/* Pools neighbours in the wrong order to their weighted mean, until the values never fall. */
static void make_monotone(float *value, const float *weight) {
    float mean[CALIBRATION_N_BINS], total[CALIBRATION_N_BINS];
    int32_t size[CALIBRATION_N_BINS], n = 0;
    for (int32_t i = 0; i < CALIBRATION_N_BINS; i++) {
        mean[n] = value[i], total[n] = weight[i], size[n] = 1;
        for (; n > 0 && mean[n - 1] > mean[n]; n--) {
            float both = total[n - 1] + total[n];
            mean[n - 1] = (mean[n - 1] * total[n - 1] + mean[n] * total[n]) / both;
            total[n - 1] = both;
            size[n - 1] += size[n];
        }
        n++;
    }
    for (int32_t k = 0, i = 0; k < n; k++)
        for (int32_t j = 0; j < size[k]; j++) value[i++] = mean[k];
}

void calibration_fit(Calibration *c, const Calibration *prior) {
    if (c->n_since_fit < FIT_EVERY) return;
    float weight[CALIBRATION_N_BINS];
    for (int32_t i = 0; i < CALIBRATION_N_BINS; i++) {
        weight[i] = c->n[i] + PRIOR;
        c->value[i] = (c->n_right[i] + PRIOR * (prior ? prior->value[i] : middle(i))) / weight[i];
    }
    make_monotone(c->value, weight);
    c->n_since_fit = 0;
}

float calibration_apply(const Calibration *c, float p_accept) {
    float at = sqrtf(p_accept) * CALIBRATION_N_BINS - 0.5f;
    if (at <= 0) return c->value[0];
    int32_t bin = (int32_t)at;
    if (bin >= CALIBRATION_N_BINS - 1) return c->value[CALIBRATION_N_BINS - 1];
    float part = at - (float)bin;
    return c->value[bin] + part * (c->value[bin + 1] - c->value[bin]);
}

void calibration_apply_tree(const Calibration *c, const Tree *from, Tree *into) {
    tree_reset(into, from->nodes[0].token);
    into->n = from->n;
    for (int32_t i = 1; i < from->n; i++) {
        into->nodes[i] = from->nodes[i];
        into->nodes[i].p_accept = into->nodes[from->nodes[i].parent].p_accept *
                                  calibration_apply(c, conditional(from, i));
    }
}

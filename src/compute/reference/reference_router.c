/* reference_router.c - which experts a row passes, by the logits of its router.
 *
 *     p_e      = softmax over all, or a sigmoid of each
 *     chosen   = the greatest p_e + bias_e, of the best groups alone where experts are in groups
 *     w_e      = p_e, or its share of the chosen ones' sum, times a factor
 *
 * DeepSeek-V2 (softmax) takes the groups with the greatest expert, DeepSeek-V3 (sigmoid, bias) those whose two greatest have the
 * greatest sum. */
#include "compute/reference/reference.h"

#include <math.h>

static void make_probabilities(RouterGate gate, int64_t n, double *x) {
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; gate == ROUTER_SIGMOID && i < n; i++) x[i] = 1 / (1 + exp(-x[i]));
    if (gate == ROUTER_SIGMOID) return;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < n; i++) total += x[i] = exp(x[i] - largest);
    for (int64_t i = 0; i < n; i++) x[i] /= total;
}

/* By what expert i is chosen. */
static double score_of(const RefContext *c, const LayerSpec *l, int64_t i) {
    return c->experts[i] + (l->choice_bias ? (double)l->choice_bias[i] : 0);
}

static double score_of_group(const RefContext *c, const LayerSpec *l, int64_t group) {
    int64_t n = layer_n_experts(l) / l->n_groups;
    double first = -INFINITY, second = -INFINITY;
    for (int64_t i = group * n; i < (group + 1) * n; i++) {
        double score = score_of(c, l, i);
        if (score > first) second = first, first = score;
        else if (score > second) second = score;
    }
    return l->router_gate == ROUTER_SOFTMAX || n == 1 ? first : first + second;
}

/* Whether fewer than n_groups_used groups are better; of equals the first is. */
static bool is_in_a_used_group(const RefContext *c, const LayerSpec *l, int64_t expert) {
    if (!l->n_groups) return true;
    int64_t own = expert / (layer_n_experts(l) / l->n_groups), n_better = 0;
    double score = score_of_group(c, l, own);
    for (int64_t g = 0; g < l->n_groups; g++) {
        double other = score_of_group(c, l, g);
        n_better += other > score || (other == score && g < own);
    }
    return n_better < l->n_groups_used;
}

static bool is_among(const int32_t *best, int32_t n, int32_t expert) {
    for (int32_t i = 0; i < n; i++)
        if (best[i] == expert) return true;
    return false;
}

/* Of equals the first. */
double reference_choose_experts(const RefContext *c, const LayerSpec *l, int32_t *best) {
    int64_t n = layer_n_experts(l);
    double chosen = 0, scale = l->expert_scale != 0 ? (double)l->expert_scale : 1;
    make_probabilities(l->router_gate, n, c->experts);
    for (int32_t k = 0; k < l->n_expert_used; k++) {
        best[k] = -1;
        for (int32_t i = 0; i < n; i++)
            if (!is_among(best, k, i) && (best[k] < 0 || score_of(c, l, i) > score_of(c, l, best[k])) &&
                is_in_a_used_group(c, l, i))
                best[k] = i;
        if (best[k] < 0) best[k] = k; /* only where logits are not finite */
        chosen += c->experts[best[k]];
    }
    return (l->keeps_probabilities ? 1 : chosen) / scale;
}

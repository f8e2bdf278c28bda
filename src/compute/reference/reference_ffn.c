/* reference_ffn.c - the feed-forward networks of layers in double precision, dense or experts (reference_forward.c). */
#include "compute/reference/reference.h"

#include "base/math_functions.h"

#include <math.h>
#include <string.h>

/* ---- experts ---------------------------------------------------------------------------------------- */

/* The experts of a row are chosen by the logits of its router:
 *
 *     p_e      = softmax over all, or a sigmoid of each
 *     chosen   = the greatest p_e + bias_e, from the best groups only if experts are in groups
 *     w_e      = p_e, or its part of the sum over the chosen ones, times a factor
 *
 * DeepSeek-V2 (softmax) takes the groups with the greatest expert, DeepSeek-V3 (sigmoid, bias) those whose two greatest
 * have the greatest sum. Ties go to the first. */

static void make_probabilities(RouterGate gate, int64_t n, double *x) {
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; gate == ROUTER_SIGMOID && i < n; i++) x[i] = 1 / (1 + math_exp(-x[i]));
    if (gate == ROUTER_SIGMOID) return;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < n; i++) total += x[i] = math_exp(x[i] - largest);
    for (int64_t i = 0; i < n; i++) x[i] /= total;
}

/* Returns the number by which expert i is chosen. */
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

/* Returns whether fewer than n_groups_used groups are better than that of the expert. */
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

/* Turns the logits in c->experts into probabilities and lists the chosen experts. Returns what their weights are
 * divided by. */
static double choose_experts(const RefContext *c, const LayerSpec *l, int32_t *best) {
    int64_t n = layer_n_experts(l);
    double chosen = 0, scale = l->expert_scale != 0 ? (double)l->expert_scale : 1;
    make_probabilities(l->router_gate, n, c->experts);
    for (int32_t k = 0; k < l->n_expert_used; k++) {
        best[k] = -1;
        for (int32_t i = 0; i < n; i++)
            if (!is_among(best, k, i) && (best[k] < 0 || score_of(c, l, i) > score_of(c, l, best[k])) &&
                is_in_a_used_group(c, l, i))
                best[k] = i;
        if (best[k] < 0) best[k] = k; /* this happens only if logits are not finite */
        chosen += c->experts[best[k]];
    }
    return (l->keeps_probabilities ? 1 : chosen) / scale;
}

/* Adds the squares of the inputs x [n] of an expert that a row chose. */
static void square_expert_inputs(const RefContext *c, const LayerSpec *l, InputKind kind, int32_t expert,
                                 const double *x, int64_t n) {
    if (!c->squares) return;
    double *sums = c->squares->sums[kind] + ((l - c->model->layers) * layer_n_experts(l) + expert) * n;
    for (int64_t i = 0; i < n; i++) sums[i] += x[i] * x[i];
}

static void count_choice(const RefContext *c, const LayerSpec *l, int32_t expert) {
    if (c->squares) c->squares->expert_rows[(l - c->model->layers) * layer_n_experts(l) + expert]++;
}

/* ---- feed-forward --------------------------------------------------------------------------------- */

double reference_gelu(double x) {
    return x / (1 + math_exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x))); /* sqrt(2 / pi) */
}

static double activated(Activation f, double gate, double up) {
    if (f == ACTIVATION_GELU) return reference_gelu(gate) * up;
    if (f == ACTIVATION_SILU) return reference_silu(gate) * up;
    double limit = (double)SWIGLU_LIMIT, x = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return x / (1 + math_exp(-(double)SWIGLU_ALPHA * x)) * (up + 1);
}

/* The matrices of a feed-forward network, and its biases: those of the first expert, or NULL. */
typedef struct Network {
    LayerMatrix gate, up, down;
    const float *gate_bias, *up_bias, *down_bias;
} Network;

static const float *bias_of(const float *biases, int64_t i, int64_t n) { return biases ? biases + i * n : NULL; }

/* Computes down (f(gate x) * (up x)) for rows x [n_rows] into delta, with the matrices of expert i. f(gate x) * (up x)
 * is left in c->gate. */
static void feed_forward_of(const RefContext *c, const LayerSpec *l, const Network *net, int64_t i, const double *x,
                            int32_t n_rows, double *delta) {
    int64_t n_embd = l->matrices[net->gate]->dims[0], n_ff = l->matrices[net->gate]->dims[1];
    reference_product_of(c, l, net->gate, i, x, n_rows, c->gate);
    reference_product_of(c, l, net->up, i, x, n_rows, c->up);
    reference_add_bias(bias_of(net->gate_bias, i, n_ff), n_rows, n_ff, c->gate);
    reference_add_bias(bias_of(net->up_bias, i, n_ff), n_rows, n_ff, c->up);
    for (int64_t k = 0; k < n_rows * n_ff; k++) c->gate[k] = activated(l->activation, c->gate[k], c->up[k]);
    reference_product_of(c, l, net->down, i, c->gate, n_rows, delta);
    reference_add_bias(bias_of(net->down_bias, i, n_embd), n_rows, n_embd, delta);
}

/* Replaces the normed input of a row by another norm of x, if there is one. */
static void norm_again(const RefContext *c, const double *x, const float *norm, double *normed) {
    const Hparams *h = &c->model->hparams;
    if (norm) reference_rmsnorm(x, norm, h->n_embd, (double)h->rms_eps, normed);
}

/* Adds the shared expert of one row, which reads `normed`, to delta. */
static void run_shared(const RefContext *c, const LayerSpec *l, const double *normed, double *delta) {
    int64_t n_embd = c->model->hparams.n_embd;
    double logit = 0, *out = c->expert_out;
    for (int64_t i = 0; l->shared_router && i < n_embd; i++) logit += (double)l->shared_router[i] * normed[i];
    const Network shared = {.gate = MATRIX_SHARED_GATE, .up = MATRIX_SHARED_UP, .down = MATRIX_SHARED_DOWN};
    feed_forward_of(c, l, &shared, 0, normed, 1, out);
    reference_square_inputs(c, l, INPUT_SHARED_DOWN, c->gate, l->matrices[MATRIX_SHARED_GATE]->dims[1], 1);
    reference_rmsnorm(out, l->post_shared_norm, n_embd, (double)c->model->hparams.rms_eps, out);
    double weight = l->shared_router ? 1 / (1 + math_exp(-logit)) : 1;
    for (int64_t i = 0; i < n_embd; i++) delta[i] += weight * out[i];
}

/* Writes the weighted sum of the experts of one row to delta. `normed` becomes what they read of x. */
static void run_experts(const RefContext *c, const LayerSpec *l, const double *x, double *normed, double *delta) {
    int64_t n_embd = c->model->hparams.n_embd;
    int32_t best[MODEL_MAX_EXPERTS_USED];
    norm_again(c, x, l->router_norm, normed);
    reference_product_of(c, l, MATRIX_ROUTER, 0, normed, 1, c->experts);
    norm_again(c, x, l->expert_norm, normed);
    reference_add_bias(l->router_bias, 1, layer_n_experts(l), c->experts);
    double divisor = choose_experts(c, l, best), *out = c->expert_out;
    const Network experts = {MATRIX_EXPERT_GATE, MATRIX_EXPERT_UP, MATRIX_EXPERT_DOWN,
                             l->gate_bias,       l->up_bias,       l->down_bias};
    memset(delta, 0, (size_t)n_embd * sizeof *delta);
    for (int32_t k = 0; k < l->n_expert_used; k++) {
        double weight = c->experts[best[k]] / divisor;
        for (int64_t i = 0; i < n_embd; i++) c->expert_in[i] = l->weights_inputs ? weight * normed[i] : normed[i];
        feed_forward_of(c, l, &experts, best[k], c->expert_in, 1, out);
        count_choice(c, l, best[k]);
        square_expert_inputs(c, l, INPUT_EXPERT_GATE_UP, best[k], normed, n_embd);
        square_expert_inputs(c, l, INPUT_EXPERT_DOWN, best[k], c->gate, l->matrices[MATRIX_EXPERT_GATE]->dims[1]);
        for (int64_t i = 0; i < n_embd; i++) delta[i] += l->weights_inputs ? out[i] : weight * out[i];
    }
    reference_rmsnorm(delta, l->post_expert_norm, n_embd, (double)c->model->hparams.rms_eps, delta);
}

/* Computes the feed-forward part of one row of a layer of experts: x, its norm, and what is added to it. */
static void run_row(const RefContext *c, const LayerSpec *l, const double *x, double *normed, double *delta) {
    double *shared_input = c->shared_input;
    memcpy(shared_input, normed, (size_t)c->model->hparams.n_embd * sizeof *normed);
    run_experts(c, l, x, normed, delta);
    if (l->matrices[MATRIX_SHARED_GATE]) run_shared(c, l, shared_input, delta);
}

void reference_feed_forward(const RefContext *c, const LayerSpec *l, int32_t n_rows) {
    int64_t n_embd = c->model->hparams.n_embd;
    if (l->ffn == FFN_DENSE) {
        const Network dense = {MATRIX_GATE, MATRIX_UP, MATRIX_DOWN, l->gate_bias, l->up_bias, l->down_bias};
        feed_forward_of(c, l, &dense, 0, c->normed, n_rows, c->delta);
        reference_square_inputs(c, l, INPUT_DOWN, c->gate, l->matrices[MATRIX_GATE]->dims[1], n_rows);
    }
    for (int32_t i = 0; l->ffn == FFN_EXPERTS && i < n_rows; i++)
        run_row(c, l, c->x + i * n_embd, c->normed + i * n_embd, c->delta + i * n_embd);
}

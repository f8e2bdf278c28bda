/* head_loss.c - the loss of a drafter's logits, only for the positions in the loss mask.
 *
 * Products with the vocabulary are most of the cost of training a drafter. So the positions in the loss mask are
 * gathered first, and a prompt, which is outside the mask, costs none of them:
 *
 *     loss mask   0 0 0 1 1 0 1   positions 3 4 6    the target's distributions there, computed once: softmax(head h_p)
 *                         step 2   rows 1 2 4    of the drafter's second step
 *
 * All steps of a drafter are compared with that one distribution, one step after the other. Only HEAD_LOSS_ROWS rows of
 * logits exist at a time.
 *
 * Test: test_train_drafters.c and test_train_heads.c, in double against finite differences, with every network. */
#include "train/nets.h"

#include "base/math_functions.h"
#include "base/rng.h"
#include "draft/learned/learned.h"
#include "train/ops.h"

#include <string.h>

/* Returns the weight of a step in the mean over the steps. */
static double weight_of(const HeadLossOptions *o, int32_t step) {
    return o->step_weights ? o->step_weights[step - 1] : 1;
}

static double sum_of_weights(const HeadLossOptions *o) {
    double sum = 0;
    for (int32_t step = 1; step <= o->n_steps; step++) sum += weight_of(o, step);
    return sum;
}

static double factor_of(const HeadLossOptions *o) { return o->logit_factor > 0 ? o->logit_factor : 1; }

int head_loss_open(HeadLoss *h, const HeadLossOptions *options, int64_t C, int64_t V, fr_error *err) {
    int64_t rows = HEAD_LOSS_ROWS;
    int64_t D = options->own_of ? options->n_own : V;
    bool has_slopes = options->logit_cap > 0 || factor_of(options) != 1;
    int64_t of_slopes = has_slopes ? rows * D : 0;
    *h = (HeadLoss){.options = *options,
                    .C = C,
                    .V = V,
                    .D = D,
                    .sum_of_weights = sum_of_weights(options),
                    .has_slopes = has_slopes};
    const ArenaItem items[] = {
        ARENA_ITEM(&h->dist, rows * V),    ARENA_ITEM(&h->logits, rows * V),    ARENA_ITEM(&h->dlogits, rows * V),
        ARENA_ITEM(&h->x, rows * C),       ARENA_ITEM(&h->dx, rows * C),        ARENA_ITEM(&h->target_hidden, rows * C),
        ARENA_ITEM(&h->loss, rows),        ARENA_ITEM(&h->dloss, rows),         ARENA_ITEM(&h->log_dist, rows),
        ARENA_ITEM(&h->slopes, of_slopes), ARENA_ITEM(&h->dproduct, of_slopes),
    };
    return arena_take(&h->arena, items, ARENA_COUNT(items), "the logits of a drafter's loss", err);
}

void head_loss_close(HeadLoss *h) { arena_free(&h->arena); }

/* out: [n][C]; row i is that of positions[i] - back */
static void gather(real *out, const real *rows, const int32_t *positions, int32_t n, int32_t back, int64_t C) {
    for (int32_t i = 0; i < n; i++) memcpy(out + i * C, rows + (positions[i] - back) * C, (size_t)C * sizeof *out);
}

static int64_t most_probable(const real *p, int64_t n) {
    real max = real_max(p, n);
    int64_t i = 0;
    while (i < n - 1 && !(p[i] == max)) i++;
    return i;
}

/* Takes the drafter's tokens from the distribution p over all tokens. Returns their mean log probability, by which the
 * cross-entropy becomes m KL(p / m || q), where m is the sum of their probabilities. */
static real take_own(const HeadLoss *h, real *out, const real *p) {
    real sum = 0, mean = 0;
    for (int64_t i = 0; i < h->V; i++)
        if (h->options.own_of[i] >= 0) out[h->options.own_of[i]] = p[i];
    for (int64_t i = 0; i < h->D; i++) {
        sum += out[i];
        if (out[i] > 0) mean += out[i] * (real)math_log((double)out[i]);
    }
    return sum > 0 ? mean - sum * (real)math_log((double)sum) : 0;
}

/* Bounds n logits: x becomes cap tanh(x / cap). */
static void bound(real *logits, int64_t n, double cap) {
    for (int64_t i = 0; cap > 0 && i < n; i++) logits[i] = (real)(cap * math_tanh((double)logits[i] / cap));
}

/* Computes the target's distributions at the current positions. */
static void find_dist(HeadLoss *h, const TrainSequence *seq) {
    gather(h->target_hidden, seq->hidden, h->positions, h->n, 0, h->C);
    linear_forward(h->logits, h->target_hidden, seq->head, NULL, h->n, h->C, h->V);
    bound(h->logits, h->n * h->V, h->options.target_cap);
    const int32_t *own_of = h->options.own_of;
    for (int32_t i = 0; i < h->n; i++) {
        real *p = own_of ? h->dlogits : h->dist + i * h->V, *logits = h->logits + i * h->V;
        real log_sum = real_softmax(p, logits, h->V);
        h->best[i] = (int32_t)most_probable(p, h->V);
        h->log_dist[i] = real_dot(p, logits, h->V) - log_sum; /* log p_k = logit_k - log_sum */
        if (!own_of) continue;
        h->best[i] = own_of[h->best[i]];
        h->log_dist[i] = take_own(h, h->dist + i * h->D, p);
    }
}

bool head_loss_next(HeadLoss *h, const TrainSequence *seq, int32_t *from) {
    h->n = 0;
    for (; *from < seq->T && h->n < HEAD_LOSS_ROWS; ++*from)
        if (seq->loss_mask[*from]) h->positions[h->n++] = *from;
    if (h->n == 0) return false;
    find_dist(h, seq);
    return true;
}

void head_loss_at(HeadLoss *h, const TrainSequence *seq, const int32_t *positions, int32_t n) {
    h->n = n;
    memcpy(h->positions, positions, (size_t)n * sizeof *positions);
    find_dist(h, seq);
}

bool head_loss_next_drawn(HeadLoss *h, const TrainSequence *seq, const int32_t *places, int32_t n, int32_t step,
                          int32_t *from) {
    int32_t positions[HEAD_LOSS_ROWS], n_found = 0;
    for (; *from < n && n_found < HEAD_LOSS_ROWS; ++*from) {
        int32_t p = places[*from] + step;
        if (p < seq->T && seq->loss_mask[p]) positions[n_found++] = p;
    }
    if (n_found) head_loss_at(h, seq, positions, n_found);
    return n_found > 0;
}

/* Returns how many tokens rank before token k by x, ties going to the lower token. */
static int64_t rank_of(const real *x, int64_t n, int64_t k) {
    int64_t rank = 0;
    for (int64_t i = 0; i < n; i++) rank += i < k ? x[i] >= x[k] : x[i] > x[k];
    return rank;
}

/* Returns the logit of the greatest probability of softmax(logits / LEARNED_MIN_TEMPERATURE), at which drafters
 * estimate what a greedy target chooses. */
static real find_margin(const real *logits, int64_t n) {
    const real scale = (real)(1 / (double)LEARNED_MIN_TEMPERATURE), max = real_max(logits, n);
    real others = 0;
    for (int64_t i = 0; i < n; i++) others += real_exp((logits[i] - max) * scale);
    others -= 1;
    real least = (real)math_exp(-HEAD_LOSS_MAX_MARGIN);
    return -(real)math_log(others > least ? others : least);
}

void head_loss_count(HeadLoss *h, int32_t step, int32_t i, int64_t rank, TrainSums *sums) {
    sums->of[step - 1]++;
    sums->right[step - 1] += rank == 0;
    if (rank < TRAIN_RANKS) sums->at_rank[step - 1][rank]++;
    h->is_right[i] = rank == 0;
}

static void count_correct(HeadLoss *h, int32_t step, TrainSums *sums) {
    int32_t skipped = head_loss_skipped(h, step);
    for (int32_t i = skipped; i < h->n; i++) {
        const real *logits = h->logits + (i - skipped) * h->D;
        int64_t rank = h->best[i] < 0 ? TRAIN_RANKS : rank_of(logits, h->D, h->best[i]);
        head_loss_count(h, step, i, rank, sums);
        if (h->options.has_margins) h->margin[i] = find_margin(logits, h->D);
    }
}

double head_loss_share(const HeadLoss *h, int32_t step) { return weight_of(&h->options, step) / h->sum_of_weights; }

/* Adds `part` times the rows' losses, which the ops left in h->loss. */
static void add_losses(const HeadLoss *h, int32_t step, int32_t n, double part, TrainSums *sums) {
    part *= weight_of(&h->options, step);
    for (int32_t i = 0; i < n; i++) sums->loss += part * (double)h->loss[i] / h->sum_of_weights;
}

static void set_dloss(HeadLoss *h, int32_t step, int32_t n, double part, double weight) {
    part *= weight_of(&h->options, step);
    for (int32_t i = 0; i < n; i++) h->dloss[i] = (real)(part * weight / h->sum_of_weights);
}

int32_t head_loss_label(const HeadLoss *h, const TrainSequence *seq, int32_t i) {
    int32_t token = seq->tokens[h->positions[i] + 1];
    return h->options.own_of ? h->options.own_of[token] : token;
}

void head_loss_tokens(HeadLoss *h, const TrainSequence *seq, int32_t step, bool wants_gradient, double weight,
                      TrainSums *sums) {
    const HeadLossOptions *o = &h->options;
    int32_t skipped = head_loss_skipped(h, step), n = h->n - skipped, next[HEAD_LOSS_ROWS] = {0};
    const real *dist = h->dist + skipped * h->D;
    for (int32_t i = 0; i < n; i++)
        if (head_loss_label(h, seq, i + skipped) >= 0) next[i] = head_loss_label(h, seq, i + skipped);
    if (o->hard_labels) {
        cross_entropy_forward(h->loss, h->logits, h->logits, next, n, h->D);
        for (int32_t i = 0; i < n; i++) h->loss[i] = head_loss_label(h, seq, i + skipped) < 0 ? 0 : h->loss[i];
    } else {
        soft_cross_entropy_forward(h->loss, h->logits, h->logits, dist, n, h->D);
        for (int32_t i = 0; i < n; i++) h->loss[i] += h->log_dist[i + skipped];
    }
    add_losses(h, step, n, o->token_weight, sums);
    if (o->tv_weight > 0) {
        total_variation_forward(h->loss, h->logits, dist, n, h->D);
        add_losses(h, step, n, o->tv_weight, sums);
    }
    if (!wants_gradient) return;
    memset(h->dlogits, 0, (size_t)(n * h->D) * sizeof(real));
    set_dloss(h, step, n, o->token_weight, weight);
    for (int32_t i = 0; o->hard_labels && i < n; i++)
        if (head_loss_label(h, seq, i + skipped) < 0) h->dloss[i] = 0;
    if (o->hard_labels) cross_entropy_backward(h->dlogits, h->dloss, h->logits, next, n, h->D);
    else soft_cross_entropy_backward(h->dlogits, h->dloss, h->logits, dist, n, h->D);
    if (o->tv_weight > 0) {
        set_dloss(h, step, n, o->tv_weight, weight);
        total_variation_backward(h->dlogits, h->dloss, h->logits, dist, n, h->D);
    }
}

static bool has_regression(const HeadLossOptions *o, int32_t step) {
    return o->hidden_weight > 0 && (o->n_hidden_steps == 0 || step <= o->n_hidden_steps);
}

static void hidden_loss(HeadLoss *h, int32_t step, int32_t skipped, const real *x, real *dx, double weight,
                        TrainSums *sums) {
    const HeadLossOptions *o = &h->options;
    int32_t n = h->n - skipped;
    const real *target = h->target_hidden + skipped * h->C;
    regression_forward(o->regression, h->loss, x, target, n, h->C);
    add_losses(h, step, n, o->hidden_weight, sums);
    if (!dx) return;
    set_dloss(h, step, n, o->hidden_weight, weight);
    regression_backward(o->regression, dx, h->dloss, x, target, n, h->C);
}

int32_t head_loss_skipped(const HeadLoss *h, int32_t step) {
    int32_t n = 0; /* positions are ascending */
    while (n < h->n && h->positions[n] < step) n++;
    return n;
}

/* Makes logits of n products, and keeps their derivatives with respect to these. */
static void finish_products(HeadLoss *h, int64_t n) {
    double cap = h->options.logit_cap, factor = factor_of(&h->options);
    if (!h->has_slopes) return;
    for (int64_t i = 0; i < n; i++) h->logits[i] *= (real)factor;
    bound(h->logits, n, cap);
    for (int64_t i = 0; i < n; i++) {
        double part = cap > 0 ? (double)h->logits[i] / cap : 0;
        h->slopes[i] = (real)(factor * (1 - part * part));
    }
}

int32_t head_loss_logits(HeadLoss *h, int32_t step, const real *x, int64_t width, const real *w, const real *info,
                         TrainSums *sums) {
    int32_t skipped = head_loss_skipped(h, step), n = h->n - skipped;
    if (step == 1) sums->n += h->n;
    if (sums->n_heads < step) sums->n_heads = step;
    if (n == 0) return 0;
    linear_forward(h->logits, x + skipped * width, w, NULL, n, width, h->D);
    finish_products(h, n * h->D);
    for (int64_t i = 0; info && i < n * h->D; i++) h->logits[i] += info[skipped * h->D + i];
    return n;
}

void head_loss_back(HeadLoss *h, int32_t step, const real *x, int64_t width, const real *w, real *dx, real *dw,
                    real *dinfo) {
    int32_t skipped = head_loss_skipped(h, step), n = h->n - skipped;
    const real *dproduct = h->has_slopes ? h->dproduct : h->dlogits;
    for (int64_t i = 0; h->has_slopes && i < n * h->D; i++) h->dproduct[i] = h->dlogits[i] * h->slopes[i];
    linear_backward(dx + skipped * width, dw, NULL, dproduct, x + skipped * width, w, n, width, h->D);
    for (int64_t i = 0; dinfo && i < n * h->D; i++) dinfo[skipped * h->D + i] += h->dlogits[i];
}

void head_loss_rows(HeadLoss *h, const TrainSequence *seq, int32_t step, const real *x, int64_t width, const real *w,
                    const real *info, real *dx, real *dw, real *dinfo, double weight, TrainSums *sums) {
    int32_t skipped = head_loss_skipped(h, step);
    if (head_loss_logits(h, step, x, width, w, info, sums) == 0) return;
    count_correct(h, step, sums);
    head_loss_tokens(h, seq, step, dx != NULL, weight, sums);
    if (has_regression(&h->options, step))
        hidden_loss(h, step, skipped, x + skipped * width, dx ? dx + skipped * width : NULL, weight, sums);
    if (dx) head_loss_back(h, step, x, width, w, dx, dw, dinfo);
}

void head_loss_step(HeadLoss *h, const TrainSequence *seq, int32_t step, const real *x, const real *w, const real *info,
                    real *dx, real *dw, real *dinfo, double weight, TrainSums *sums) {
    int32_t skipped = head_loss_skipped(h, step), n = h->n - skipped;
    const int32_t *positions = h->positions + skipped;
    gather(h->x + skipped * h->C, x, positions, n, step, h->C);
    if (dx) memset(h->dx, 0, (size_t)(h->n * h->C) * sizeof(real));
    head_loss_rows(h, seq, step, h->x, h->C, w, info, dx ? h->dx : NULL, dw, dinfo, weight, sums);
    for (int32_t i = 0; dx && i < n; i++)
        for (int64_t k = 0; k < h->C; k++) dx[(positions[i] - step) * h->C + k] += h->dx[(i + skipped) * h->C + k];
}

/* ---- drawn places --------------------------------------------------------------------------------- */

/* A position is taken with the probability of the places left among the positions left. */
int32_t anchors_draw(const TrainSequence *seq, int32_t *positions, int32_t n, int32_t n_wanted) {
    int32_t n_taken = 0;
    if (n_wanted > n) n_wanted = n;
    for (int32_t i = 0; i < n && n_taken < n_wanted; i++) {
        double u = rng_uniform(seq->seed, RNG_ANCHORS, (uint64_t)seq->i_sequence, (uint32_t)i);
        if (u * (n - i) < n_wanted - n_taken) positions[n_taken++] = positions[i];
    }
    return n_taken;
}

void anchors_add_sums(const TrainSums *drawn, double ratio, TrainSums *sums) {
    sums->loss += ratio * drawn->loss;
    if (sums->n_heads < drawn->n_heads) sums->n_heads = drawn->n_heads;
    for (int32_t i = 0; i < drawn->n_heads; i++) {
        sums->right[i] += drawn->right[i];
        sums->of[i] += drawn->of[i];
        for (int32_t k = 0; k < TRAIN_RANKS; k++) sums->at_rank[i][k] += drawn->at_rank[i][k];
    }
}

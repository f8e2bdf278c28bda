/* dflash_selector.c - the selector of DFlash 2 in training (src/draft/learned/token_selector.c has the idea). At a
 * position with the logits l and the hidden state h, after the token a, its candidates are the K tokens of the greatest
 * logits. A candidate b has the score
 *
 *     s_b = l_b + sum over r of A[a][r] (H h)[r] B[b][r],          q = softmax of the scores over the candidates
 *
 * where a is the true token before the position, as published trainings have it. The target's distribution p is
 * restricted to the candidates and weighted by their probability m there, as with a vocabulary of the drafter's own
 * (head_loss.c):
 *
 *     loss = m KL(p / m || q),     dloss / ds_b = m q_b - p_b
 *
 * With hard labels it is -log q of the token in the data, and 0 where that token is not a candidate. The loss is added
 * to that of the logits, which has to bring the right token among the candidates, and its gradient flows into logits
 * and hidden state as well.
 *
 * Initial values: B is zeros, so that the scores are the logits, and A and H h are about 1. Test: test_train_drafters.c
 * by finite differences in double, test_train_dflash.c against the drafter. */
#include "draft/learned/learned_files.h"
#include "train/dflash_net.h"

#include <stdio.h>
#include <string.h>

NetTensor dflash_selector_tensor(const DflashNet *n, int32_t i) {
    int64_t r = n->selector_rank;
    NetTensor t = {.n_rows = n->V, .n = r, .start = NET_NORMAL, .std = 1, .is_addition = n->adds_selector};
    static const char *const names[] = {DFLASH_SELECTOR_BEFORE, DFLASH_SELECTOR_AFTER,
                                        DFLASH_SELECTOR_HIDDEN ".weight"};
    if (i == SELECTOR_AFTER) t.start = NET_ZEROS, t.std = 0;
    if (i == SELECTOR_HIDDEN) t.n_rows = r, t.n = n->C, t.std = 1 / sqrt((double)n->C);
    snprintf(t.name, sizeof t.name, "%s", names[i]);
    return t;
}

int dflash_selector_open(DflashSelector *s, const DflashNet *n, fr_error *err) {
    int64_t rows = HEAD_LOSS_ROWS, K = n->selector_top, r = n->selector_rank;
    const ArenaItem items[] = {ARENA_ITEM(&s->candidates, rows * K), ARENA_ITEM(&s->scores, rows * K),
                               ARENA_ITEM(&s->probs, rows * K),      ARENA_ITEM(&s->dscores, rows * K),
                               ARENA_ITEM(&s->log_sum, rows),        ARENA_ITEM(&s->before, rows * r),
                               ARENA_ITEM(&s->state, rows * r),      ARENA_ITEM(&s->dstate, rows * r)};
    *s = (DflashSelector){0};
    return r ? arena_take(&s->arena, items, ARENA_COUNT(items), "the selector of a drafter", err) : FR_OK;
}

void dflash_selector_close(DflashSelector *s) { arena_free(&s->arena); }

/* Finds the k greatest of x [n], the greatest first, ties going to the lower index. */
static void find_greatest(const real *x, int64_t n, int32_t k, int32_t *out) {
    int32_t n_found = 0;
    for (int32_t i = 0; i < n; i++) {
        if (n_found == k && x[i] <= x[out[k - 1]]) continue;
        int32_t at = n_found < k ? n_found++ : k - 1;
        for (; at > 0 && x[i] > x[out[at - 1]]; at--) out[at] = out[at - 1];
        out[at] = i;
    }
}

/* Returns the place of a token among the candidates of a row; -1: it is none of them. */
static int32_t place_of(const DflashNet *n, const int32_t *candidates, int32_t token) {
    for (int32_t k = 0; k < n->selector_top; k++)
        if (candidates[k] == token) return k;
    return -1;
}

/* Counts the rank of the target's best token by the scores. A token that is not a candidate is never drafted. */
static void count_row(const DflashSelector *s, const DflashNet *n, HeadLoss *h, int32_t step, int32_t i,
                      TrainSums *sums) {
    int32_t K = n->selector_top, place = place_of(n, s->candidates + i * K, h->best[i]);
    const real *scores = s->scores + i * K;
    int64_t rank = place < 0 ? TRAIN_RANKS : 0;
    for (int32_t k = 0; place >= 0 && k < K; k++) rank += scores[k] > scores[place];
    head_loss_count(h, step, i, rank, sums);
}

void dflash_selector_forward(DflashSelector *s, const DflashNet *n, real *const *w, HeadLoss *h,
                             const TrainSequence *seq, int32_t step, const real *x, TrainSums *sums) {
    int64_t K = n->selector_top, r = n->selector_rank;
    linear_forward(s->state, x, w[SELECTOR_HIDDEN], NULL, h->n, n->C, r);
    for (int32_t i = 0; i < h->n; i++) {
        const real *logits = h->logits + i * h->D, *state = s->state + i * r;
        real *before = s->before + i * r, *scores = s->scores + i * K;
        int32_t *candidates = s->candidates + i * K;
        memcpy(before, w[SELECTOR_BEFORE] + seq->tokens[h->positions[i]] * r, (size_t)r * sizeof *before);
        find_greatest(logits, h->D, n->selector_top, candidates);
        for (int64_t k = 0; k < K; k++) {
            const real *after = w[SELECTOR_AFTER] + dflash_token(n, candidates[k]) * r;
            scores[k] = logits[candidates[k]];
            for (int64_t c = 0; c < r; c++) scores[k] += before[c] * state[c] * after[c];
        }
        s->log_sum[i] = real_softmax(s->probs + i * K, scores, K);
        count_row(s, n, h, step, i, sums);
    }
}

/* Returns the loss of row i, and sets the derivatives of its scores. */
static real loss_of_row(DflashSelector *s, const DflashNet *n, const HeadLoss *h, const TrainSequence *seq, int32_t i) {
    int32_t K = n->selector_top, *candidates = s->candidates + i * K;
    const real *q = s->probs + i * K, *scores = s->scores + i * K;
    real *dscores = s->dscores + i * K, mass = 0, loss = 0;
    if (n->loss.hard_labels) {
        int32_t label = head_loss_label(h, seq, i), place = label < 0 ? -1 : place_of(n, candidates, label);
        for (int32_t k = 0; k < K; k++) dscores[k] = place < 0 ? 0 : q[k] - (k == place);
        return place < 0 ? 0 : s->log_sum[i] - scores[place];
    }
    const real *p = h->dist + i * h->D;
    for (int32_t k = 0; k < K; k++) mass += p[candidates[k]];
    real log_mass = mass > 0 ? (real)math_log((double)mass) : 0;
    for (int32_t k = 0; k < K; k++) {
        real of_target = p[candidates[k]];
        dscores[k] = mass * q[k] - of_target;
        if (of_target > 0) /* log(p / m) - log q */
            loss += of_target * ((real)math_log((double)of_target) - log_mass + s->log_sum[i] - scores[k]);
    }
    return loss;
}

/* Adds the gradient of row i to the logits, to A and B, and to s->dstate. */
static void row_back(DflashSelector *s, const DflashNet *n, real *const *w, real *const *dw, HeadLoss *h,
                     const TrainSequence *seq, int32_t i) {
    int64_t K = n->selector_top, r = n->selector_rank;
    const real *before = s->before + i * r, *state = s->state + i * r;
    real *dbefore = dw[SELECTOR_BEFORE] + seq->tokens[h->positions[i]] * r, *dstate = s->dstate + i * r;
    for (int64_t k = 0; k < K; k++) {
        real d = s->dscores[i * K + k];
        const int64_t at = dflash_token(n, s->candidates[i * K + k]) * r;
        const real *after = w[SELECTOR_AFTER] + at;
        real *dafter = dw[SELECTOR_AFTER] + at;
        h->dlogits[i * h->D + s->candidates[i * K + k]] += d;
        for (int64_t c = 0; c < r; c++) {
            dbefore[c] += d * state[c] * after[c];
            dstate[c] += d * before[c] * after[c];
            dafter[c] += d * before[c] * state[c];
        }
    }
}

void dflash_selector_learn(DflashSelector *s, const DflashNet *n, real *const *w, real *const *dw, HeadLoss *h,
                           const TrainSequence *seq, int32_t step, const real *x, real *dx, double weight,
                           TrainSums *sums) {
    int64_t K = n->selector_top, r = n->selector_rank;
    double part = n->selector_weight * n->loss.token_weight * head_loss_share(h, step);
    for (int32_t i = 0; i < h->n; i++) sums->loss += part * (double)loss_of_row(s, n, h, seq, i);
    if (!dx) return;
    memset(s->dstate, 0, (size_t)(h->n * r) * sizeof(real));
    for (int64_t k = 0; k < h->n * K; k++) s->dscores[k] *= (real)(part * weight);
    for (int32_t i = 0; i < h->n; i++) row_back(s, n, w, dw, h, seq, i);
    linear_backward(dx, dw[SELECTOR_HIDDEN], NULL, s->dstate, x, w[SELECTOR_HIDDEN], h->n, n->C, r);
}

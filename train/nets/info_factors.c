/* info_factors.c - token info: a bias on the logits that depends on the last token alone.
 *
 * The problem. A layer that continues from hidden states does not know which token was sampled, though much of what
 * follows depends on it ("New" - "York"). Lyanna (section 4) adds this information at the logits: at a position p with
 * token x_p,
 *
 *     info = gain * RMSNorm(E[x_p] W1 W2)         [H] x [H][rank] x [rank][V]
 *     distribution of x_{p+1} = softmax(W_head f + info)
 *
 * The result is a V x V table of low rank. It depends on nothing but the token, so a drafter stores the rows and
 * multiplies nothing.
 *
 * Hot tokens. With a large vocabulary only the most frequent ("hot") tokens have rows and columns in the table. A token
 * that is not hot has a row of zeros, and its column is zero.
 *
 *     positions  0    1    2          hot: 3 8            info         0  1  2  3  4  ..  8
 *     tokens     8    5    3          rows 0 2            position 0            .         .
 *                                                         position 1     zeros: 5 is not hot
 *                                                         position 2            .         .
 *
 * The initial gain. RMSNorm makes the numbers of the table as large as the gain whatever the factors are, and at first
 * they are noise. The gradient of the factors is proportional to the gain: with a gain of 1 they learn at once, and
 * noise of size 1 among logits whose best is several above the others is soon unlearned.
 *
 * Test: test_train_drafters.c and test_train_heads.c, with the networks of lyanna, eagle and redrafter. */
#include "train/nets/info_factors.h"

#include "draft/learned/layer_names.h"
#include "train/ops/op_linear.h"
#include "train/ops/op_rmsnorm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t width_of(const InfoShape *s) { return s->n_hot ? s->n_hot : s->V; }

int32_t info_n_tensors(const InfoShape *s) { return s->rank ? INFO_TENSORS : 0; }

NetTensor info_tensor(const InfoShape *s, int32_t i) {
    static const char *const names[] = {TOKEN_INFO_DOWN ".weight", TOKEN_INFO_UP ".weight", TOKEN_INFO_GAIN};
    const int64_t n_rows[] = {s->rank, width_of(s), 0}, n[] = {s->C, s->rank, width_of(s)};
    NetTensor t = {.n_rows = n_rows[i], .n = n[i], .start = i == INFO_GAIN ? NET_CONSTANT : NET_NORMAL};
    t.std = i == INFO_GAIN ? 1 : 1 / sqrt((double)t.n);
    snprintf(t.name, sizeof t.name, "%s.%s", s->method, names[i]);
    return t;
}

void info_set_keys(const InfoShape *s, GgufWriter *w) {
    char key[128];
    if (s->rank == 0) return;
    snprintf(key, sizeof key, DRAFTER_KEY("%s." TOKEN_INFO_KEY_RANK), s->method);
    gguf_set_u32(w, key, (uint32_t)s->rank);
    snprintf(key, sizeof key, DRAFTER_KEY("%s." TOKEN_INFO_KEY_HOT_TOKENS), s->method);
    if (s->n_hot) gguf_set_i32s(w, key, s->hot, s->n_hot);
}

int info_open(InfoActs *a, const InfoShape *s, fr_error *err) {
    *a = (InfoActs){0};
    if (s->rank == 0) return FR_OK;
    int64_t n = HEAD_LOSS_ROWS, U = width_of(s);
    const ArenaItem items[] = {
        ARENA_ITEM(&a->x, n * s->C),     ARENA_ITEM(&a->low, n * s->rank), ARENA_ITEM(&a->dlow, n * s->rank),
        ARENA_ITEM(&a->up, n * U),       ARENA_ITEM(&a->normed, n * U),    ARENA_ITEM(&a->inverse_rms, n),
        ARENA_ITEM(&a->dup, n * U),      ARENA_ITEM(&a->dnormed, n * U),   ARENA_ITEM(&a->info, n * s->V),
        ARENA_ITEM(&a->dinfo, n * s->V),
    };
    return arena_take(&a->arena, items, ARENA_COUNT(items), "the activations of token info", err);
}

void info_close(InfoActs *a) { arena_free(&a->arena); }

static int compare(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool has_row(const InfoShape *s, int32_t token) {
    return s->n_hot == 0 || bsearch(&token, s->hot, (size_t)s->n_hot, sizeof *s->hot, compare) != NULL;
}

/* The token of the table's column i. */
static int64_t token_of_column(const InfoShape *s, int64_t i) { return s->n_hot ? s->hot[i] : i; }

void info_forward(InfoActs *a, const InfoShape *s, real *const *w, const HeadLoss *h, const TrainSequence *seq) {
    int64_t C = s->C, U = width_of(s), V = s->V;
    a->n = 0;
    if (s->rank == 0) return;
    for (int32_t i = 0; i < h->n; i++) {
        int32_t token = seq->tokens[h->positions[i]];
        if (!has_row(s, token)) continue;
        memcpy(a->x + a->n * C, seq->embd + token * C, (size_t)C * sizeof *a->x);
        a->rows[a->n++] = i;
    }
    memset(a->info, 0, (size_t)(h->n * V) * sizeof *a->info);
    memset(a->dinfo, 0, (size_t)(h->n * V) * sizeof *a->dinfo);
    if (a->n == 0) return;
    linear_forward(a->low, a->x, w[INFO_DOWN], NULL, a->n, C, s->rank);
    linear_forward(a->up, a->low, w[INFO_UP], NULL, a->n, s->rank, U);
    rmsnorm_forward(a->normed, a->inverse_rms, a->up, w[INFO_GAIN], a->n, U, (real)s->rms_eps);
    for (int32_t i = 0; i < a->n; i++)
        for (int64_t k = 0; k < U; k++) a->info[a->rows[i] * V + token_of_column(s, k)] = a->normed[i * U + k];
}

void info_backward(InfoActs *a, const InfoShape *s, real *const *w, real *const *dw) {
    int64_t U = width_of(s), V = s->V;
    if (a->n == 0) return;
    for (int32_t i = 0; i < a->n; i++)
        for (int64_t k = 0; k < U; k++) a->dnormed[i * U + k] = a->dinfo[a->rows[i] * V + token_of_column(s, k)];
    memset(a->dup, 0, (size_t)(a->n * U) * sizeof *a->dup);
    memset(a->dlow, 0, (size_t)(a->n * s->rank) * sizeof *a->dlow);
    rmsnorm_backward(a->dup, dw[INFO_GAIN], a->dnormed, a->up, w[INFO_GAIN], a->inverse_rms, a->n, U);
    linear_backward(a->dlow, dw[INFO_UP], NULL, a->dup, a->low, w[INFO_UP], a->n, s->rank, U);
    linear_backward(NULL, dw[INFO_DOWN], NULL, a->dlow, a->x, w[INFO_DOWN], a->n, s->C, s->rank);
}

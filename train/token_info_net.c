/* token_info_net.c - token info: a bias on the logits that depends only on the last token.
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
#include "draft/learned/learned_files.h"
#include "train/nets.h"
#include "train/ops.h"

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

/* Returns the token of the table's column i. */
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

/* Token info gated by the state: a bias on the logits that depends on the last token and on the state.
 *
 * The problem. Token info (above) is the same wherever a token occurs: the bias after "New" does not know whether the
 * text is about cities or about years. The chain of states knows that, but must not read tokens, because then it would
 * be valid for one path only.
 *
 * The idea. A bilinear form of low rank brings the two together after the chain. With the state f that the chain
 * predicts for position p, and the token x_p,
 *
 *     bias = U ((P f) * (Q E[x_p]))        P [rank][C], Q [rank][C], U [V][rank]; * is elementwise
 *
 * is added to W_head f + info. P f is one product for each step of the chain, and Q E[x] is a table, so a drafter
 * computes a product of rank numbers and one with U for each node that it expands; the chain stays free of tokens.
 *
 * Initial values. U is zero, so at first the bias is zero and the gradient of P and Q as well; that of U is not,
 * because P f and Q E[x] have a mean square of about 1.
 *
 * Backward pass: with the derivative g of the bias, dU = g^T (a * b), and through the product with U: da = d * b and db
 * = d * a, where a = P f, b = Q E[x]. Each step has its own a; b is shared by the steps, so db is the sum over them.
 *
 * Test: test_train_drafters.c by finite differences, test_train_unroll.c against the drafter. */

int32_t gate_n_tensors(const GateShape *s) { return s->rank ? GATE_TENSORS : 0; }

NetTensor gate_tensor(const GateShape *s, int32_t i) {
    static const char *const names[] = {GATE_STATE_FACTOR ".weight", GATE_TOKEN_FACTOR ".weight",
                                        GATE_OUTPUT ".weight"};
    const int64_t n_rows[] = {s->rank, s->rank, s->V}, n[] = {s->C, s->C, s->rank};
    NetTensor t = {.n_rows = n_rows[i], .n = n[i], .start = i == GATE_UP ? NET_ZEROS : NET_NORMAL};
    if (i == GATE_STATE) t.std = 1 / sqrt((double)s->C);
    if (i == GATE_TOKEN) t.std = s->token_std;
    snprintf(t.name, sizeof t.name, "%s.%s", s->method, names[i]);
    return t;
}

void gate_set_keys(const GateShape *s, GgufWriter *w) {
    char key[128];
    if (s->rank == 0) return;
    snprintf(key, sizeof key, DRAFTER_KEY("%s." GATE_KEY_RANK), s->method);
    gguf_set_u32(w, key, (uint32_t)s->rank);
}

int gate_open(GateActs *a, const GateShape *s, fr_error *err) {
    *a = (GateActs){0};
    if (s->rank == 0) return FR_OK;
    int64_t n = HEAD_LOSS_ROWS, R = n * s->rank;
    const ArenaItem items[] = {
        ARENA_ITEM(&a->embd, n * s->C), ARENA_ITEM(&a->token, R),        ARENA_ITEM(&a->dtoken, R),
        ARENA_ITEM(&a->f, n * s->C),    ARENA_ITEM(&a->df, n * s->C),    ARENA_ITEM(&a->state, R),
        ARENA_ITEM(&a->dstate, R),      ARENA_ITEM(&a->product, R),      ARENA_ITEM(&a->dproduct, R),
        ARENA_ITEM(&a->info, n * s->V), ARENA_ITEM(&a->dinfo, n * s->V),
    };
    return arena_take(&a->arena, items, ARENA_COUNT(items), "the activations of gated token info", err);
}

void gate_close(GateActs *a) { arena_free(&a->arena); }

static void set_zero(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

static void multiply(real *out, const real *a, const real *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] * b[i];
}

void gate_forward_tokens(GateActs *a, const GateShape *s, real *const *w, const HeadLoss *h, const TrainSequence *seq) {
    if (s->rank == 0) return;
    for (int32_t i = 0; i < h->n; i++)
        memcpy(a->embd + (int64_t)i * s->C, seq->embd + (int64_t)seq->tokens[h->positions[i]] * s->C,
               (size_t)s->C * sizeof *a->embd);
    linear_forward(a->token, a->embd, w[GATE_TOKEN], NULL, h->n, s->C, s->rank);
    set_zero(a->dtoken, (int64_t)h->n * s->rank);
}

void gate_forward_step(GateActs *a, const GateShape *s, real *const *w, const HeadLoss *h, int32_t step, const real *f,
                       const real *info) {
    int64_t skipped = head_loss_skipped(h, step), n = h->n - skipped, C = s->C, V = s->V, R = s->rank;
    if (s->rank == 0) return;
    for (int64_t i = 0; i < n; i++)
        memcpy(a->f + i * C, f + (h->positions[i + skipped] - step) * C, (size_t)C * sizeof *a->f);
    set_zero(a->info, h->n * V), set_zero(a->dinfo, h->n * V);
    if (n == 0) return;
    linear_forward(a->state, a->f, w[GATE_STATE], NULL, n, C, R);
    multiply(a->product, a->state, a->token + skipped * R, n * R);
    linear_forward(a->info + skipped * V, a->product, w[GATE_UP], NULL, n, R, V);
    for (int64_t i = 0; info && i < h->n * V; i++) a->info[i] += info[i];
}

void gate_backward_step(GateActs *a, const GateShape *s, real *const *w, real *const *dw, const HeadLoss *h,
                        int32_t step, real *df, real *dinfo) {
    int64_t skipped = head_loss_skipped(h, step), n = h->n - skipped, C = s->C, V = s->V, R = s->rank;
    if (s->rank == 0 || n == 0) return;
    for (int64_t i = 0; dinfo && i < h->n * V; i++) dinfo[i] += a->dinfo[i];
    const real *token = a->token + skipped * R;
    real *dtoken = a->dtoken + skipped * R;
    set_zero(a->dproduct, n * R), set_zero(a->df, n * C);
    linear_backward(a->dproduct, dw[GATE_UP], NULL, a->dinfo + skipped * V, a->product, w[GATE_UP], n, R, V);
    multiply(a->dstate, a->dproduct, token, n * R);
    for (int64_t i = 0; i < n * R; i++) dtoken[i] += a->dproduct[i] * a->state[i];
    linear_backward(a->df, dw[GATE_STATE], NULL, a->dstate, a->f, w[GATE_STATE], n, C, R);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < C; k++) df[(h->positions[i + skipped] - step) * C + k] += a->df[i * C + k];
}

void gate_backward_tokens(GateActs *a, const GateShape *s, real *const *dw, const HeadLoss *h) {
    if (s->rank == 0) return;
    linear_backward(NULL, dw[GATE_TOKEN], NULL, a->dtoken, a->embd, NULL, h->n, s->C, s->rank);
}

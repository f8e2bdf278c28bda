/* info_gate.c - token info gated by the state: a bias on the logits that depends on the last token and on the state.
 *
 * The problem. Token info (info_factors.c) is the same wherever a token occurs: the bias after "New" does not know whether
 * the text is about cities or about years. The chain of states knows that, but must not read tokens, because then it would
 * be valid for one path only.
 *
 * The idea. A bilinear form of low rank brings the two together after the chain. With the state f that the chain predicts
 * for position p, and the token x_p,
 *
 *     bias = U ((P f) * (Q E[x_p]))        P [rank][C], Q [rank][C], U [V][rank]; * is elementwise
 *
 * is added to W_head f + info. P f is one product for each step of the chain, and Q E[x] is a table, so a drafter computes
 * a product of rank numbers and one with U for each node that it expands; the chain stays free of tokens.
 *
 * Initial values. U is zero, so at first the bias is zero and the gradient of P and Q as well; that of U is not, because P f
 * and Q E[x] have a mean square of about 1.
 *
 * Backward pass: with the derivative g of the bias, dU = g^T (a * b), and through the product with U: da = d * b and
 * db = d * a, where a = P f, b = Q E[x]. a is one of each step; b is shared by the steps, so db is their sum.
 *
 * Test: test_train_drafters.c by finite differences, test_train_unroll.c against the drafter. */
#include "train/nets/info_gate.h"

#include "draft/learned/layer_names.h"
#include "train/ops/op_linear.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

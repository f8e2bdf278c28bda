/* llama_net.c - the network of a Llama-style model for training: the forward pass of inference once more, and its
 * backward pass.
 *
 *     x    = token_embd[token]
 *     each layer:
 *       x += Wo attention(rope(Wq n), rope(Wk n), Wv n),   n = norm(x)
 *       x += Wdown (silu(Wgate m) * (Wup m)),              m = norm(x)
 *     logits = token_embd norm(x)
 *
 * The residual stream is a sum, so in the backward pass dx reaches every block unchanged, and each block adds to it the
 * derivative through its own norm. A layer is processed from its end: feed-forward first, then attention, updating one
 * dx.
 *
 * One sequence at a time. T rows of 256 to 768 numbers are large enough for matrix products to be efficient and small
 * enough to stay in a core's caches, and threads are independent: each takes other sequences (llama_trainer.c). All
 * activations of a sequence are kept: T (4 C + 2 HD + 2 GD + 3 F) + H T^2 numbers per layer, for the shipped target at
 * T = 512 some 13 MB.
 *
 * The head. The logits of all rows would be the largest array by far (T V). So LLAMA_HEAD_ROWS rows at a time are
 * computed, turned into loss and gradient, multiplied back into dx and the embedding, and dropped.
 *
 * Tests: test_train_net.c compiles this file in double and compares every tensor's gradient with finite differences;
 * test_train_llama.c compares the logits with those of inference.
 */
#include "train/llama.h"

#include "model/rope.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

/* ---- weights ----------------------------------------------------------------------------------------- */

enum { TENSORS_PER_LAYER = 9 };

static int64_t q_dim(const LlamaShape *s) { return (int64_t)s->n_head * s->head_dim; }
static int64_t kv_dim(const LlamaShape *s) { return (int64_t)s->n_head_kv * s->head_dim; }

int32_t llama_n_tensors(const LlamaShape *s) { return s->n_layer * TENSORS_PER_LAYER + 2; }

LlamaTensor llama_tensor(const LlamaShape *s, int32_t i) {
    int64_t C = s->n_embd, F = s->n_ff, Q = q_dim(s), K = kv_dim(s);
    if (i == 0) return (LlamaTensor){"token_embd.weight", s->n_vocab, C, false, false};
    if (i == llama_n_tensors(s) - 1) return (LlamaTensor){"output_norm.weight", 1, C, true, false};
    const LlamaTensor of_layer[TENSORS_PER_LAYER] = {
        {"attn_norm", 1, C, true, false}, {"attn_q", Q, C, false, false},     {"attn_k", K, C, false, false},
        {"attn_v", K, C, false, false},   {"attn_output", C, Q, false, true}, {"ffn_norm", 1, C, true, false},
        {"ffn_gate", F, C, false, false}, {"ffn_up", F, C, false, false},     {"ffn_down", C, F, false, true},
    };
    LlamaTensor t = of_layer[(i - 1) % TENSORS_PER_LAYER];
    char part[32];
    memcpy(part, t.name, sizeof part);
    snprintf(t.name, sizeof t.name, "blk.%d.%.31s.weight", (i - 1) / TENSORS_PER_LAYER, part);
    return t;
}

int64_t llama_n_weights(const LlamaShape *s) {
    int64_t n = 0;
    for (int32_t i = 0; i < llama_n_tensors(s); i++) {
        LlamaTensor t = llama_tensor(s, i);
        n += t.n_rows * t.n;
    }
    return n;
}

/* Returns the next n numbers of the memory. */
static real *take(real **memory, int64_t n) {
    real *p = *memory;
    *memory += n;
    return p;
}

LlamaWeights llama_place_weights(const LlamaShape *s, LlamaLayer *layers, real *memory) {
    int64_t C = s->n_embd, F = s->n_ff, Q = q_dim(s), K = kv_dim(s);
    LlamaWeights w = {.layers = layers};
    w.token_embd = take(&memory, s->n_vocab * C);
    for (LlamaLayer *l = layers; l < layers + s->n_layer; l++) {
        l->attn_norm = take(&memory, C);
        l->q = take(&memory, Q * C), l->k = take(&memory, K * C), l->v = take(&memory, K * C);
        l->o = take(&memory, C * Q);
        l->ffn_norm = take(&memory, C);
        l->gate = take(&memory, F * C), l->up = take(&memory, F * C);
        l->down = take(&memory, C * F);
    }
    w.output_norm = take(&memory, C);
    return w;
}

/* ---- activations ------------------------------------------------------------------------------------- */

typedef struct LlamaLayerActs {
    real *x;                      /* [T][C] residual stream before the layer */
    real *attn_normed, *attn_rms; /* [T][C], [T] */
    real *q, *k, *v;              /* [T][H*D], [T][G*D], [T][G*D]; q and k rotated */
    real *probs;                  /* [H][T][T] */
    real *attended;               /* [T][H*D] */
    real *x_mid;                  /* [T][C] residual stream between attention and feed-forward */
    real *ffn_normed, *ffn_rms;   /* [T][C], [T] */
    real *gate, *up, *hidden;     /* [T][F] */
} LlamaLayerActs;

static const char acts_name[] = "a sequence's activations; choose a smaller --length";

static int take_layer(LlamaActs *a, LlamaLayerActs *l, const LlamaShape *s, fr_error *err) {
    int64_t T = a->max_tokens, C = s->n_embd, F = s->n_ff, Q = q_dim(s), K = kv_dim(s);
    const ArenaItem items[] = {
        ARENA_ITEM(&l->x, T * C),     ARENA_ITEM(&l->attn_normed, T * C), ARENA_ITEM(&l->attn_rms, T),
        ARENA_ITEM(&l->q, T * Q),     ARENA_ITEM(&l->k, T * K),           ARENA_ITEM(&l->v, T * K),
        ARENA_ITEM(&l->x_mid, T * C), ARENA_ITEM(&l->attended, T * Q),    ARENA_ITEM(&l->probs, s->n_head * T * T),
        ARENA_ITEM(&l->gate, T * F),  ARENA_ITEM(&l->ffn_normed, T * C),  ARENA_ITEM(&l->ffn_rms, T),
        ARENA_ITEM(&l->up, T * F),    ARENA_ITEM(&l->hidden, T * F),
    };
    return arena_take(&a->arena, items, ARENA_COUNT(items), acts_name, err);
}

/* Takes what all layers share: the head, and the scratch of the backward pass. */
static int take_shared(LlamaActs *a, const LlamaShape *s, fr_error *err) {
    int64_t T = a->max_tokens, C = s->n_embd, F = s->n_ff, Q = q_dim(s), K = kv_dim(s), V = s->n_vocab;
    const ArenaItem items[] = {
        ARENA_ITEM(&a->cos_sin, T * s->head_dim),
        ARENA_ITEM(&a->layers, s->n_layer),
        ARENA_ITEM(&a->x, T * C),
        ARENA_ITEM(&a->normed, T * C),
        ARENA_ITEM(&a->inverse_rms, T),
        ARENA_ITEM(&a->loss, T),
        ARENA_ITEM(&a->logits, LLAMA_HEAD_ROWS * V),
        ARENA_ITEM(&a->dlogits, LLAMA_HEAD_ROWS * V),
        ARENA_ITEM(&a->delta, T * C),
        ARENA_ITEM(&a->dx, T * C),
        ARENA_ITEM(&a->dnormed, T * C),
        ARENA_ITEM(&a->dattended, T * Q),
        ARENA_ITEM(&a->dq, T * Q),
        ARENA_ITEM(&a->dk, T * K),
        ARENA_ITEM(&a->dv, T * K),
        ARENA_ITEM(&a->dgate, T * F),
        ARENA_ITEM(&a->dup, T * F),
        ARENA_ITEM(&a->dhidden, T * F),
        ARENA_ITEM(&a->dscores, ATTENTION_BLOCK * T),
    };
    return arena_take(&a->arena, items, ARENA_COUNT(items), acts_name, err);
}

static int fill_angles(LlamaActs *a, const LlamaShape *s, fr_error *err) {
    RopeParams params = {.style = ROPE_PAIRS, .n_rot = s->head_dim, .base = s->rope_base, .factor = 1};
    Rope rope;
    int status = rope_init(&rope, &params, NULL, err);
    if (status) return status;
    status = rope_table_fill(a->cos_sin, &rope, a->max_tokens, err);
    rope_free(&rope);
    return status;
}

int llama_acts_open(LlamaActs *a, const LlamaShape *s, int32_t max_tokens, fr_error *err) {
    *a = (LlamaActs){.max_tokens = max_tokens};
    int status = take_shared(a, s, err);
    for (int32_t i = 0; i < s->n_layer && !status; i++) status = take_layer(a, &a->layers[i], s, err);
    if (!status) status = fill_angles(a, s, err);
    if (status) llama_acts_close(a);
    return status;
}

void llama_acts_close(LlamaActs *a) {
    arena_free(&a->arena);
    *a = (LlamaActs){0};
}

/* ---- forward ----------------------------------------------------------------------------------------- */

static AttentionShape attention_shape(const LlamaShape *s, int32_t T) {
    return (AttentionShape){T, s->n_head, s->n_head_kv, s->head_dim};
}

/* out = a + b, all [n] */
static void add(real *restrict out, const real *a, const real *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void attention_block(const LlamaShape *s, const LlamaLayer *w, LlamaActs *a, LlamaLayerActs *l, int32_t T) {
    int64_t C = s->n_embd, Q = q_dim(s), K = kv_dim(s), D = s->head_dim;
    AttentionShape shape = attention_shape(s, T);
    rmsnorm_forward(l->attn_normed, l->attn_rms, l->x, w->attn_norm, T, C, (real)s->rms_eps);
    linear_forward(l->q, l->attn_normed, w->q, NULL, T, C, Q);
    linear_forward(l->k, l->attn_normed, w->k, NULL, T, C, K);
    linear_forward(l->v, l->attn_normed, w->v, NULL, T, C, K);
    rope_forward(ROPE_PAIRS, l->q, a->cos_sin, T, s->n_head, D, D);
    rope_forward(ROPE_PAIRS, l->k, a->cos_sin, T, s->n_head_kv, D, D);
    attention_forward(l->attended, l->probs, l->q, l->k, l->v, &shape);
    linear_forward(a->delta, l->attended, w->o, NULL, T, Q, C);
    add(l->x_mid, l->x, a->delta, T * C);
}

/* x_after: [T][C] */
static void feed_forward_block(const LlamaShape *s, const LlamaLayer *w, LlamaActs *a, LlamaLayerActs *l, real *x_after,
                               int32_t T) {
    int64_t C = s->n_embd, F = s->n_ff;
    rmsnorm_forward(l->ffn_normed, l->ffn_rms, l->x_mid, w->ffn_norm, T, C, (real)s->rms_eps);
    linear_forward(l->gate, l->ffn_normed, w->gate, NULL, T, C, F);
    linear_forward(l->up, l->ffn_normed, w->up, NULL, T, C, F);
    swiglu_forward(l->hidden, l->gate, l->up, T * F);
    linear_forward(a->delta, l->hidden, w->down, NULL, T, F, C);
    add(x_after, l->x_mid, a->delta, T * C);
}

static real *stream_before(LlamaActs *a, const LlamaShape *s, int32_t layer) {
    return layer < s->n_layer ? a->layers[layer].x : a->x;
}

void llama_forward(const LlamaShape *s, const LlamaWeights *w, LlamaActs *a, const int32_t *tokens, int32_t T) {
    embedding_forward(stream_before(a, s, 0), w->token_embd, tokens, T, s->n_embd);
    for (int32_t i = 0; i < s->n_layer; i++) {
        attention_block(s, &w->layers[i], a, &a->layers[i], T);
        feed_forward_block(s, &w->layers[i], a, &a->layers[i], stream_before(a, s, i + 1), T);
    }
    rmsnorm_forward(a->normed, a->inverse_rms, a->x, w->output_norm, T, s->n_embd, (real)s->rms_eps);
}

/* ---- the head ---------------------------------------------------------------------------------------- */

/* Is logits[target] the largest, and the first of those equal to it? */
static bool is_first_best(const real *logits, int32_t target, int64_t n) {
    if (logits[target] < real_max(logits, n)) return false;
    for (int32_t i = 0; i < target; i++)
        if (logits[i] == logits[target]) return false;
    return true;
}

/* Rows first .. first + n - 1: adds to the result, and with dw to a->dnormed and the embedding's gradient. */
static void learn_rows(const LlamaShape *s, const LlamaWeights *w, const LlamaWeights *dw, LlamaActs *a,
                       const int32_t *tokens, const uint8_t *loss_mask, int32_t first, int32_t n, double weight,
                       LlamaResult *result) {
    int64_t C = s->n_embd, V = s->n_vocab;
    const real *normed = a->normed + first * C;
    const int32_t *targets = tokens + first + 1;
    real dloss[LLAMA_HEAD_ROWS];
    linear_forward(a->logits, normed, w->token_embd, NULL, n, C, V);
    for (int32_t t = 0; t < n; t++) {
        bool in_loss = !loss_mask || loss_mask[first + t];
        dloss[t] = in_loss ? (real)weight : 0;
        if (in_loss) result->right += is_first_best(a->logits + t * V, targets[t], V);
    }
    cross_entropy_forward(a->loss, a->logits, a->logits, targets, n, V);
    for (int32_t t = 0; t < n; t++) {
        if (loss_mask && !loss_mask[first + t]) continue;
        result->loss += (double)a->loss[t];
        result->n++;
    }
    if (!dw) return;
    memset(a->dlogits, 0, (size_t)(n * V) * sizeof(real));
    cross_entropy_backward(a->dlogits, dloss, a->logits, targets, n, V);
    linear_backward(a->dnormed + first * C, dw->token_embd, NULL, a->dlogits, normed, w->token_embd, n, C, V);
}

/* ---- backward ---------------------------------------------------------------------------------------- */

static void zero(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* Turns a->dx, the derivative with respect to the residual stream after the block, into that before it. */
static void feed_forward_back(const LlamaShape *s, const LlamaLayer *w, const LlamaLayer *dw, LlamaActs *a,
                              const LlamaLayerActs *l, int32_t T) {
    int64_t C = s->n_embd, F = s->n_ff;
    zero(a->dhidden, T * F), zero(a->dgate, T * F), zero(a->dup, T * F), zero(a->dnormed, T * C);
    linear_backward(a->dhidden, dw->down, NULL, a->dx, l->hidden, w->down, T, F, C);
    swiglu_backward(a->dgate, a->dup, a->dhidden, l->gate, l->up, T * F);
    linear_backward(a->dnormed, dw->gate, NULL, a->dgate, l->ffn_normed, w->gate, T, C, F);
    linear_backward(a->dnormed, dw->up, NULL, a->dup, l->ffn_normed, w->up, T, C, F);
    rmsnorm_backward(a->dx, dw->ffn_norm, a->dnormed, l->x_mid, w->ffn_norm, l->ffn_rms, T, C);
}

static void attention_back(const LlamaShape *s, const LlamaLayer *w, const LlamaLayer *dw, LlamaActs *a,
                           const LlamaLayerActs *l, int32_t T) {
    int64_t C = s->n_embd, Q = q_dim(s), K = kv_dim(s), D = s->head_dim;
    AttentionShape shape = attention_shape(s, T);
    zero(a->dattended, T * Q), zero(a->dq, T * Q), zero(a->dk, T * K), zero(a->dv, T * K), zero(a->dnormed, T * C);
    linear_backward(a->dattended, dw->o, NULL, a->dx, l->attended, w->o, T, Q, C);
    attention_backward(a->dq, a->dk, a->dv, a->dattended, l->probs, l->q, l->k, l->v, a->dscores, &shape);
    rope_backward(ROPE_PAIRS, a->dq, a->cos_sin, T, s->n_head, D, D);
    rope_backward(ROPE_PAIRS, a->dk, a->cos_sin, T, s->n_head_kv, D, D);
    linear_backward(a->dnormed, dw->q, NULL, a->dq, l->attn_normed, w->q, T, C, Q);
    linear_backward(a->dnormed, dw->k, NULL, a->dk, l->attn_normed, w->k, T, C, K);
    linear_backward(a->dnormed, dw->v, NULL, a->dv, l->attn_normed, w->v, T, C, K);
    rmsnorm_backward(a->dx, dw->attn_norm, a->dnormed, l->x, w->attn_norm, l->attn_rms, T, C);
}

LlamaResult llama_learn(const LlamaShape *s, const LlamaWeights *w, const LlamaWeights *dw, LlamaActs *a,
                        const int32_t *tokens, const uint8_t *loss_mask, int32_t T, double weight) {
    LlamaResult result = {0};
    int64_t C = s->n_embd;
    if (dw) zero(a->dnormed, T * C), zero(a->dx, T * C);
    for (int32_t first = 0; first < T; first += LLAMA_HEAD_ROWS) {
        int32_t n = T - first < LLAMA_HEAD_ROWS ? T - first : LLAMA_HEAD_ROWS;
        learn_rows(s, w, dw, a, tokens, loss_mask, first, n, weight, &result);
    }
    if (!dw) return result;
    rmsnorm_backward(a->dx, dw->output_norm, a->dnormed, a->x, w->output_norm, a->inverse_rms, T, C);
    for (int32_t i = s->n_layer - 1; i >= 0; i--) {
        feed_forward_back(s, &w->layers[i], &dw->layers[i], a, &a->layers[i], T);
        attention_back(s, &w->layers[i], &dw->layers[i], a, &a->layers[i], T);
    }
    embedding_backward(dw->token_embd, a->dx, tokens, T, C);
    return result;
}

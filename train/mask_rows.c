/* mask_rows.c - what a frozen target computes at mask tokens, and how that depends on the masks' input vectors.
 *
 * A group of masks follows token t of a text. Its rows see the text up to t and the masks before them:
 *
 *     text    x_0 .. x_t          keys and values of the target, which the masks do not change
 *     mask 1  position t + 1      sees x_0 .. x_t, itself                    its output predicts x_{t+2}
 *     mask 2  position t + 2      sees x_0 .. x_t, mask 1, itself            its output predicts x_{t+3}
 *
 * No text row sees a mask, so the text is read once, forward only, and any number of groups can follow its tokens. All
 * weights are frozen: the backward pass carries derivatives through the layers to the inputs of the masks and adds them
 * up there, over all groups. It needs one product where training the weights would need two.
 *
 * For mask s of all groups, attention is that of a step of an unrolled layer (UnrollAttention in ops.h), in which the
 * masks of a group are the row's own keys. All other products run over the rows of all steps at once.
 *
 * The text is read in float, and not with the rounded activations of inference: the difference is 0.01 % of the logits.
 *
 * Cost: a forward pass of the target over the text, and for each mask row a forward and half a backward pass. Tests:
 * test_train_drafters.c by finite differences in double, test_train_space.c against the drafter's rows. */
#include "train/mask_rows.h"

#include "train/ops.h"

#include <string.h>

static int64_t n_q(const MaskTarget *t) { return (int64_t)t->n_head * t->head_dim; }
static int64_t n_kv(const MaskTarget *t) { return (int64_t)t->n_head_kv * t->head_dim; }
static int64_t n_rot(const MaskTarget *t) { return t->rope->params.n_rot; }
static int64_t n_rows(const MaskRows *m) { return (int64_t)m->n_steps * m->n; }

/* ---- memory ------------------------------------------------------------------------------------------ */

static const char memory_name[] = "the activations of masks; choose a smaller --length";

static int take_acts(MaskRows *m, MaskActs *a, const MaskTarget *t, int64_t R, int64_t n_probs, fr_error *err) {
    int64_t C = t->C, F = t->n_ff, Q = n_q(t), K = n_kv(t);
    const ArenaItem items[] = {
        ARENA_ITEM(&a->x, R * C),          ARENA_ITEM(&a->attn_normed, R * C), ARENA_ITEM(&a->attn_rms, R),
        ARENA_ITEM(&a->q, R * Q),          ARENA_ITEM(&a->k, R * K),           ARENA_ITEM(&a->v, R * K),
        ARENA_ITEM(&a->probs, n_probs),    ARENA_ITEM(&a->attended, R * Q),    ARENA_ITEM(&a->x_mid, R * C),
        ARENA_ITEM(&a->ffn_normed, R * C), ARENA_ITEM(&a->ffn_rms, R),         ARENA_ITEM(&a->gate, R * F),
        ARENA_ITEM(&a->up, R * F),         ARENA_ITEM(&a->hidden, R * F),
    };
    return arena_take(&m->arena, items, ARENA_COUNT(items), memory_name, err);
}

/* Returns the numbers of probs that a step's rows take: [n_head][groups][text + steps]. */
static int64_t probs_of_step(const MaskRows *m, const MaskTarget *t) {
    return (int64_t)t->n_head * m->max_groups * (m->max_length + m->n_steps);
}

static int take_common(MaskRows *m, const MaskTarget *t, fr_error *err) {
    int64_t T = m->max_length, S = m->n_steps, R = S * m->max_groups, most = R > T ? R : T;
    int64_t C = t->C, F = t->n_ff, Q = n_q(t), K = n_kv(t);
    const ArenaItem items[] = {
        ARENA_ITEM(&m->after, m->max_groups),
        ARENA_ITEM(&m->cos_sin, (T + S) * n_rot(t)),
        ARENA_ITEM(&m->positions, T),
        ARENA_ITEM(&m->text_k, t->n_layer * T * K),
        ARENA_ITEM(&m->text_v, t->n_layer * T * K),
        ARENA_ITEM(&m->layers, t->n_layer),
        ARENA_ITEM(&m->x, R * C),
        ARENA_ITEM(&m->out, R * C),
        ARENA_ITEM(&m->rms, R),
        ARENA_ITEM(&m->dout, R * C),
        ARENA_ITEM(&m->angles, most * n_rot(t)),
        ARENA_ITEM(&m->delta, most * C),
        ARENA_ITEM(&m->dx, R * C),
        ARENA_ITEM(&m->dnormed, R * C),
        ARENA_ITEM(&m->dattended, R * Q),
        ARENA_ITEM(&m->dq, R * Q),
        ARENA_ITEM(&m->dk, R * K),
        ARENA_ITEM(&m->dv, R * K),
        ARENA_ITEM(&m->dgate, R * F),
        ARENA_ITEM(&m->dup, R * F),
        ARENA_ITEM(&m->dhidden, R * F),
        ARENA_ITEM(&m->dscores, UNROLL_BLOCK * (T + S)),
    };
    return arena_take(&m->arena, items, ARENA_COUNT(items), memory_name, err);
}

int mask_rows_open(MaskRows *m, const MaskTarget *t, int32_t n_steps, int32_t max_length, int32_t max_groups,
                   fr_error *err) {
    *m = (MaskRows){.max_length = max_length, .max_groups = max_groups, .n_steps = n_steps};
    int status = take_common(m, t, err);
    if (!status) status = take_acts(m, &m->text, t, max_length, (int64_t)t->n_head * max_length * max_length, err);
    for (int32_t i = 0; i < t->n_layer && !status; i++)
        status = take_acts(m, &m->layers[i], t, (int64_t)n_steps * max_groups, n_steps * probs_of_step(m, t), err);
    if (!status) status = rope_table_fill(m->cos_sin, t->rope, max_length + n_steps, err);
    if (status) {
        mask_rows_close(m);
        return status;
    }
    for (int32_t i = 0; i < max_length; i++) m->positions[i] = i;
    return FR_OK;
}

void mask_rows_close(MaskRows *m) {
    arena_free(&m->arena);
    *m = (MaskRows){0};
}

/* ---- forward ----------------------------------------------------------------------------------------- */

/* out = a + b, all [n] */
static void add_rows(real *restrict out, const real *a, const real *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

/* q, k and v of R rows whose angles are in m->angles. */
static void project(const MaskRows *m, const MaskTarget *t, const MaskLayer *w, MaskActs *a, int64_t R) {
    int64_t C = t->C;
    RopeStyle style = t->rope->params.style;
    rmsnorm_forward(a->attn_normed, a->attn_rms, a->x, w->attn_norm, R, C, (real)t->rms_eps);
    linear_forward(a->q, a->attn_normed, w->q, w->q_bias, R, C, n_q(t));
    linear_forward(a->k, a->attn_normed, w->k, w->k_bias, R, C, n_kv(t));
    linear_forward(a->v, a->attn_normed, w->v, w->v_bias, R, C, n_kv(t));
    rope_forward(style, a->q, m->angles, R, t->n_head, t->head_dim, n_rot(t));
    rope_forward(style, a->k, m->angles, R, t->n_head_kv, t->head_dim, n_rot(t));
}

/* What follows attention. x_after: [R][C] */
static void finish(const MaskRows *m, const MaskTarget *t, const MaskLayer *w, MaskActs *a, int64_t R, real *x_after) {
    int64_t C = t->C, F = t->n_ff;
    linear_forward(m->delta, a->attended, w->o, NULL, R, n_q(t), C);
    add_rows(a->x_mid, a->x, m->delta, R * C);
    rmsnorm_forward(a->ffn_normed, a->ffn_rms, a->x_mid, w->ffn_norm, R, C, (real)t->rms_eps);
    linear_forward(a->gate, a->ffn_normed, w->gate, NULL, R, C, F);
    linear_forward(a->up, a->ffn_normed, w->up, NULL, R, C, F);
    swiglu_forward(a->hidden, a->gate, a->up, R * F);
    linear_forward(m->delta, a->hidden, w->down, NULL, R, F, C);
    add_rows(x_after, a->x_mid, m->delta, R * C);
}

void mask_rows_read_text(MaskRows *m, const MaskTarget *t, const real *embd, const int32_t *tokens, int32_t T) {
    int64_t K = n_kv(t);
    MaskActs *a = &m->text;
    m->T = T;
    memcpy(m->angles, m->cos_sin, (size_t)(T * n_rot(t)) * sizeof(real));
    embedding_forward(a->x, embd, tokens, T, t->C);
    for (int32_t i = 0; i < t->n_layer; i++) {
        real *k = m->text_k + i * m->max_length * K, *v = m->text_v + i * m->max_length * K;
        project(m, t, &t->layers[i], a, T);
        memcpy(k, a->k, (size_t)(T * K) * sizeof *k);
        memcpy(v, a->v, (size_t)(T * K) * sizeof *v);
        const UnrollAttention attention = {.n_rows = T,
                                           .n_keys = T,
                                           .n_own = 0,
                                           .n_head = t->n_head,
                                           .n_head_kv = t->n_head_kv,
                                           .head_dim = t->head_dim,
                                           .last = m->positions,
                                           .k = k,
                                           .v = v};
        unroll_attention_forward(a->attended, a->probs, a->q, &attention);
        finish(m, t, &t->layers[i], a, T, a->x);
    }
}

/* Returns what the masks `step` (from 0) see in a layer. own_k, own_v: [MASK_MAX_STEPS], written and borrowed. */
static UnrollAttention step_attention(const MaskRows *m, const MaskTarget *t, int32_t layer, int32_t step, real **own_k,
                                      real **own_v) {
    int64_t K = n_kv(t), at = layer * m->max_length * K;
    for (int32_t s = 0; s <= step; s++) {
        own_k[s] = m->layers[layer].k + s * m->n * K;
        own_v[s] = m->layers[layer].v + s * m->n * K;
    }
    return (UnrollAttention){.n_rows = m->n,
                             .n_keys = m->T,
                             .n_own = step + 1,
                             .n_head = t->n_head,
                             .n_head_kv = t->n_head_kv,
                             .head_dim = t->head_dim,
                             .last = m->after,
                             .k = m->text_k + at,
                             .v = m->text_v + at,
                             .own_k = own_k,
                             .own_v = own_v};
}

static void attend(const MaskRows *m, const MaskTarget *t, int32_t layer) {
    const MaskActs *a = &m->layers[layer];
    real *own_k[MASK_MAX_STEPS], *own_v[MASK_MAX_STEPS];
    for (int32_t s = 0; s < m->n_steps; s++) {
        UnrollAttention attention = step_attention(m, t, layer, s, own_k, own_v);
        unroll_attention_forward(a->attended + s * m->n * n_q(t), a->probs + s * probs_of_step(m, t),
                                 a->q + s * m->n * n_q(t), &attention);
    }
}

/* Returns the residual stream of the masks before a layer, or after the last one. */
static real *stream_before(const MaskRows *m, const MaskTarget *t, int32_t layer) {
    return layer < t->n_layer ? m->layers[layer].x : m->x;
}

static void place_masks(const MaskRows *m, const MaskTarget *t, const real *masks) {
    int64_t C = t->C, rot = n_rot(t);
    for (int32_t s = 0; s < m->n_steps; s++)
        for (int32_t i = 0; i < m->n; i++) {
            int64_t row = (int64_t)s * m->n + i;
            memcpy(m->layers[0].x + row * C, masks + s * C, (size_t)C * sizeof *masks);
            memcpy(m->angles + row * rot, m->cos_sin + (m->after[i] + s + 1) * rot, (size_t)rot * sizeof(real));
        }
}

void mask_rows_forward(MaskRows *m, const MaskTarget *t, const real *masks) {
    int64_t R = n_rows(m);
    place_masks(m, t, masks);
    for (int32_t i = 0; i < t->n_layer; i++) {
        project(m, t, &t->layers[i], &m->layers[i], R);
        attend(m, t, i);
        finish(m, t, &t->layers[i], &m->layers[i], R, stream_before(m, t, i + 1));
    }
    rmsnorm_forward(m->out, m->rms, m->x, t->output_norm, R, t->C, (real)t->rms_eps);
    memset(m->dout, 0, (size_t)(R * t->C) * sizeof *m->dout);
}

/* ---- backward ---------------------------------------------------------------------------------------- */

static void clear(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* Turns m->dx, the derivative with respect to the residual stream after the block, into that before it. */
static void ffn_derivative(const MaskRows *m, const MaskTarget *t, const MaskLayer *w, const MaskActs *a) {
    int64_t R = n_rows(m), C = t->C, F = t->n_ff;
    clear(m->dhidden, R * F), clear(m->dgate, R * F), clear(m->dup, R * F), clear(m->dnormed, R * C);
    linear_backward(m->dhidden, NULL, NULL, m->dx, a->hidden, w->down, R, F, C);
    swiglu_backward(m->dgate, m->dup, m->dhidden, a->gate, a->up, R * F);
    linear_backward(m->dnormed, NULL, NULL, m->dgate, a->ffn_normed, w->gate, R, C, F);
    linear_backward(m->dnormed, NULL, NULL, m->dup, a->ffn_normed, w->up, R, C, F);
    rmsnorm_backward(m->dx, NULL, m->dnormed, a->x_mid, w->ffn_norm, a->ffn_rms, R, C);
}

/* From m->dattended: adds to m->dq, m->dk and m->dv. The keys of the text need no gradient. */
static void attend_back(const MaskRows *m, const MaskTarget *t, int32_t layer) {
    const MaskActs *a = &m->layers[layer];
    int64_t Q = m->n * n_q(t), K = m->n * n_kv(t);
    real *own_k[MASK_MAX_STEPS], *own_v[MASK_MAX_STEPS], *own_dk[MASK_MAX_STEPS], *own_dv[MASK_MAX_STEPS];
    for (int32_t s = 0; s < m->n_steps; s++) {
        own_dk[s] = m->dk + s * K, own_dv[s] = m->dv + s * K;
        UnrollAttention attention = step_attention(m, t, layer, s, own_k, own_v);
        unroll_attention_backward(m->dq + s * Q, NULL, NULL, own_dk, own_dv, NULL, m->dattended + s * Q,
                                  a->probs + s * probs_of_step(m, t), a->q + s * Q, m->dscores, &attention);
    }
}

static void attention_derivative(const MaskRows *m, const MaskTarget *t, const MaskLayer *w, int32_t layer) {
    const MaskActs *a = &m->layers[layer];
    int64_t R = n_rows(m), C = t->C, Q = n_q(t), K = n_kv(t);
    RopeStyle style = t->rope->params.style;
    clear(m->dattended, R * Q), clear(m->dq, R * Q), clear(m->dk, R * K), clear(m->dv, R * K), clear(m->dnormed, R * C);
    linear_backward(m->dattended, NULL, NULL, m->dx, a->attended, w->o, R, Q, C);
    attend_back(m, t, layer);
    rope_backward(style, m->dq, m->angles, R, t->n_head, t->head_dim, n_rot(t));
    rope_backward(style, m->dk, m->angles, R, t->n_head_kv, t->head_dim, n_rot(t));
    linear_backward(m->dnormed, NULL, NULL, m->dq, a->attn_normed, w->q, R, C, Q);
    linear_backward(m->dnormed, NULL, NULL, m->dk, a->attn_normed, w->k, R, C, K);
    linear_backward(m->dnormed, NULL, NULL, m->dv, a->attn_normed, w->v, R, C, K);
    rmsnorm_backward(m->dx, NULL, m->dnormed, a->x, w->attn_norm, a->attn_rms, R, C);
}

void mask_rows_backward(MaskRows *m, const MaskTarget *t, real *dmasks) {
    int64_t C = t->C;
    clear(m->dx, n_rows(m) * C);
    rmsnorm_backward(m->dx, NULL, m->dout, m->x, t->output_norm, m->rms, n_rows(m), C);
    for (int32_t i = t->n_layer - 1; i >= 0; i--) {
        ffn_derivative(m, t, &t->layers[i], &m->layers[i]);
        attention_derivative(m, t, &t->layers[i], i);
    }
    for (int32_t s = 0; s < m->n_steps; s++)
        for (int32_t i = 0; i < m->n; i++)
            for (int64_t k = 0; k < C; k++) dmasks[s * C + k] += m->dx[((int64_t)s * m->n + i) * C + k];
}

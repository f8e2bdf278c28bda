/* unroll_layer.c - a drafter that reads its own predictions must be trained on its own predictions.
 *
 * The problem. One transformer layer predicts the target's next hidden state. When it drafts, only its first input
 * comes from the target; then it continues from its own predictions, whose errors it never saw if it was trained only
 * on true states.
 *
 * The idea (HASS, Zhang et al. 2025, arXiv 2408.15766; Lyanna, section 4). Training runs chains: from each position t,
 * n_steps steps, each on the output of the step before. All chains make a step together, as the rows of one batch:
 *
 *     step 1   row t: input fc [E(x_{t+1}) ; h_t], position t,     sees rows 0 .. t of step 1: true keys and values
 *     step 2   row t: input from f^1_t,            position t + 1, sees rows 0 .. t of step 1, and itself
 *     step 3   row t: input from f^2_t,            position t + 2, sees rows 0 .. t of step 1, row t of step 2, itself
 *
 * This is what the drafter's KV cache holds when it drafts: true entries for what the target has read, then its own
 * rows. The output of step s, f^s_t, predicts h_{t+s} and, through the target's output matrix, the token x_{t+s+1}
 * (head_loss.c).
 *
 *     input of step s >= 2:   f^{s-1}_t                          fuses_each_step false
 *                             fc [E(x_{t+s}) ; f^{s-1}_t]        fuses_each_step true
 *                             fc' [E(x_{t+1}) ; f^{s-1}_t]       later_fuses: with an fc of the later layer
 *                             fc [E(x_{t+1}) ; h_t] + v_s        is_parallel: the first step's, and a learned vector
 *                             made by the caller                 eagle3_net.c with reads_pairs, mtp_net.c
 *     layer                   x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x), or x without a norm there
 *                             x += Wdown (silu(Wgate m) * (Wup m)),             m = norm(x)
 *                             with is_gemma what is added to x has a norm, and GELU takes the place of SiLU
 *
 * A later layer. Without tokens, the later steps of lyanna are another task than the first one, and a layer that learns
 * both loses accuracy at the first step. With n_ff_later the steps s >= 2 have a layer of their own. Its rows see the
 * keys and values that the first layer has made of the context, so that a drafter needs one KV cache.
 *
 * Rows. Step 1 has a row for each position, because its keys are context. A chain goes on only where one of its later
 * steps predicts at a position in the loss mask, and only within the sequence, so a prompt costs one row per token and
 * an answer n_steps. Chains are ordered by t, so the chains of a step are the first ones of the step before.
 *
 * Backward pass: from the last step to the first. The df of a step is complete once the step after it is done; keys and
 * values of step 1 accumulate gradient from all steps. Of the gradient of a step's input, the share state_gradient
 * reaches the prediction that it was made from: with 1 nothing is truncated, with 0 each step learns only from its own
 * loss.
 *
 * Initial values: the layer is the target's last one, but Wo and Wdown are zeros, so that it adds nothing at first. The
 * target's own Wo and Wdown add to its residual stream before the final norm, where numbers may be far larger than in
 * h, which comes after it; there they would bury h. fc passes the hidden state through and adds the token's embedding
 * in random directions. Embeddings are small numbers, and with columns of the usual deviation 0.02 the layer would take
 * long to use them, so those columns have start_token_std.
 *
 * Cost: one row of the layer for each token, n_steps rows for tokens of an answer, and n_steps + 1 products with the
 * vocabulary. Tests: test_train_drafters.c by finite differences in double, test_train_unroll.c against the drafters
 * that run the files. */
#include "train/nets.h"

#include "draft/learned/learned_files.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

static int64_t q_dim(const UnrollShape *s) { return (int64_t)s->n_head * s->head_dim; }
static int64_t kv_dim(const UnrollShape *s) { return (int64_t)s->n_head_kv * s->head_dim; }
static bool is_later(const UnrollShape *s, int32_t step) { return step > 0 && s->n_ff_later > 0; }
static int64_t ff_of(const UnrollShape *s, int32_t step) { return is_later(s, step) ? s->n_ff_later : s->n_ff; }
static bool has_norm(const UnrollShape *s, int32_t step) { return s->has_attn_norm || is_later(s, step); }
static int64_t widest_ff(const UnrollShape *s) { return s->n_ff_later > s->n_ff ? s->n_ff_later : s->n_ff; }
static bool is_fused(const UnrollShape *s, int32_t step) { return step == 0 || s->fuses_each_step || s->later_fuses; }
static int64_t fc_in(const UnrollShape *s, int32_t step) {
    return s->fuses_token || (step > 0 && s->later_fuses) ? 2 * s->C : s->C;
}
/* Learned vectors of a parallel chain; a chain of one step has one that is not used. */
static int32_t n_chain_inputs(const UnrollShape *s) { return s->n_steps > 1 ? s->n_steps - 1 : 1; }

/* ---- tensors ------------------------------------------------------------------------------------ */

enum { LATER_TENSORS = UNROLL_ATTN_NORM + 1 - UNROLL_Q }; /* of a later layer, without its fc */

static int32_t n_first_tensors(const UnrollShape *s) { return UNROLL_ATTN_NORM + s->has_attn_norm + s->is_parallel; }

int32_t unroll_n_tensors(const UnrollShape *s) {
    return n_first_tensors(s) + (s->n_ff_later ? LATER_TENSORS + 2 * s->later_fuses : 0);
}

/* The tensors of a step's layer, by the numbers of the first layer's. */
static real *const *layer_of_step(const UnrollShape *s, real *const *w, int32_t step) {
    return is_later(s, step) ? w + n_first_tensors(s) - UNROLL_Q : w;
}

/* The number of the fc of a step; its bias is the next tensor. */
static int32_t fc_of_step(const UnrollShape *s, int32_t step) {
    return step > 0 && s->later_fuses ? n_first_tensors(s) + LATER_TENSORS : UNROLL_FC;
}

/* Tensor i of the layer of a step. */
static NetTensor tensor_of_layer(const UnrollShape *s, int32_t step, int32_t i) {
    static const char *const suffixes[] = {LAYER_FC_WEIGHT, LAYER_FC_BIAS,     LAYER_ATTN_Q,    LAYER_ATTN_K,
                                           LAYER_ATTN_V,    LAYER_ATTN_OUTPUT, LAYER_FFN_NORM,  LAYER_FFN_GATE,
                                           LAYER_FFN_UP,    LAYER_FFN_DOWN,    LAYER_ATTN_NORM, CHAIN_INPUTS};
    int64_t C = s->C, F = ff_of(s, step), Q = q_dim(s), K = kv_dim(s);
    const int64_t n_rows[] = {C, 0, Q, K, K, C, 0, F, F, C, 0, n_chain_inputs(s)};
    const int64_t n[] = {fc_in(s, step), C, C, C, C, Q, C, C, C, F, C, C};
    NetTensor t = {.n_rows = n_rows[i], .n = n[i], .start = NET_LAYER, .std = 0.02, .suffix = suffixes[i]};
    if (i == UNROLL_FC) t.start = NET_FUSE, t.std = s->fc_std;
    if (i == UNROLL_O || i == UNROLL_DOWN || i == UNROLL_FC_BIAS || i == UNROLL_CHAIN_INPUTS)
        t.start = NET_ZEROS, t.std = 0;
    if ((i == UNROLL_Q || i == UNROLL_K) && s->qk_start_anew) t.start = NET_NORMAL;
    snprintf(t.name, sizeof t.name, "%s.%s%s", s->method, step ? LAYER_LATER : "", suffixes[i]);
    return t;
}

NetTensor unroll_tensor(const UnrollShape *s, int32_t i) {
    int32_t later = i - n_first_tensors(s);
    if (later < 0) return tensor_of_layer(s, 0, i);
    return tensor_of_layer(s, 1, later < LATER_TENSORS ? UNROLL_Q + later : UNROLL_FC + later - LATER_TENSORS);
}

/* ---- activations -------------------------------------------------------------------------------- */

static const char acts_name[] = "a layer's activations; choose a smaller --length";

/* Takes the arrays of one step's forward pass, and of the gradients that later steps leave in it. */
static int take_step(UnrollActs *a, const UnrollShape *s, int32_t step, fr_error *err) {
    int64_t T = a->max_length, C = s->C, F = ff_of(s, step), Q = q_dim(s), K = kv_dim(s);
    int64_t n = step && s->n_anchors && s->n_anchors < T ? s->n_anchors : T;
    UnrollStep *p = &a->steps[step];
    const ArenaItem items[] = {
        ARENA_ITEM(&p->pair, n * 2 * C),
        ARENA_ITEM(&p->x, n * C),
        ARENA_ITEM(&p->attn_normed, n * C),
        ARENA_ITEM(&p->attn_rms, n),
        ARENA_ITEM(&p->q, n * Q),
        ARENA_ITEM(&p->k, n * K),
        ARENA_ITEM(&p->v, n * K),
        ARENA_ITEM(&p->attended, n * Q),
        ARENA_ITEM(&p->probs, s->n_head * n * (T + step)),
        ARENA_ITEM(&p->x_mid, n * C),
        ARENA_ITEM(&p->ffn_rms, n),
        ARENA_ITEM(&p->ffn_normed, n * C),
        ARENA_ITEM(&p->gate, n * F),
        ARENA_ITEM(&p->up, n * F),
        ARENA_ITEM(&p->hidden, n * F),
        ARENA_ITEM(&p->f, T * C),
        ARENA_ITEM(&p->df, T * C),
        ARENA_ITEM(&p->dk, n * K),
        ARENA_ITEM(&p->dv, n * K),
    };
    const ArenaItem of_norms[] = {ARENA_ITEM(&p->q_raw, T * Q), ARENA_ITEM(&p->q_rms, T * s->n_head),
                                  ARENA_ITEM(&p->k_raw, T * K), ARENA_ITEM(&p->k_rms, T * s->n_head_kv)};
    const ArenaItem of_gates[] = {ARENA_ITEM(&p->gates, T * Q), ARENA_ITEM(&p->gated, T * Q)};
    const ArenaItem of_gemma[] = {ARENA_ITEM(&p->v_raw, T * K),          ARENA_ITEM(&p->v_rms, T * s->n_head_kv),
                                  ARENA_ITEM(&p->attn_added.raw, n * C), ARENA_ITEM(&p->attn_added.rms, n),
                                  ARENA_ITEM(&p->ffn_added.raw, n * C),  ARENA_ITEM(&p->ffn_added.rms, n)};
    int status = arena_take(&a->arena, items, ARENA_COUNT(items), acts_name, err);
    if (s->has_head_norms && !status) status = arena_take(&a->arena, of_norms, ARENA_COUNT(of_norms), acts_name, err);
    if (s->gates_output && !status) status = arena_take(&a->arena, of_gates, ARENA_COUNT(of_gates), acts_name, err);
    if (s->is_gemma && !status) status = arena_take(&a->arena, of_gemma, ARENA_COUNT(of_gemma), acts_name, err);
    return status;
}

/* Takes what all steps share: the rows they have, rope angles, and the scratch of the backward pass. */
static int take_shared(UnrollActs *a, const UnrollShape *s, fr_error *err) {
    int64_t T = a->max_length, C = s->C, F = widest_ff(s), Q = q_dim(s), R = s->rope->params.n_rot;
    const ArenaItem items[] = {
        ARENA_ITEM(&a->entries, T),       ARENA_ITEM(&a->chains, T),
        ARENA_ITEM(&a->cos_sin, T * R),   ARENA_ITEM(&a->angles, T * R),
        ARENA_ITEM(&a->delta, T * C),     ARENA_ITEM(&a->dx, T * C),
        ARENA_ITEM(&a->dnormed, T * C),   ARENA_ITEM(&a->dattended, T * Q),
        ARENA_ITEM(&a->dq, T * Q),        ARENA_ITEM(&a->dgate, T * F),
        ARENA_ITEM(&a->dup, T * F),       ARENA_ITEM(&a->dhidden, T * F),
        ARENA_ITEM(&a->dpair, T * 2 * C), ARENA_ITEM(&a->dscores, UNROLL_BLOCK * (T + s->n_steps)),
        ARENA_ITEM(&a->dfirst, T * C),
    };
    const ArenaItem of_heads[] = {ARENA_ITEM(&a->heads, T * 2 * Q), ARENA_ITEM(&a->dheads, T * Q),
                                  ARENA_ITEM(&a->dgates, T * Q)};
    const ArenaItem added[] = {ARENA_ITEM(&a->dadded, T * C)};
    int status = arena_take(&a->arena, items, ARENA_COUNT(items), acts_name, err);
    if (s->is_gemma && !status) status = arena_take(&a->arena, added, ARENA_COUNT(added), acts_name, err);
    if (status || !(s->has_head_norms || s->gates_output || s->is_gemma)) return status;
    return arena_take(&a->arena, of_heads, ARENA_COUNT(of_heads), acts_name, err);
}

int unroll_open(UnrollActs *a, const UnrollShape *s, int32_t max_length, fr_error *err) {
    *a = (UnrollActs){.max_length = max_length};
    int status = take_shared(a, s, err);
    for (int32_t i = 0; i < s->n_steps && !status; i++) status = take_step(a, s, i, err);
    if (!status) status = rope_table_fill(a->cos_sin, s->rope, max_length, err);
    if (status) {
        unroll_close(a);
        return status;
    }
    for (int32_t t = 0; t < max_length; t++) a->entries[t] = t;
    return FR_OK;
}

void unroll_close(UnrollActs *a) {
    arena_free(&a->arena);
    *a = (UnrollActs){0};
}

/* ---- which rows --------------------------------------------------------------------------------- */

/* Does one of the steps 2 .. n_steps from t predict at a position in the loss mask? */
static bool goes_on(const UnrollShape *s, const TrainSequence *seq, int32_t t) {
    for (int32_t p = t + s->n_before + 2; p <= t + s->n_before + s->n_steps && p < seq->T; p++)
        if (seq->loss_mask[p]) return true;
    return false;
}

/* Step i + 1 from t predicts at position t + n_before + i + 1, which must lie within the sequence. */
void unroll_choose_rows(const UnrollShape *s, UnrollActs *a, const TrainSequence *seq) {
    int32_t n = 0;
    for (int32_t t = 0; t < seq->T; t++)
        if (goes_on(s, seq, t)) a->chains[n++] = t;
    a->n_candidates = n;
    if (s->n_anchors) n = anchors_draw(seq, a->chains, n, s->n_anchors);
    a->n_chains = n;
    for (int32_t i = 0; i < s->n_steps; i++) {
        UnrollStep *p = &a->steps[i];
        p->chains = i ? a->chains : a->entries;
        p->n = i ? n : seq->T;
        while (p->n > 0 && p->chains[p->n - 1] + s->n_before + i + 1 >= seq->T) p->n--;
    }
}

/* ---- forward ------------------------------------------------------------------------------------ */

/* out: [n][width], row i that of index[i] + shift */
static void take_rows(real *out, const real *rows, const int32_t *index, int32_t shift, int32_t n, int64_t width) {
    for (int32_t i = 0; i < n; i++)
        memcpy(out + i * width, rows + (index[i] + shift) * width, (size_t)width * sizeof *out);
}

/* out = a + b, all [n]; out may be a */
static void add_to(real *out, const real *a, const real *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void make_input(const UnrollShape *s, real *const *w, UnrollActs *a, const TrainSequence *seq, int32_t step) {
    UnrollStep *p = &a->steps[step];
    const real *state = step ? a->steps[step - 1].f : seq->hidden;
    int64_t C = s->C, width = fc_in(s, step);
    int32_t fc = fc_of_step(s, step);
    if (step && s->is_parallel) { /* the rows of the first step are those of all positions */
        const real *learned = w[UNROLL_CHAIN_INPUTS] + (step - 1) * C;
        for (int32_t i = 0; i < p->n; i++) add_to(p->x + i * C, a->steps[0].x + p->chains[i] * C, learned, C);
        return;
    }
    if (!is_fused(s, step)) {
        take_rows(p->x, state, p->chains, 0, p->n, C);
        return;
    }
    for (int32_t i = 0; i < p->n; i++) {
        int32_t t = p->chains[i], token = seq->tokens[s->later_fuses ? t + 1 : t + step + 1];
        real *pair = p->pair + i * width;
        if (width > C) memcpy(pair, seq->embd + token * C, (size_t)C * sizeof *pair);
        memcpy(pair + width - C, state + t * C, (size_t)C * sizeof *pair);
        if (seq->noise && step == 0) add_to(pair + width - C, pair + width - C, seq->noise + t * C, C);
    }
    linear_forward(p->x, p->pair, w[fc], w[fc + 1], p->n, width, C);
}

/* Keys and values that the rows of a step see. own_k, own_v: [step], written and borrowed. */
static UnrollAttention attention_of(const UnrollShape *s, const UnrollActs *a, int32_t step, real **own_k,
                                    real **own_v) {
    for (int32_t i = 1; i <= step; i++) own_k[i - 1] = a->steps[i].k, own_v[i - 1] = a->steps[i].v;
    return (UnrollAttention){.n_rows = a->steps[step].n,
                             .n_keys = a->steps[0].n,
                             .n_own = step,
                             .n_head = s->n_head,
                             .n_head_kv = s->n_head_kv,
                             .head_dim = s->head_dim,
                             .last = a->steps[step].chains,
                             .k = a->steps[0].k,
                             .v = a->steps[0].v,
                             .own_k = own_k,
                             .own_v = own_v,
                             .scale = s->attn_scale};
}

/* Makes a->delta, what a part of the layer adds, of its last matrix; norm: that after it, with is_gemma. */
static void layer_delta(const UnrollShape *s, UnrollActs *a, const AddedRows *added, const real *in, const real *w,
                        const real *bias, const real *norm, int64_t n, int64_t n_in) {
    linear_forward(s->is_gemma ? added->raw : a->delta, in, w, bias, n, n_in, s->C);
    if (s->is_gemma) rmsnorm_forward(a->delta, added->rms, added->raw, norm, n, s->C, (real)s->rms_eps);
}

/* Returns the input of a step's attention, [n][C]: the norm of x, or x itself; with reads_pairs the pair, [n][2C]. */
static real *attention_input(const UnrollShape *s, const UnrollStep *p, int32_t step) {
    if (s->reads_pairs) return p->pair;
    return has_norm(s, step) ? p->attn_normed : p->x;
}

static void attention_block(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, C = s->C;
    real *own_k[UNROLL_MAX_STEPS], *own_v[UNROLL_MAX_STEPS], *in = attention_input(s, p, step);
    if (has_norm(s, step)) rmsnorm_forward(in, p->attn_rms, p->x, w[UNROLL_ATTN_NORM], n, C, (real)s->rms_eps);
    take_rows(a->angles, a->cos_sin, p->chains, step, p->n, s->rope->params.n_rot);
    unroll_heads_forward(s, w, a, step, in);
    UnrollAttention attention = attention_of(s, a, step, own_k, own_v);
    unroll_attention_forward(p->attended, p->probs, p->q, &attention);
    layer_delta(s, a, &p->attn_added, unroll_gate_forward(s, a, step), w[UNROLL_O],
                s->has_output_bias ? w[UNROLL_O_BIAS] : NULL, s->is_gemma ? w[UNROLL_POST_ATTN_NORM] : NULL, n,
                q_dim(s));
    add_to(p->x_mid, p->x, a->delta, n * C);
}

/* Multiplies rows of the layer's output, or of their derivatives, by the factor that the layer has. */
static void scale_output(const UnrollShape *s, real *x, int64_t n) {
    if (s->out_scale == 0) return;
    for (int64_t i = 0; i < n; i++) x[i] *= (real)s->out_scale;
}

static void feed_forward_block(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, C = s->C, F = ff_of(s, step);
    rmsnorm_forward(p->ffn_normed, p->ffn_rms, p->x_mid, w[UNROLL_FFN_NORM], n, C, (real)s->rms_eps);
    linear_forward(p->gate, p->ffn_normed, w[UNROLL_GATE], NULL, n, C, F);
    linear_forward(p->up, p->ffn_normed, w[UNROLL_UP], NULL, n, C, F);
    (s->is_gemma ? geglu_forward : swiglu_forward)(p->hidden, p->gate, p->up, n * F);
    layer_delta(s, a, &p->ffn_added, p->hidden, w[UNROLL_DOWN], NULL, s->is_gemma ? w[UNROLL_POST_FFN_NORM] : NULL, n,
                F);
    for (int32_t i = 0; i < p->n; i++) {
        real *f = p->f + p->chains[i] * C;
        add_to(f, p->x_mid + i * C, a->delta + i * C, C);
        scale_output(s, f, C);
    }
}

void unroll_run_step(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step) {
    real *const *of_layer = layer_of_step(s, w, step);
    attention_block(s, of_layer, a, step);
    feed_forward_block(s, of_layer, a, step);
}

void unroll_forward(const UnrollShape *s, real *const *w, UnrollActs *a, const TrainSequence *seq) {
    unroll_choose_rows(s, a, seq);
    for (int32_t step = 0; step < s->n_steps && a->steps[step].n; step++) {
        make_input(s, w, a, seq, step);
        unroll_run_step(s, w, a, step);
    }
}

/* ---- backward ----------------------------------------------------------------------------------- */

static void zero(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

void unroll_zero(const UnrollShape *s, UnrollActs *a, const TrainSequence *seq) {
    for (int32_t i = 0; i < s->n_steps; i++) zero(a->steps[i].df, (int64_t)seq->T * s->C);
}

/* Returns the derivative with respect to the outputs of a part's last matrix. That with respect to what the part adds
 * is a->dx. */
static const real *layer_delta_back(const UnrollShape *s, UnrollActs *a, const AddedRows *added, real *const *w,
                                    real *const *dw, int32_t norm, int64_t n) {
    if (!s->is_gemma) return a->dx;
    zero(a->dadded, n * s->C);
    rmsnorm_backward(a->dadded, dw[norm], a->dx, added->raw, w[norm], added->rms, n, s->C);
    return a->dadded;
}

/* Turns a->dx, the derivative with respect to the layer's output before its factor, into that with respect to x_mid. */
static void feed_forward_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step) {
    const UnrollStep *p = &a->steps[step];
    int64_t n = p->n, C = s->C, F = ff_of(s, step);
    zero(a->dhidden, n * F), zero(a->dgate, n * F), zero(a->dup, n * F), zero(a->dnormed, n * C);
    const real *dadded = layer_delta_back(s, a, &p->ffn_added, w, dw, UNROLL_POST_FFN_NORM, n);
    linear_backward(a->dhidden, dw[UNROLL_DOWN], NULL, dadded, p->hidden, w[UNROLL_DOWN], n, F, C);
    (s->is_gemma ? geglu_backward : swiglu_backward)(a->dgate, a->dup, a->dhidden, p->gate, p->up, n * F);
    linear_backward(a->dnormed, dw[UNROLL_GATE], NULL, a->dgate, p->ffn_normed, w[UNROLL_GATE], n, C, F);
    linear_backward(a->dnormed, dw[UNROLL_UP], NULL, a->dup, p->ffn_normed, w[UNROLL_UP], n, C, F);
    rmsnorm_backward(a->dx, dw[UNROLL_FFN_NORM], a->dnormed, p->x_mid, w[UNROLL_FFN_NORM], p->ffn_rms, n, C);
}

/* Turns a->dx further, into the derivative with respect to the layer's input. The later steps have already added their
 * gradients of this step's keys and values. */
static void attention_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, C = s->C, Q = q_dim(s);
    real *own_k[UNROLL_MAX_STEPS], *own_v[UNROLL_MAX_STEPS], *own_dk[UNROLL_MAX_STEPS], *own_dv[UNROLL_MAX_STEPS];
    const real *in = attention_input(s, p, step);
    UnrollAttention attention = attention_of(s, a, step, own_k, own_v);
    for (int32_t i = 1; i <= step; i++) own_dk[i - 1] = a->steps[i].dk, own_dv[i - 1] = a->steps[i].dv;
    zero(a->dattended, n * Q), zero(a->dq, n * Q), zero(a->dnormed, n * C);
    if (s->reads_pairs) zero(a->dpair, n * 2 * C);
    const real *dadded = layer_delta_back(s, a, &p->attn_added, w, dw, UNROLL_POST_ATTN_NORM, n);
    linear_backward(a->dattended, dw[UNROLL_O], s->has_output_bias ? dw[UNROLL_O_BIAS] : NULL, dadded,
                    s->gates_output ? p->gated : p->attended, w[UNROLL_O], n, Q, C);
    unroll_gate_back(s, a, step);
    unroll_attention_backward(a->dq, a->steps[0].dk, a->steps[0].dv, own_dk, own_dv, NULL, a->dattended, p->probs, p->q,
                              a->dscores, &attention);
    take_rows(a->angles, a->cos_sin, p->chains, step, p->n, s->rope->params.n_rot);
    unroll_heads_back(s, w, dw, a, step, in, s->reads_pairs ? a->dpair : has_norm(s, step) ? a->dnormed : a->dx);
    if (has_norm(s, step))
        rmsnorm_backward(a->dx, dw[UNROLL_ATTN_NORM], a->dnormed, p->x, w[UNROLL_ATTN_NORM], p->attn_rms, n, C);
}

/* For a later step of a parallel chain: passes a->dx on to the step's vector and to the first step's input. */
static void learned_input_back(const UnrollShape *s, real *const *dw, UnrollActs *a, int32_t step) {
    const UnrollStep *p = &a->steps[step];
    int64_t C = s->C;
    real *dlearned = dw[UNROLL_CHAIN_INPUTS] + (step - 1) * C;
    for (int32_t i = 0; i < p->n; i++) {
        real *dfirst = a->dfirst + p->chains[i] * C;
        add_to(dlearned, dlearned, a->dx + i * C, C);
        add_to(dfirst, dfirst, a->dx + i * C, C);
    }
}

/* Passes a->dx on to fc and, by the share state_gradient, to the prediction of the step before. Before the first step
 * is the target, which is frozen. */
static void input_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    const real *dstate = a->dx, share = (real)s->state_gradient;
    int64_t C = s->C, width = C;
    int32_t fc = fc_of_step(s, step);
    if (s->is_parallel && step) {
        learned_input_back(s, dw, a, step);
        return;
    }
    if (s->is_parallel) add_to(a->dx, a->dx, a->dfirst, p->n * C);
    if (is_fused(s, step)) {
        width = fc_in(s, step);
        zero(a->dpair, p->n * width);
        linear_backward(step ? a->dpair : NULL, dw[fc], dw[fc + 1], a->dx, p->pair, w[fc], p->n, width, C);
        dstate = a->dpair + width - C;
    }
    for (int32_t i = 0; step && i < p->n; i++) {
        real *df = a->steps[step - 1].df + p->chains[i] * C;
        for (int64_t k = 0; k < C; k++) df[k] += share * dstate[i * width + k];
    }
}

void unroll_begin_back(const UnrollShape *s, UnrollActs *a) {
    for (int32_t i = 0; i < s->n_steps; i++) {
        zero(a->steps[i].dk, a->steps[i].n * kv_dim(s));
        zero(a->steps[i].dv, a->steps[i].n * kv_dim(s));
    }
    if (s->is_parallel) zero(a->dfirst, a->steps[0].n * s->C);
}

void unroll_step_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step) {
    const UnrollStep *p = &a->steps[step];
    real *const *of_layer = layer_of_step(s, w, step), *const *dlayer = layer_of_step(s, dw, step);
    take_rows(a->dx, p->df, p->chains, 0, p->n, s->C);
    scale_output(s, a->dx, p->n * (int64_t)s->C);
    feed_forward_back(s, of_layer, dlayer, a, step);
    attention_back(s, of_layer, dlayer, a, step);
}

void unroll_backward(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a) {
    unroll_begin_back(s, a);
    for (int32_t step = s->n_steps - 1; step >= 0; step--) {
        if (a->steps[step].n == 0) continue;
        unroll_step_back(s, w, dw, a, step);
        input_back(s, w, dw, a, step);
    }
}

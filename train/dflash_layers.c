/* dflash_layers.c - the layers of the network of `dflash` (dflash_net.c), forward and backward. Test:
 * test_train_drafters.c by finite differences in double. */
#include "draft/learned/learned_files.h"
#include "train/dflash_net.h"

#include <stdio.h>
#include <string.h>

/* The tensors of a layer, of which some drafters do not have all, and after them those of the convolutions around
 * attention and around the feed-forward part. */
enum {
    ATTN_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_OUTPUT,
    FFN_NORM,
    FFN_GATE,
    FFN_UP,
    FFN_DOWN,
    Q_NORM,
    K_NORM,
    SINKS,
    POST_ATTN_NORM,
    POST_FFN_NORM,
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    O_BIAS,
    LAYER_SLOTS,
    ATTN_CONV = LAYER_SLOTS,
    FFN_CONV = ATTN_CONV + CONV_TENSORS,
    ALL_SLOTS = FFN_CONV + CONV_TENSORS
};
_Static_assert((int)DFLASH_MAX_LAYERS <= (int)OWN_MAX_LAYERS, "OwnForm has room for all layers");

static int64_t q_dim(const DflashNet *n) { return (int64_t)n->n_head * n->head_dim; }
static int64_t kv_dim(const DflashNet *n) { return (int64_t)n->n_head_kv * n->head_dim; }
static int64_t streams_width(const DflashNet *n) { return (int64_t)n->n_streams * n->C; }

static bool layer_has(const DflashNet *n, int32_t slot) {
    if (slot == Q_NORM || slot == K_NORM) return n->has_head_norms;
    if (slot == SINKS) return n->has_sinks;
    if (slot == ATTN_V) return !n->form.values_are_keys;
    if (slot == POST_ATTN_NORM || slot == POST_FFN_NORM) return n->form.is_gemma;
    if (slot >= Q_BIAS && slot <= V_BIAS) return n->has_biases;
    return slot != O_BIAS || n->has_output_bias;
}

/* Returns the place of a slot among the tensors of a layer. */
static int32_t i_of_slot(const DflashNet *n, int32_t slot) {
    int32_t place = 0;
    for (int32_t i = 0; i < slot; i++) place += layer_has(n, i);
    return place;
}

static int32_t first_conv(const DflashNet *n) { return i_of_slot(n, LAYER_SLOTS); }
static int32_t ffn_conv(const DflashNet *n) { return first_conv(n) + CONV_TENSORS; }
int32_t dflash_n_of_layer(const DflashNet *n) { return first_conv(n) + (n->conv_taps ? 2 * CONV_TENSORS : 0); }

/* ---- tensors ------------------------------------------------------------------------------------ */

NetTensor dflash_tensor_of_layer(const DflashNet *n, int32_t layer, int32_t i) {
    int64_t C = n->C, F = n->n_ff, Q = q_dim(n), K = kv_dim(n), D = n->head_dim;
    const NetStart qk = n->qk_start_anew ? NET_NORMAL : NET_LAYER;
    const struct {
        const char *name, *suffix;
        int64_t n_rows, n;
        NetStart start;
        double std;
    } all[LAYER_SLOTS] = {
        [ATTN_NORM] = {DFLASH_ATTN_NORM, LAYER_ATTN_NORM, 0, C, NET_LAYER, 0},
        [ATTN_Q] = {DFLASH_ATTN_Q, LAYER_ATTN_Q, Q, C, qk, 0.02},
        [ATTN_K] = {DFLASH_ATTN_K, LAYER_ATTN_K, K, C, qk, 0.02},
        [ATTN_V] = {DFLASH_ATTN_V, LAYER_ATTN_V, K, C, NET_LAYER, 0.02},
        [ATTN_OUTPUT] = {DFLASH_ATTN_OUTPUT, LAYER_ATTN_OUTPUT, C, Q, NET_LAYER, 0.02},
        [FFN_NORM] = {DFLASH_FFN_NORM, LAYER_FFN_NORM, 0, C, NET_LAYER, 0},
        [FFN_GATE] = {DFLASH_FFN_GATE, LAYER_FFN_GATE, F, C, NET_LAYER, 0.02},
        [FFN_UP] = {DFLASH_FFN_UP, LAYER_FFN_UP, F, C, NET_LAYER, 0.02},
        [FFN_DOWN] = {DFLASH_FFN_DOWN, LAYER_FFN_DOWN, C, F, NET_LAYER, 0.02},
        [Q_NORM] = {DFLASH_Q_NORM, DFLASH_Q_NORM ".weight", 0, D, NET_LAYER, 0},
        [K_NORM] = {DFLASH_K_NORM, DFLASH_K_NORM ".weight", 0, D, NET_LAYER, 0},
        [SINKS] = {DFLASH_SINKS, NULL, 0, n->n_head, NET_ZEROS, 0},
        [POST_ATTN_NORM] = {GEMMA_LAYER_ATTN_NORM, NULL, 0, C, NET_ONES, 0},
        [POST_FFN_NORM] = {GEMMA_LAYER_FFN_NORM, NULL, 0, C, NET_ONES, 0},
        [Q_BIAS] = {DFLASH_ATTN_Q, NULL, 0, Q, NET_ZEROS, 0},
        [K_BIAS] = {DFLASH_ATTN_K, NULL, 0, K, NET_ZEROS, 0},
        [V_BIAS] = {DFLASH_ATTN_V, NULL, 0, K, NET_ZEROS, 0},
        [O_BIAS] = {DFLASH_ATTN_OUTPUT, NULL, 0, C, NET_ZEROS, 0},
    };
    int32_t slot = 0;
    if (i >= ffn_conv(n)) return dflash_conv_tensor(n, layer, "ffn", i - ffn_conv(n));
    if (i >= first_conv(n)) return dflash_conv_tensor(n, layer, "attn", i - first_conv(n));
    while (!layer_has(n, slot) || i_of_slot(n, slot) < i) slot++;
    NetTensor t = {.n_rows = all[slot].n_rows,
                   .n = all[slot].n,
                   .start = all[slot].start,
                   .std = all[slot].std,
                   .suffix = all[slot].suffix};
    if (slot >= Q_BIAS) snprintf(t.name, sizeof t.name, DFLASH_BIAS("%s"), layer, all[slot].name);
    else snprintf(t.name, sizeof t.name, DFLASH_LAYER, layer, all[slot].name);
    return t;
}

/* The tensors of a layer by their slots, or their derivatives; NULL where there is none. */
typedef struct LayerTensors {
    real *of[ALL_SLOTS];
} LayerTensors;

static LayerTensors tensors_of(const DflashNet *n, real *const *w, int32_t layer) {
    LayerTensors t = {0};
    w += N_AROUND + layer * dflash_n_of_layer(n);
    for (int32_t slot = 0; slot < ALL_SLOTS; slot++)
        if (slot < LAYER_SLOTS ? layer_has(n, slot) : n->conv_taps > 0) t.of[slot] = *w++;
    if (n->form.values_are_keys) t.of[ATTN_V] = t.of[ATTN_K];
    return t;
}

/* ---- activations -------------------------------------------------------------------------------- */

static const char acts_name[] = "a block's activations; choose fewer --anchors or a smaller --length";

static int open_layer(DflashActs *a, DflashLayer *l, const DflashNet *n, int64_t T, int64_t N, fr_error *err) {
    int64_t R = N * n->block, C = n->C, F = n->n_ff, Q = q_dim(n), K = kv_dim(n);
    const ArenaItem items[] = {
        ARENA_ITEM(&l->q.raw, R * Q),
        ARENA_ITEM(&l->q.rms, R * n->n_head),
        ARENA_ITEM(&l->q.rotated, R * Q),
        ARENA_ITEM(&l->k.raw, R * K),
        ARENA_ITEM(&l->k.rms, R * n->n_head_kv),
        ARENA_ITEM(&l->k.rotated, R * K),
        ARENA_ITEM(&l->context_k.raw, T * K),
        ARENA_ITEM(&l->context_k.rms, T * n->n_head_kv),
        ARENA_ITEM(&l->context_k.rotated, T * K),
        ARENA_ITEM(&l->v.out, R * K),
        ARENA_ITEM(&l->context_v.out, T * K),
        ARENA_ITEM(&l->x, R * C),
        ARENA_ITEM(&l->attn_normed, R * C),
        ARENA_ITEM(&l->attn_rms, R),
        ARENA_ITEM(&l->attended, R * Q),
        ARENA_ITEM(&l->x_mid, R * C),
        ARENA_ITEM(&l->ffn_normed, R * C),
        ARENA_ITEM(&l->ffn_rms, R),
        ARENA_ITEM(&l->gate, R * F),
        ARENA_ITEM(&l->up, R * F),
        ARENA_ITEM(&l->hidden, R * F),
    };
    int status = arena_take(&a->arena, items, ARENA_COUNT(items), acts_name, err);
    for (int32_t i = 0; i < n->block && !status; i++) {
        const ArenaItem probs[] = {ARENA_ITEM(&l->probs[i], n->n_head * N * (T + n->block))};
        status = arena_take(&a->arena, probs, 1, acts_name, err);
    }
    const ArenaItem of_gemma[] = {
        ARENA_ITEM(&l->v.raw, R * K),          ARENA_ITEM(&l->v.rms, R * n->n_head_kv),
        ARENA_ITEM(&l->context_v.raw, T * K),  ARENA_ITEM(&l->context_v.rms, T * n->n_head_kv),
        ARENA_ITEM(&l->attn_added.raw, R * C), ARENA_ITEM(&l->attn_added.rms, R),
        ARENA_ITEM(&l->ffn_added.raw, R * C),  ARENA_ITEM(&l->ffn_added.rms, R),
    };
    if (n->form.is_gemma && !status) status = arena_take(&a->arena, of_gemma, ARENA_COUNT(of_gemma), acts_name, err);
    if (n->conv_taps && !status) status = dflash_conv_open(&l->attn_conv, n, R, &a->arena, acts_name, err);
    if (n->conv_taps && !status) status = dflash_conv_open(&l->ffn_conv, n, R, &a->arena, acts_name, err);
    return status;
}

int dflash_layers_open(DflashActs *a, const DflashNet *n, int64_t T, fr_error *err) {
    int64_t N = n->n_anchors < T ? n->n_anchors : T, B = n->block, R = N * B;
    int64_t C = n->C, F = n->n_ff, Q = q_dim(n), K = kv_dim(n), n_rot = n->rope->params.n_rot;
    const ArenaItem items[] = {
        ARENA_ITEM(&a->anchors, T),
        ARENA_ITEM(&a->cos_sin, (T + B) * n_rot),
        ARENA_ITEM(&a->angles, R * n_rot),
        ARENA_ITEM(&a->fused, T * C),
        ARENA_ITEM(&a->fused_rms, T),
        ARENA_ITEM(&a->g, T * C),
        ARENA_ITEM(&a->layers, n->n_layer),
        ARENA_ITEM(&a->x, R * C),
        ARENA_ITEM(&a->x_rms, R),
        ARENA_ITEM(&a->out, R * C),
        ARENA_ITEM(&a->delta, R * C),
        ARENA_ITEM(&a->dout, R * C),
        ARENA_ITEM(&a->dx, R * C),
        ARENA_ITEM(&a->dadded, R * C),
        ARENA_ITEM(&a->dnormed, R * C),
        ARENA_ITEM(&a->dq, R * Q),
        ARENA_ITEM(&a->dk, R * K),
        ARENA_ITEM(&a->dv, R * K),
        ARENA_ITEM(&a->dattended, R * Q),
        ARENA_ITEM(&a->draw, (R > T ? R : T) * Q),
        ARENA_ITEM(&a->dcontext_k, T * K),
        ARENA_ITEM(&a->dcontext_v, T * K),
        ARENA_ITEM(&a->dgate, R * F),
        ARENA_ITEM(&a->dup, R * F),
        ARENA_ITEM(&a->dhidden, R * F),
        ARENA_ITEM(&a->dg, T * C),
        ARENA_ITEM(&a->dfused, T * C),
        ARENA_ITEM(&a->dscores, UNROLL_BLOCK * (T + B)),
        ARENA_ITEM(&a->rows, HEAD_LOSS_ROWS * C),
        ARENA_ITEM(&a->drows, HEAD_LOSS_ROWS * C),
    };
    int status = arena_take(&a->arena, items, ARENA_COUNT(items), acts_name, err);
    for (int32_t i = 0; i < n->n_layer && !status; i++) status = open_layer(a, &a->layers[i], n, T, N, err);
    if (n->conv_taps && !status) status = dflash_conv_open_back(&a->conv, n, R, &a->arena, acts_name, err);
    return status ? status : rope_table_fill(a->cos_sin, n->rope, (int32_t)(T + B), err);
}

/* ---- forward ------------------------------------------------------------------------------------ */

static void zero(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* out = a + b, all [n] */
static void add_to(real *out, const real *a, const real *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static int64_t n_slots(const DflashNet *n, const DflashActs *a) { return (int64_t)a->n_anchors * n->block; }

/* How the slots of one place in their blocks attend. Arrays of slots begin at the first row of each place. With a
 * window, a slot sees as many keys as that less its block up to itself; its block is never longer. */
static UnrollAttention attention_of(const DflashNet *n, real *const *w, const DflashActs *a, const DflashLayer *l,
                                    int32_t slot, real **own_k, real **own_v) {
    for (int32_t i = 0; i < n->block; i++) {
        own_k[i] = l->k.rotated + i * a->n_anchors * kv_dim(n);
        own_v[i] = l->v.out + i * a->n_anchors * kv_dim(n);
    }
    bool has_window = n->window > 0 && n->has_window[l - a->layers];
    return (UnrollAttention){.n_rows = a->n_anchors,
                             .n_keys = a->n_ctx,
                             .n_own = n->is_causal || (has_window && n->windows_are_causal) ? slot + 1 : n->block,
                             .n_most = has_window ? n->window - 1 - slot : 0,
                             .n_head = n->n_head,
                             .n_head_kv = n->n_head_kv,
                             .head_dim = n->head_dim,
                             .last = a->anchors,
                             .k = l->context_k.rotated,
                             .v = l->context_v.out,
                             .own_k = own_k,
                             .own_v = own_v,
                             .sinks = w[SINKS],
                             .scale = n->form.attn_scale};
}

/* Makes heads of some rows from their inputs. bias, norm: NULL if heads have none. */
static void make_heads(const DflashNet *n, DflashHeads *h, const real *in, const real *w, const real *bias,
                       const real *norm, const real *angles, int64_t n_rows, int64_t n_heads) {
    int64_t D = n->head_dim;
    linear_forward(h->raw, in, w, bias, n_rows, n->C, n_heads * D);
    if (norm) rmsnorm_forward(h->rotated, h->rms, h->raw, norm, n_rows * n_heads, D, (real)n->rms_eps);
    else memcpy(h->rotated, h->raw, (size_t)(n_rows * n_heads * D) * sizeof(real));
    rope_forward(ROPE_HALVES, h->rotated, angles, n_rows, n_heads, D, n->rope->params.n_rot);
}

/* Makes values of some rows from their inputs. */
static void make_values(const DflashNet *n, real *const *w, const DflashValues *v, const real *in, int64_t n_rows) {
    bool is_gemma = n->form.is_gemma;
    linear_forward(is_gemma ? v->raw : v->out, in, w[ATTN_V], w[V_BIAS], n_rows, n->C, kv_dim(n));
    if (is_gemma) rmsnorm_forward(v->out, v->rms, v->raw, NULL, n_rows * n->n_head_kv, n->head_dim, (real)n->rms_eps);
}

/* Returns where the last matrix of a part of the layer writes its outputs. */
static real *outputs_of(const DflashNet *n, DflashActs *a, const DflashConv *conv, const AddedRows *added) {
    return n->conv_taps ? conv->out : n->form.is_gemma ? added->raw : a->delta;
}

/* Makes a->delta, what the part adds, of these outputs: their convolution, and the norm of that. Where a layer has
 * neither, the outputs are a->delta. */
static void slots_delta(const DflashNet *n, real *const *w_conv, DflashActs *a, const DflashConv *conv,
                        const AddedRows *added, const real *norm) {
    if (n->conv_taps) dflash_conv_outputs(n, w_conv, conv, n->form.is_gemma ? added->raw : a->delta, a->n_anchors);
    if (n->form.is_gemma)
        rmsnorm_forward(a->delta, added->rms, added->raw, norm, n_slots(n, a), n->C, (real)n->rms_eps);
}

static void attention_block(const DflashNet *n, real *const *w, DflashActs *a, DflashLayer *l) {
    int64_t R = n_slots(n, a), C = n->C;
    real *own_k[DFLASH_MAX_BLOCK], *own_v[DFLASH_MAX_BLOCK];
    const real *in = n->conv_taps ? l->attn_conv.in : l->attn_normed;
    rmsnorm_forward(l->attn_normed, l->attn_rms, l->x, w[ATTN_NORM], R, C, (real)n->rms_eps);
    if (n->conv_taps) dflash_conv_inputs(n, w + ATTN_CONV, &l->attn_conv, l->attn_normed, a->n_anchors);
    make_heads(n, &l->q, in, w[ATTN_Q], w[Q_BIAS], w[Q_NORM], a->angles, R, n->n_head);
    make_heads(n, &l->k, in, w[ATTN_K], w[K_BIAS], w[K_NORM], a->angles, R, n->n_head_kv);
    make_heads(n, &l->context_k, a->g, w[ATTN_K], w[K_BIAS], w[K_NORM], a->cos_sin, a->n_ctx, n->n_head_kv);
    make_values(n, w, &l->v, in, R);
    make_values(n, w, &l->context_v, a->g, a->n_ctx);
    for (int32_t i = 0; i < n->block; i++) {
        UnrollAttention attention = attention_of(n, w, a, l, i, own_k, own_v);
        int64_t at = i * a->n_anchors * q_dim(n);
        unroll_attention_forward(l->attended + at, l->probs[i], l->q.rotated + at, &attention);
    }
    linear_forward(outputs_of(n, a, &l->attn_conv, &l->attn_added), l->attended, w[ATTN_OUTPUT], w[O_BIAS], R, q_dim(n),
                   C);
    slots_delta(n, w + ATTN_CONV, a, &l->attn_conv, &l->attn_added, w[POST_ATTN_NORM]);
    add_to(l->x_mid, l->x, a->delta, R * C);
}

static void feed_forward_block(const DflashNet *n, real *const *w, DflashActs *a, DflashLayer *l, real *out) {
    int64_t R = n_slots(n, a), C = n->C, F = n->n_ff;
    const real *in = n->conv_taps ? l->ffn_conv.in : l->ffn_normed;
    rmsnorm_forward(l->ffn_normed, l->ffn_rms, l->x_mid, w[FFN_NORM], R, C, (real)n->rms_eps);
    if (n->conv_taps) dflash_conv_inputs(n, w + FFN_CONV, &l->ffn_conv, l->ffn_normed, a->n_anchors);
    linear_forward(l->gate, in, w[FFN_GATE], NULL, R, C, F);
    linear_forward(l->up, in, w[FFN_UP], NULL, R, C, F);
    (n->form.is_gemma ? geglu_forward : swiglu_forward)(l->hidden, l->gate, l->up, R * F);
    linear_forward(outputs_of(n, a, &l->ffn_conv, &l->ffn_added), l->hidden, w[FFN_DOWN], NULL, R, F, C);
    slots_delta(n, w + FFN_CONV, a, &l->ffn_conv, &l->ffn_added, w[POST_FFN_NORM]);
    add_to(out, l->x_mid, a->delta, R * C);
}

/* Multiplies rows of a layer's output, or of their derivatives, by the factor that the layer has. */
static void scale_rows(const DflashNet *n, int32_t layer, real *x, int64_t count) {
    real scale = (real)n->form.out_scales[layer];
    for (int64_t i = 0; scale != 0 && i < count; i++) x[i] *= scale;
}

/* Sets the inputs of the slots and the angles of their positions. */
static void begin_blocks(const DflashNet *n, DflashActs *a, const TrainSequence *seq) {
    int64_t C = n->C, n_rot = n->rope->params.n_rot;
    for (int32_t slot = 0, row = 0; slot < n->block; slot++)
        for (int32_t i = 0; i < a->n_anchors; i++, row++) {
            int32_t pending = a->anchors[i] + 1;
            const real *from = (n->own.embd ? n->own.embd : seq->embd) + (slot ? n->mask : seq->tokens[pending]) * C;
            for (int64_t k = 0; k < C; k++) a->layers[0].x[row * C + k] = (real)n->embedding_scale * from[k];
            memcpy(a->angles + row * n_rot, a->cos_sin + (pending + slot) * n_rot, (size_t)n_rot * sizeof(real));
        }
}

void dflash_layers_forward(const DflashNet *n, real *const *w, DflashActs *a, const TrainSequence *seq) {
    real eps = (real)n->rms_eps;
    a->n_ctx = a->anchors[a->n_anchors - 1] + 1;
    linear_forward(a->fused, seq->streams, w[AROUND_FC], NULL, a->n_ctx, streams_width(n), n->C);
    rmsnorm_forward(a->g, a->fused_rms, a->fused, w[AROUND_CONTEXT_NORM], a->n_ctx, n->C, eps);
    begin_blocks(n, a, seq);
    for (int32_t i = 0; i < n->n_layer; i++) {
        LayerTensors layer = tensors_of(n, w, i);
        real *out = i + 1 < n->n_layer ? a->layers[i + 1].x : a->x;
        attention_block(n, layer.of, a, &a->layers[i]);
        feed_forward_block(n, layer.of, a, &a->layers[i], out);
        scale_rows(n, i, out, n_slots(n, a) * n->C);
    }
    rmsnorm_forward(a->out, a->x_rms, a->x, w[AROUND_OUTPUT_NORM], n_slots(n, a), n->C, eps);
}

/* ---- backward ----------------------------------------------------------------------------------- */

/* Returns the derivative with respect to the outputs of a part's last matrix. That with respect to what the part adds
 * is a->dx. conv, norm: the first slot of its convolution, and that of its norm. */
static const real *slots_delta_back(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a, int32_t conv,
                                    const DflashConv *acts, int32_t norm, const AddedRows *added) {
    int64_t R = n_slots(n, a), C = n->C;
    const real *d = a->dx;
    if (n->form.is_gemma) {
        zero(a->dadded, R * C);
        rmsnorm_backward(a->dadded, dw[norm], d, added->raw, w[norm], added->rms, R, C);
        d = a->dadded;
    }
    if (n->conv_taps == 0) return d;
    dflash_conv_outputs_back(n, w + conv, dw + conv, acts, &a->conv, d, a->n_anchors);
    return a->conv.dout;
}

/* Turns a->dx, the derivative with respect to the layer's output before its factor, into that with respect to x_mid. */
static void feed_forward_back(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a,
                              const DflashLayer *l) {
    int64_t R = n_slots(n, a), C = n->C, F = n->n_ff;
    bool has_conv = n->conv_taps > 0;
    const real *in = has_conv ? l->ffn_conv.in : l->ffn_normed;
    real *din = has_conv ? a->conv.din : a->dnormed;
    zero(a->dhidden, R * F), zero(a->dgate, R * F), zero(a->dup, R * F), zero(a->dnormed, R * C);
    const real *dout = slots_delta_back(n, w, dw, a, FFN_CONV, &l->ffn_conv, POST_FFN_NORM, &l->ffn_added);
    linear_backward(a->dhidden, dw[FFN_DOWN], NULL, dout, l->hidden, w[FFN_DOWN], R, F, C);
    (n->form.is_gemma ? geglu_backward : swiglu_backward)(a->dgate, a->dup, a->dhidden, l->gate, l->up, R * F);
    linear_backward(din, dw[FFN_GATE], NULL, a->dgate, in, w[FFN_GATE], R, C, F);
    linear_backward(din, dw[FFN_UP], NULL, a->dup, in, w[FFN_UP], R, C, F);
    if (has_conv)
        dflash_conv_inputs_back(n, w + FFN_CONV, dw + FFN_CONV, &l->ffn_conv, &a->conv, l->ffn_normed, a->dnormed,
                                a->n_anchors);
    rmsnorm_backward(a->dx, dw[FFN_NORM], a->dnormed, l->x_mid, w[FFN_NORM], l->ffn_rms, R, C);
}

/* From the derivative d with respect to rotated heads, which is overwritten: adds to din, dw, dbias and dnorm. */
static void heads_back(const DflashNet *n, DflashActs *a, const DflashHeads *h, real *d, real *din, real *dw,
                       real *dbias, real *dnorm, const real *in, const real *w, const real *norm, const real *angles,
                       int64_t n_rows, int64_t n_heads) {
    int64_t D = n->head_dim;
    rope_backward(ROPE_HALVES, d, angles, n_rows, n_heads, D, n->rope->params.n_rot);
    if (norm) {
        zero(a->draw, n_rows * n_heads * D);
        rmsnorm_backward(a->draw, dnorm, d, h->raw, norm, h->rms, n_rows * n_heads, D);
        d = a->draw;
    }
    linear_backward(din, dw, dbias, d, in, w, n_rows, n->C, n_heads * D);
}

/* The same for values: adds to din, and to the derivatives of their projection. */
static void values_back(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a, const DflashValues *v,
                        const real *d, real *din, const real *in, int64_t n_rows) {
    if (n->form.is_gemma) {
        zero(a->draw, n_rows * kv_dim(n));
        rmsnorm_backward(a->draw, NULL, d, v->raw, NULL, v->rms, n_rows * n->n_head_kv, n->head_dim);
        d = a->draw;
    }
    linear_backward(din, dw[ATTN_V], dw[V_BIAS], d, in, w[ATTN_V], n_rows, n->C, kv_dim(n));
}

/* Computes the derivatives of the rotated heads and of the values from a->dattended. */
static void blocks_attend_back(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a,
                               const DflashLayer *l) {
    real *own_k[DFLASH_MAX_BLOCK], *own_v[DFLASH_MAX_BLOCK], *own_dk[DFLASH_MAX_BLOCK], *own_dv[DFLASH_MAX_BLOCK];
    int64_t R = n_slots(n, a), K = kv_dim(n), N = a->n_anchors;
    zero(a->dq, R * q_dim(n)), zero(a->dk, R * K), zero(a->dv, R * K);
    zero(a->dcontext_k, a->n_ctx * K), zero(a->dcontext_v, a->n_ctx * K);
    for (int32_t i = 0; i < n->block; i++) own_dk[i] = a->dk + i * N * K, own_dv[i] = a->dv + i * N * K;
    for (int32_t i = 0; i < n->block; i++) {
        UnrollAttention attention = attention_of(n, w, a, l, i, own_k, own_v);
        int64_t at = i * N * q_dim(n);
        unroll_attention_backward(a->dq + at, a->dcontext_k, a->dcontext_v, own_dk, own_dv, dw[SINKS],
                                  a->dattended + at, l->probs[i], l->q.rotated + at, a->dscores, &attention);
    }
}

/* Turns a->dx further, into the derivative with respect to the layer's input, and adds to a->dg. */
static void attention_back(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a, const DflashLayer *l) {
    int64_t R = n_slots(n, a), C = n->C;
    bool has_conv = n->conv_taps > 0;
    const real *in = has_conv ? l->attn_conv.in : l->attn_normed;
    real *din = has_conv ? a->conv.din : a->dnormed;
    zero(a->dattended, R * q_dim(n)), zero(a->dnormed, R * C);
    const real *dout = slots_delta_back(n, w, dw, a, ATTN_CONV, &l->attn_conv, POST_ATTN_NORM, &l->attn_added);
    linear_backward(a->dattended, dw[ATTN_OUTPUT], dw[O_BIAS], dout, l->attended, w[ATTN_OUTPUT], R, q_dim(n), C);
    blocks_attend_back(n, w, dw, a, l);
    heads_back(n, a, &l->q, a->dq, din, dw[ATTN_Q], dw[Q_BIAS], dw[Q_NORM], in, w[ATTN_Q], w[Q_NORM], a->angles, R,
               n->n_head);
    heads_back(n, a, &l->k, a->dk, din, dw[ATTN_K], dw[K_BIAS], dw[K_NORM], in, w[ATTN_K], w[K_NORM], a->angles, R,
               n->n_head_kv);
    heads_back(n, a, &l->context_k, a->dcontext_k, a->dg, dw[ATTN_K], dw[K_BIAS], dw[K_NORM], a->g, w[ATTN_K],
               w[K_NORM], a->cos_sin, a->n_ctx, n->n_head_kv);
    values_back(n, w, dw, a, &l->v, a->dv, din, in, R);
    values_back(n, w, dw, a, &l->context_v, a->dcontext_v, a->dg, a->g, a->n_ctx);
    if (has_conv)
        dflash_conv_inputs_back(n, w + ATTN_CONV, dw + ATTN_CONV, &l->attn_conv, &a->conv, l->attn_normed, a->dnormed,
                                a->n_anchors);
    rmsnorm_backward(a->dx, dw[ATTN_NORM], a->dnormed, l->x, w[ATTN_NORM], l->attn_rms, R, C);
}

void dflash_layers_backward(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a,
                            const TrainSequence *seq) {
    int64_t R = n_slots(n, a), C = n->C;
    zero(a->dx, R * C), zero(a->dg, a->n_ctx * C), zero(a->dfused, a->n_ctx * C);
    rmsnorm_backward(a->dx, dw[AROUND_OUTPUT_NORM], a->dout, a->x, w[AROUND_OUTPUT_NORM], a->x_rms, R, C);
    for (int32_t i = n->n_layer - 1; i >= 0; i--) {
        LayerTensors layer = tensors_of(n, w, i), dlayer = tensors_of(n, dw, i);
        scale_rows(n, i, a->dx, R * C);
        feed_forward_back(n, layer.of, dlayer.of, a, &a->layers[i]);
        attention_back(n, layer.of, dlayer.of, a, &a->layers[i]);
    }
    rmsnorm_backward(a->dfused, dw[AROUND_CONTEXT_NORM], a->dg, a->fused, w[AROUND_CONTEXT_NORM], a->fused_rms,
                     a->n_ctx, C);
    linear_backward(NULL, dw[AROUND_FC], NULL, a->dfused, seq->streams, w[AROUND_FC], a->n_ctx, streams_width(n), C);
}

/* eagle3_net.c - the network of `eagle3`, EAGLE-3 (arXiv 2503.01840), as src/draft/learned/draft_eagle3.c runs it:
 *
 *     g_t = fc [s_1 ; s_2 ; s_3]                              residual streams of the frozen target after some layers
 *     f^1_t = layer([norm E(x_{t+1}) ; norm g_t], g_t)        q, k and v read the pair, g_t is the residual stream
 *     f^s_t = layer([norm E(x_{t+s}) ; norm f^{s-1}_t], f^{s-1}_t)
 *     distribution of x_{t+s+1} = softmax(W norm f^s_t)
 *     loss of a step = KL(target's distribution || that)
 *
 * The steps after the first are the training-time test of the paper: the layer reads its own outputs, as it does when
 * it drafts. unroll_layer.c runs them as rows of one batch; eagle3_layers.c has what is around the layer. There is no
 * loss of hidden states, so f is free to hold whatever predicts the tokens best. Further layers may follow the first
 * one: f is then the output of the last.
 *
 * P-EAGLE (arXiv 2602.01469), with `block`. Step s >= 2 reads neither tokens nor outputs:
 *
 *     f^s_t = layer([norm E(m) ; norm g], g)       m the mask token, g = fc of streams that are learned, at position
 *                                                  t + s - 1; it sees the first steps 1 .. t and its own earlier ones
 *
 * Step 1 runs and learns at every position. A block costs a row in every layer for each further step, so only some
 * positions begin one: whenever the sequence is learned, n_anchors of those with a prediction in the loss mask are
 * drawn anew, and the loss of these steps is multiplied by the ratio of all such positions to those drawn (the paper
 * draws ever fewer positions for later steps). Memory for the steps after the first is that of n_anchors rows.
 *
 * W may have a vocabulary of its own, mostly the tokens that are frequent in the training data
 * (HeadLossOptions.own_of).
 *
 * Variants of published files: a norm of the streams before fc, of all together or of each; a residual stream that
 * begins with norm g_t (keeps_normed); steps that read norm f instead of f (continues_normed); layers of the form of
 * Gemma 4's (OwnForm).
 *
 * Initial values: fc passes the last stream through, Wo and Wdown are zeros, and the norm before W and W itself are the
 * target's. So the drafter first repeats what the target's late layer predicts. Later layers begin as the target's last
 * one, but add nothing at first; the learned streams are random.
 *
 * Test: test_train_drafters.c by finite differences in double, test_train_eagle3.c against the drafter. */
#include "train/eagle3_net.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"

#include <stdio.h>
#include <string.h>

/* ---- tensors ------------------------------------------------------------------------------------ */

/* Does a layer have a tensor, UNROLL_Q or a later one? The first layer has no UNROLL_ATTN_NORM. */
static bool has_in_layer(const Eagle3Net *n, int32_t slot) {
    if (slot == UNROLL_CHAIN_INPUTS) return false;
    if (slot == UNROLL_Q_NORM || slot == UNROLL_K_NORM) return n->layer.has_head_norms;
    if (slot >= UNROLL_Q_BIAS && slot <= UNROLL_V_BIAS) return n->layer.has_biases;
    if (slot == UNROLL_POST_ATTN_NORM || slot == UNROLL_POST_FFN_NORM) return n->form.is_gemma;
    return slot != UNROLL_O_BIAS || n->layer.has_output_bias;
}

static bool has_slot(const Eagle3Net *n, int32_t slot) {
    if (slot == UNROLL_FC_BIAS) return n->has_fc_bias;
    if (slot >= UNROLL_Q && slot < UNROLL_SLOTS) return slot != UNROLL_ATTN_NORM && has_in_layer(n, slot);
    if (slot == STREAM_NORM) return n->norms_streams || n->norms_each;
    if (slot == MASK_HIDDEN) return n->block > 0;
    return slot != OUTPUT || n->has_own_output;
}

static int32_t n_in_slots(const Eagle3Net *n) {
    int32_t count = 0;
    for (int32_t slot = 0; slot < N_SLOTS; slot++) count += has_slot(n, slot);
    return count;
}

static int32_t n_in_later(const Eagle3Net *n) {
    int32_t count = 0;
    for (int32_t slot = UNROLL_Q; slot < UNROLL_SLOTS; slot++) count += has_in_layer(n, slot);
    return count;
}

static int32_t n_tensors(const void *net) {
    const Eagle3Net *n = net;
    return n_in_slots(n) + n->n_later * n_in_later(n);
}

static void find_tensors(const Eagle3Net *n, real *const *w, Eagle3Tensors *out) {
    int32_t i = 0;
    *out = (Eagle3Tensors){0};
    for (int32_t slot = 0; slot < N_SLOTS; slot++) out->slots[slot] = has_slot(n, slot) ? w[i++] : NULL;
    for (int32_t k = 0; k < n->n_later; k++)
        for (int32_t slot = UNROLL_Q; slot < UNROLL_SLOTS; slot++)
            out->later[k][slot] = has_in_layer(n, slot) ? w[i++] : NULL;
}

/* A tensor of layer `layer`, by its number, UNROLL_Q or a later one. */
static NetTensor tensor_of_layer(const Eagle3Net *n, int32_t layer, int32_t i) {
    const UnrollShape *s = &n->layer;
    int64_t C = s->C, F = s->n_ff, Q = (int64_t)s->n_head * s->head_dim, K = (int64_t)s->n_head_kv * s->head_dim;
    int64_t in = layer ? C : 2 * C;
    const NetStart of_target = layer ? NET_LAYER : NET_PAIR, qk = s->qk_start_anew ? NET_NORMAL : of_target;
    const struct {
        const char *name;
        int64_t n_rows, n;
        NetStart start;
        double std;
    } tensors[] = {
        [UNROLL_Q] = {LAYER_ATTN_Q, Q, in, qk, 0.02},
        [UNROLL_K] = {LAYER_ATTN_K, K, in, qk, 0.02},
        [UNROLL_V] = {LAYER_ATTN_V, K, in, of_target, layer ? 0.02 : 1 / sqrt((double)C)},
        [UNROLL_O] = {LAYER_ATTN_OUTPUT, C, Q, NET_ZEROS, 0},
        [UNROLL_FFN_NORM] = {LAYER_FFN_NORM, 0, C, NET_LAYER, 0},
        [UNROLL_GATE] = {LAYER_FFN_GATE, F, C, NET_LAYER, 0.02},
        [UNROLL_UP] = {LAYER_FFN_UP, F, C, NET_LAYER, 0.02},
        [UNROLL_DOWN] = {LAYER_FFN_DOWN, C, F, NET_ZEROS, 0},
        [UNROLL_ATTN_NORM] = {LAYER_ATTN_NORM, 0, C, NET_LAYER, 0},
        [UNROLL_Q_NORM] = {NEXTN_Q_NORM, 0, s->head_dim, NET_LAYER, 0},
        [UNROLL_K_NORM] = {NEXTN_K_NORM, 0, s->head_dim, NET_LAYER, 0},
        [UNROLL_Q_BIAS] = {NEXTN_Q_BIAS, 0, Q, NET_ZEROS, 0},
        [UNROLL_K_BIAS] = {NEXTN_K_BIAS, 0, K, NET_ZEROS, 0},
        [UNROLL_V_BIAS] = {NEXTN_V_BIAS, 0, K, NET_ZEROS, 0},
        [UNROLL_O_BIAS] = {EAGLE3_OUTPUT_BIAS, 0, C, NET_ZEROS, 0},
        [UNROLL_POST_ATTN_NORM] = {GEMMA_LAYER_ATTN_NORM ".weight", 0, C, NET_ONES, 0},
        [UNROLL_POST_FFN_NORM] = {GEMMA_LAYER_FFN_NORM ".weight", 0, C, NET_ONES, 0},
    };
    NetTensor t = {.n_rows = tensors[i].n_rows,
                   .n = tensors[i].n,
                   .start = tensors[i].start,
                   .std = tensors[i].std,
                   .suffix = tensors[i].name};
    snprintf(t.name, sizeof t.name, EAGLE3_LAYER, layer, tensors[i].name);
    return t;
}

static NetTensor tensor_of_slot(const Eagle3Net *n, int32_t slot) {
    int64_t C = n->layer.C;
    bool has_targets_width = C == n->n_target;
    const NetStart fc = has_targets_width ? NET_FUSE : NET_NORMAL, output = has_targets_width ? NET_HEAD : NET_NORMAL;
    const struct {
        const char *name, *suffix;
        int64_t n_rows, n;
        NetStart start;
        double std;
    } slots[N_SLOTS] = {
        [UNROLL_FC] = {EAGLE3_FC ".weight", NULL, C, eagle3_streams_width(n), fc, 0.01},
        [UNROLL_FC_BIAS] = {EAGLE3_FC ".bias", NULL, 0, C, NET_ZEROS, 0},
        [TOKEN_NORM] = {"blk.0." LAYER_ATTN_NORM, NULL, 0, C, NET_ONES, 0},
        [HIDDEN_NORM] = {EAGLE3_HIDDEN_NORM, LAYER_ATTN_NORM, 0, C, NET_LAYER, 0},
        [OUTPUT_NORM] = {EAGLE3_OUTPUT_NORM, "output_norm.weight", 0, C, NET_COPY, 0},
        [STREAM_NORM] = {EAGLE3_STREAM_NORM, NULL, 0, eagle3_streams_width(n), NET_ONES, 0},
        [OUTPUT] = {EAGLE3_OUTPUT, NULL, n->loss.own_of ? n->loss.n_own : n->V, C, output, 0},
        [MASK_HIDDEN] = {EAGLE3_MASK_HIDDEN, NULL, 0, eagle3_streams_width(n), NET_NORMAL, 1},
    };
    if (slot >= UNROLL_Q && slot < UNROLL_SLOTS) return tensor_of_layer(n, 0, slot);
    NetTensor t = {.n_rows = slots[slot].n_rows,
                   .n = slots[slot].n,
                   .start = slots[slot].start,
                   .std = slots[slot].std,
                   .suffix = slots[slot].suffix,
                   .tokens = slot == OUTPUT ? n->own.tokens : NULL};
    snprintf(t.name, sizeof t.name, "%s", slots[slot].name);
    return t;
}

static NetTensor tensor(const void *net, int32_t i) {
    const Eagle3Net *n = net;
    int32_t slot = 0, later = i - n_in_slots(n);
    if (later >= 0) {
        int32_t left = later % n_in_later(n);
        for (slot = UNROLL_Q; !has_in_layer(n, slot) || left-- > 0; slot++) {}
        return tensor_of_layer(n, 1 + later / n_in_later(n), slot);
    }
    for (int32_t k = -1; slot < N_SLOTS; slot++)
        if (has_slot(n, slot) && ++k == i) break;
    return tensor_of_slot(n, slot);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static void set_int(GgufWriter *w, const char *key, int64_t value) { gguf_set_u32(w, key, (uint32_t)value); }

static void set_keys(const void *net, GgufWriter *w) {
    const Eagle3Net *n = net;
    const UnrollShape *s = &n->layer;
    set_int(w, EAGLE3 "block_count", 1 + n->n_later);
    set_int(w, EAGLE3 "context_length", n->n_ctx);
    set_int(w, EAGLE3 "embedding_length", s->C);
    set_int(w, EAGLE3 "feed_forward_length", s->n_ff);
    set_int(w, EAGLE3 "attention.head_count", s->n_head);
    set_int(w, EAGLE3 "attention.head_count_kv", s->n_head_kv);
    set_int(w, EAGLE3 "attention.key_length", s->head_dim);
    set_int(w, EAGLE3 "attention.value_length", s->head_dim);
    gguf_set_f32(w, EAGLE3 "attention.layer_norm_rms_epsilon", s->rms_eps);
    own_form_write(w, EAGLE3, &n->form, 1 + n->n_later);
    own_rope_write(w, EAGLE3, &s->rope->params, EAGLE3_ROPE_FACTORS, n->rope_factors);
    gguf_set_i32s(w, EAGLE3 EAGLE3_KEY_LAYERS, n->layers, n->n_streams);
    set_int(w, EAGLE3 EAGLE3_KEY_TARGET_WIDTH, n->n_target);
    if (n->block) set_int(w, EAGLE3 EAGLE3_KEY_BLOCK, n->block);
    if (n->block) set_int(w, EAGLE3 EAGLE3_KEY_MASK, n->mask);
    const struct {
        const char *key;
        bool is_set;
    } flags[] = {{EAGLE3 EAGLE3_KEY_NORM_BEFORE_FC, n->norms_streams},
                 {EAGLE3 EAGLE3_KEY_NORM_EACH_STREAM, n->norms_each},
                 {EAGLE3 EAGLE3_KEY_NORM_BEFORE_RESIDUAL, n->keeps_normed},
                 {EAGLE3 EAGLE3_KEY_NORM_OUTPUT, n->continues_normed}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].is_set) gguf_set_bool(w, flags[i].key, true);
    own_vocabulary_write(w, &n->own, n->loss.n_own);
}

static bool keeps(const void *net, const char *name) {
    const Eagle3Net *n = net;
    return own_vocabulary_keeps(&n->own, name) || own_form_keeps(&n->form, 1 + n->n_later, name) ||
           (n->rope_factors && strcmp(name, EAGLE3_ROPE_FACTORS) == 0);
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    Eagle3Acts *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    unroll_close(&a->layer);
    for (UnrollActs *later = a->later; later && later < a->later + a->n_later; later++) unroll_close(later);
    arena_free(&a->arena);
    mem_free(a);
}

static int open_arrays(Eagle3Acts *a, const Eagle3Net *n, int64_t T, fr_error *err) {
    static const char what[] = "a layer's activations; choose a smaller --length";
    int64_t C = n->layer.C, of_norm = has_slot(n, STREAM_NORM) ? T * eagle3_streams_width(n) : 1;
    const ArenaItem shared[] = {
        ARENA_ITEM(&a->streams, of_norm),       ARENA_ITEM(&a->stream_rms, T * n->n_streams),
        ARENA_ITEM(&a->dstreams, of_norm),      ARENA_ITEM(&a->dscratch, eagle3_streams_width(n) + C),
        ARENA_ITEM(&a->dstate, T * C),          ARENA_ITEM(&a->x, HEAD_LOSS_ROWS * C),
        ARENA_ITEM(&a->dx, HEAD_LOSS_ROWS * C), ARENA_ITEM(&a->mask_streams, eagle3_streams_width(n)),
        ARENA_ITEM(&a->mask_rms, n->n_streams), ARENA_ITEM(&a->mask_state, C),
        ARENA_ITEM(&a->dmask_state, C),         ARENA_ITEM(&a->later, n->n_later),
    };
    int status = arena_take(&a->arena, shared, ARENA_COUNT(shared), what, err);
    for (; a->n_later < n->n_later && !status; a->n_later++)
        status = unroll_open(&a->later[a->n_later], &a->shapes[1 + a->n_later], (int32_t)T, err);
    for (int32_t i = 0; i < n->layer.n_steps && !status; i++) {
        const ArenaItem of_step[] = {
            ARENA_ITEM(&a->state[i], T * C), ARENA_ITEM(&a->token_rms[i], T), ARENA_ITEM(&a->hidden_rms[i], T),
            ARENA_ITEM(&a->out[i], T * C),   ARENA_ITEM(&a->out_rms[i], T),   ARENA_ITEM(&a->dout[i], T * C),
        };
        status = arena_take(&a->arena, of_step, ARENA_COUNT(of_step), what, err);
    }
    return status;
}

static UnrollShape shape_of_layer(const Eagle3Net *n, int32_t layer) {
    UnrollShape s = n->layer;
    s.is_gemma = n->form.is_gemma;
    s.attn_scale = n->form.attn_scale;
    s.out_scale = (double)n->form.out_scales[layer];
    s.reads_pairs = layer == 0;
    s.has_attn_norm = layer > 0;
    return s;
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const Eagle3Net *n = net;
    Eagle3Acts *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a layer's activations", sizeof *a);
        return NULL;
    }
    for (int32_t i = 0; i <= n->n_later; i++) a->shapes[i] = shape_of_layer(n, i);
    int status = head_loss_open(&a->loss, &n->loss, n->n_target, n->V, err);
    if (!status) status = unroll_open(&a->layer, &a->shapes[0], max_length, err);
    if (!status) status = open_arrays(a, n, max_length, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- the loss ----------------------------------------------------------------------------------- */

/* Computes the loss of the steps `first` to `last` at the current positions, and unless dw is NULL a->dout. */
static void learn_positions(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a,
                            const TrainSequence *seq, int32_t first, int32_t last, double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    size_t C = (size_t)n->layer.C;
    const real *head = n->has_own_output ? w->slots[OUTPUT] : seq->head;
    for (int32_t step = first; step <= last; step++) {
        for (int32_t i = head_loss_skipped(h, step); i < h->n; i++)
            memcpy(a->x + (size_t)i * C, a->out[step - 1] + (size_t)(h->positions[i] - step) * C, C * sizeof(real));
        memset(a->dx, 0, (size_t)h->n * C * sizeof(real));
        head_loss_rows(h, seq, step, a->x, n->layer.C, head, NULL, dw ? a->dx : NULL, dw ? dw->slots[OUTPUT] : NULL,
                       NULL, weight, sums);
        for (int32_t i = head_loss_skipped(h, step); dw && i < h->n; i++) {
            real *dout = a->dout[step - 1] + (size_t)(h->positions[i] - step) * C;
            for (size_t k = 0; k < C; k++) dout[k] += a->dx[(size_t)i * C + k];
        }
    }
}

/* Computes the loss of the steps after the first at the drawn positions, as an estimate of that at all positions. */
static void learn_blocks(const Eagle3Net *n, const Eagle3Tensors *w, const Eagle3Tensors *dw, Eagle3Acts *a,
                         const TrainSequence *seq, double weight, TrainSums *sums) {
    TrainSums drawn = {0};
    if (a->layer.n_chains == 0) return;
    double ratio = (double)a->layer.n_candidates / a->layer.n_chains;
    for (int32_t step = 2; step <= n->layer.n_steps; step++)
        for (int32_t from = 0; head_loss_next_drawn(&a->loss, seq, a->layer.chains, a->layer.n_chains, step, &from);)
            learn_positions(n, w, dw, a, seq, step, step, ratio * weight, &drawn);
    anchors_add_sums(&drawn, ratio, sums);
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const Eagle3Net *n = net;
    Eagle3Acts *a = acts;
    Eagle3Tensors tensors, derivatives;
    find_tensors(n, w, &tensors);
    if (dw) find_tensors(n, dw, &derivatives);
    const Eagle3Tensors *d = dw ? &derivatives : NULL;
    eagle3_layers_forward(n, &tensors, a, seq);
    if (dw) eagle3_layers_zero(n, a, seq);
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        learn_positions(n, &tensors, d, a, seq, 1, n->block ? 1 : n->layer.n_steps, weight, sums);
    if (n->block) learn_blocks(n, &tensors, d, a, seq, weight, sums);
    if (dw) eagle3_layers_backward(n, &tensors, d, a, seq);
}

const NetClass eagle3_net_class = {"eagle3", n_tensors, tensor, acts_open,        acts_close, learn,
                                   set_keys, NULL,      NULL,   LAYOUT_PUBLISHED, keeps};

/* dflash_net.c - the network of `dflash` as src/draft/learned/draft_dflash.c runs it. An anchor is a position t after
 * which a block of B slots begins: the pending token x_{t+1}, then B - 1 times the mask token m.
 *
 *     g_j = norm(fc [s_1 ; ... ; s_S])                     streams of the frozen target at position j
 *     k_j, v_j = rope(norm_k(Wk g_j)), Wv g_j              in each layer, for the context j = 0 .. t
 *     slots = E(x_{t+1}), E(m), E(m), ...                  at the positions t + 1, t + 2, ...
 *     slots += Wo attention(rope(norm_q(Wq n)), the context and all slots of the block),      n = norm(slots)
 *     slots += Wdown (silu(Wgate n) * (Wup n)),                                               n = norm(slots)
 *     distribution of x_{t+s+1} = softmax(W norm(slot))    the slot of step s, with the target's head W
 *     loss of a step = KL(target's distribution || that)
 *
 *     position         t    t+1     t+2   t+3
 *     token            x_t  x_t+1   m     m
 *     from_anchor           step 1  2     3                each slot predicts the token after its own place
 *     otherwise                     1     2                each mask predicts the token in its place
 *
 * A block reads no token after the pending one, so all blocks of a sequence run at once. Each costs B rows in every
 * layer, so only some positions are anchors: whenever the sequence is learned, up to n_anchors of those with a
 * prediction in the loss mask are drawn anew. A loss is multiplied by the ratio of all such positions to those drawn,
 * so that its mean does not depend on n_anchors.
 *
 * Rows. Row i N + a is slot i of anchor a of N. The keys of a slot of all anchors are then one array, as
 * unroll_attention_forward takes the own keys of its rows.
 *
 * Initial values: fc passes the last stream through, each layer is the target's last one, and the norm before W is the
 * target's. Wo and Wdown are not zeros, as they are in other methods: the slots have nothing but a token's embedding
 * without the layers, and its norm would predict one token with confidence.
 *
 * Test: test_train_drafters.c by finite differences in double, test_train_dflash.c against the drafter. */
#include "base/mem.h"
#include "base/rng.h"
#include "draft/learned/learned_files.h"
#include "train/nets.h"

#include <stdio.h>
#include <string.h>

/* The tensors around the layers, then those of each layer. */
enum { FC, CONTEXT_NORM, OUTPUT_NORM, N_AROUND };
enum { ATTN_NORM, ATTN_Q, ATTN_K, ATTN_V, ATTN_OUTPUT, FFN_NORM, FFN_GATE, FFN_UP, FFN_DOWN, Q_NORM, K_NORM, OF_LAYER };

/* Heads of some rows: before their norm, after it, and rotated. */
typedef struct DflashHeads {
    real *raw, *rms; /* [rows][heads][head_dim], [rows][heads] */
    real *rotated;   /* as raw */
} DflashHeads;

/* The activations of a layer; R rows of slots, n_ctx rows of context. */
typedef struct DflashLayer {
    DflashHeads q, k, context_k;
    real *v, *context_v;              /* [R][K], [n_ctx][K] */
    real *x, *attn_normed, *attn_rms; /* [R][C] the input, [R][C], [R] */
    real *probs[DFLASH_MAX_BLOCK];    /* of each slot, as in UnrollAttention */
    real *attended, *x_mid;           /* [R][Q], [R][C] */
    real *ffn_normed, *ffn_rms;       /* [R][C], [R] */
    real *gate, *up, *hidden;         /* [R][F] */
} DflashLayer;

typedef struct DflashActs {
    HeadLoss loss;
    Arena arena;
    int32_t n_ctx, n_anchors;              /* of the sequence */
    int32_t *anchors;                      /* [n_anchors] ascending */
    real *cos_sin, *angles;                /* [T + B][n_rot] by position, [R][n_rot] */
    real *fused, *fused_rms, *g;           /* [n_ctx][C], [n_ctx], [n_ctx][C] */
    DflashLayer *layers;                   /* [n_layer] */
    real *x, *x_rms, *out;                 /* [R][C] the last layer's output, [R], [R][C] after the final norm */
    real *delta;                           /* [R][C] */
    real *dout, *dx, *dnormed;             /* [R][C] */
    real *dq, *dk, *dv, *dattended, *draw; /* [R][Q], [R][K] twice, [R][Q] twice */
    real *dcontext_k, *dcontext_v;         /* [n_ctx][K] */
    real *dgate, *dup, *dhidden;           /* [R][F] */
    real *dg, *dfused, *dscores;           /* [n_ctx][C] twice, [UNROLL_BLOCK][n_ctx + B] */
    real *rows, *drows;                    /* [HEAD_LOSS_ROWS][C] inputs of the LM head */
} DflashActs;

static int64_t q_dim(const DflashNet *n) { return (int64_t)n->n_head * n->head_dim; }
static int64_t kv_dim(const DflashNet *n) { return (int64_t)n->n_head_kv * n->head_dim; }
static int64_t streams_width(const DflashNet *n) { return (int64_t)n->n_streams * n->C; }
static int32_t n_of_layer(const DflashNet *n) { return n->has_head_norms ? OF_LAYER : Q_NORM; }

/* Returns the slot that predicts at a step. */
static int32_t slot_of_step(const DflashNet *n, int32_t step) { return n->from_anchor ? step - 1 : step; }

/* ---- tensors ------------------------------------------------------------------------------------ */

static int32_t n_tensors(const void *net) {
    const DflashNet *n = net;
    return N_AROUND + n->n_layer * n_of_layer(n);
}

static NetTensor tensor_around(const DflashNet *n, int32_t i) {
    NetTensor t = {.n = n->C, .start = NET_ONES};
    static const char *const names[] = {DFLASH_FC, DFLASH_CONTEXT_NORM, DFLASH_OUTPUT_NORM};
    if (i == FC) t.n_rows = n->C, t.n = streams_width(n), t.start = NET_FUSE, t.std = 0.02;
    if (i == OUTPUT_NORM) t.start = NET_COPY, t.suffix = DFLASH_OUTPUT_NORM;
    snprintf(t.name, sizeof t.name, "%s", names[i]);
    return t;
}

static NetTensor tensor_of_layer(const DflashNet *n, int32_t layer, int32_t i) {
    int64_t C = n->C, F = n->n_ff, Q = q_dim(n), K = kv_dim(n), D = n->head_dim;
    const NetStart qk = n->qk_start_anew ? NET_NORMAL : NET_LAYER;
    const struct {
        const char *name, *suffix;
        int64_t n_rows, n;
        NetStart start;
        double std;
    } all[OF_LAYER] = {
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
    };
    NetTensor t = {.n_rows = all[i].n_rows,
                   .n = all[i].n,
                   .start = all[i].start,
                   .std = all[i].std,
                   .suffix = all[i].suffix};
    snprintf(t.name, sizeof t.name, DFLASH_LAYER, layer, all[i].name);
    return t;
}

static NetTensor tensor(const void *net, int32_t i) {
    const DflashNet *n = net;
    if (i < N_AROUND) return tensor_around(n, i);
    return tensor_of_layer(n, (i - N_AROUND) / n_of_layer(n), (i - N_AROUND) % n_of_layer(n));
}

/* The tensors of a layer; NULL stays NULL. */
static real *const *of_layer(const DflashNet *n, real *const *w, int32_t layer) {
    return w + N_AROUND + layer * n_of_layer(n);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static void set_keys(const void *net, GgufWriter *w) {
    const DflashNet *n = net;
    const struct {
        const char *key;
        int32_t value;
    } numbers[] = {{DFLASH "block_count", n->n_layer},
                   {DFLASH "context_length", n->n_ctx},
                   {DFLASH "embedding_length", n->C},
                   {DFLASH "feed_forward_length", n->n_ff},
                   {DFLASH "attention.head_count", n->n_head},
                   {DFLASH "attention.head_count_kv", n->n_head_kv},
                   {DFLASH "attention.key_length", n->head_dim},
                   {DFLASH "attention.value_length", n->head_dim},
                   {DFLASH "rope.dimension_count", n->rope->params.n_rot},
                   {DFLASH DFLASH_KEY_BLOCK, n->block},
                   {DFLASH DFLASH_KEY_TARGET_WIDTH, n->C},
                   {DFLASH_VOCABULARY_MASK, n->mask}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        gguf_set_u32(w, numbers[i].key, (uint32_t)numbers[i].value);
    gguf_set_f32(w, DFLASH "rope.freq_base", (float)n->rope->params.base);
    gguf_set_f32(w, DFLASH "attention.layer_norm_rms_epsilon", n->rms_eps);
    gguf_set_i32s(w, DFLASH DFLASH_KEY_LAYERS, n->layers, n->n_streams);
    gguf_set_bool(w, DFLASH DFLASH_KEY_FROM_ANCHOR, n->from_anchor);
    gguf_set_bool(w, DFLASH DFLASH_KEY_CAUSAL, n->is_causal);
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    DflashActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    arena_free(&a->arena);
    mem_free(a);
}

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
        ARENA_ITEM(&l->v, R * K),
        ARENA_ITEM(&l->context_v, T * K),
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
    return status;
}

static int open_arrays(DflashActs *a, const DflashNet *n, int64_t T, fr_error *err) {
    int64_t N = n->n_anchors < T ? n->n_anchors : T, B = n->block, R = N * B;
    int64_t C = n->C, F = n->n_ff, Q = q_dim(n), K = kv_dim(n), n_rot = n->rope->params.n_rot;
    const ArenaItem items[] = {
        ARENA_ITEM(&a->anchors, N),
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
    return status ? status : rope_table_fill(a->cos_sin, n->rope, (int32_t)(T + B), err);
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const DflashNet *n = net;
    DflashActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, acts_name, sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->C, n->V, err);
    if (!status) status = open_arrays(a, n, max_length, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- anchors ------------------------------------------------------------------------------------ */

/* Does a block that begins after position t predict at a position in the loss mask? */
static bool is_candidate(const DflashNet *n, const TrainSequence *seq, int32_t t) {
    for (int32_t p = t + 1; p <= t + n->loss.n_steps && p < seq->T; p++)
        if (seq->loss_mask[p]) return true;
    return false;
}

/* Draws the anchors of a sequence, each set with the same probability: a candidate is taken with the probability of the
 * places left among the candidates left. Returns the number of candidates. */
static int32_t choose_anchors(const DflashNet *n, DflashActs *a, const TrainSequence *seq) {
    int32_t n_candidates = 0, i = 0;
    for (int32_t t = 0; t < seq->T; t++) n_candidates += is_candidate(n, seq, t);
    int32_t n_wanted = n->n_anchors < n_candidates ? n->n_anchors : n_candidates;
    a->n_anchors = 0;
    for (int32_t t = 0; t < seq->T && a->n_anchors < n_wanted; t++) {
        if (!is_candidate(n, seq, t)) continue;
        double u = rng_uniform(seq->seed, RNG_ANCHORS, (uint64_t)seq->i_sequence, (uint32_t)i);
        if (u * (n_candidates - i) < n_wanted - a->n_anchors) a->anchors[a->n_anchors++] = t;
        i++;
    }
    return n_candidates;
}

/* ---- forward ------------------------------------------------------------------------------------ */

static void zero(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

/* out = a + b, all [n] */
static void add_to(real *out, const real *a, const real *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static int64_t n_slots(const DflashNet *n, const DflashActs *a) { return (int64_t)a->n_anchors * n->block; }

/* How the slots of one place in their blocks attend. Arrays of slots begin at the first row of each place. */
static UnrollAttention attention_of(const DflashNet *n, const DflashActs *a, const DflashLayer *l, int32_t slot,
                                    real **own_k, real **own_v) {
    for (int32_t i = 0; i < n->block; i++) {
        own_k[i] = l->k.rotated + i * a->n_anchors * kv_dim(n);
        own_v[i] = l->v + i * a->n_anchors * kv_dim(n);
    }
    return (UnrollAttention){.n_rows = a->n_anchors,
                             .n_keys = a->n_ctx,
                             .n_own = n->is_causal ? slot + 1 : n->block,
                             .n_head = n->n_head,
                             .n_head_kv = n->n_head_kv,
                             .head_dim = n->head_dim,
                             .last = a->anchors,
                             .k = l->context_k.rotated,
                             .v = l->context_v,
                             .own_k = own_k,
                             .own_v = own_v};
}

/* Makes heads of some rows from their inputs. norm: NULL if heads have none. */
static void make_heads(const DflashNet *n, DflashHeads *h, const real *in, const real *w, const real *norm,
                       const real *angles, int64_t n_rows, int64_t n_heads) {
    int64_t D = n->head_dim;
    linear_forward(h->raw, in, w, NULL, n_rows, n->C, n_heads * D);
    if (norm) rmsnorm_forward(h->rotated, h->rms, h->raw, norm, n_rows * n_heads, D, (real)n->rms_eps);
    else memcpy(h->rotated, h->raw, (size_t)(n_rows * n_heads * D) * sizeof(real));
    rope_forward(ROPE_HALVES, h->rotated, angles, n_rows, n_heads, D, n->rope->params.n_rot);
}

static void attention_block(const DflashNet *n, real *const *w, DflashActs *a, DflashLayer *l) {
    int64_t R = n_slots(n, a), C = n->C;
    const real *q_norm = n->has_head_norms ? w[Q_NORM] : NULL, *k_norm = n->has_head_norms ? w[K_NORM] : NULL;
    real *own_k[DFLASH_MAX_BLOCK], *own_v[DFLASH_MAX_BLOCK];
    rmsnorm_forward(l->attn_normed, l->attn_rms, l->x, w[ATTN_NORM], R, C, (real)n->rms_eps);
    make_heads(n, &l->q, l->attn_normed, w[ATTN_Q], q_norm, a->angles, R, n->n_head);
    make_heads(n, &l->k, l->attn_normed, w[ATTN_K], k_norm, a->angles, R, n->n_head_kv);
    make_heads(n, &l->context_k, a->g, w[ATTN_K], k_norm, a->cos_sin, a->n_ctx, n->n_head_kv);
    linear_forward(l->v, l->attn_normed, w[ATTN_V], NULL, R, C, kv_dim(n));
    linear_forward(l->context_v, a->g, w[ATTN_V], NULL, a->n_ctx, C, kv_dim(n));
    for (int32_t i = 0; i < n->block; i++) {
        UnrollAttention attention = attention_of(n, a, l, i, own_k, own_v);
        int64_t at = i * a->n_anchors * q_dim(n);
        unroll_attention_forward(l->attended + at, l->probs[i], l->q.rotated + at, &attention);
    }
    linear_forward(a->delta, l->attended, w[ATTN_OUTPUT], NULL, R, q_dim(n), C);
    add_to(l->x_mid, l->x, a->delta, R * C);
}

static void feed_forward_block(const DflashNet *n, real *const *w, DflashActs *a, DflashLayer *l, real *out) {
    int64_t R = n_slots(n, a), C = n->C, F = n->n_ff;
    rmsnorm_forward(l->ffn_normed, l->ffn_rms, l->x_mid, w[FFN_NORM], R, C, (real)n->rms_eps);
    linear_forward(l->gate, l->ffn_normed, w[FFN_GATE], NULL, R, C, F);
    linear_forward(l->up, l->ffn_normed, w[FFN_UP], NULL, R, C, F);
    swiglu_forward(l->hidden, l->gate, l->up, R * F);
    linear_forward(a->delta, l->hidden, w[FFN_DOWN], NULL, R, F, C);
    add_to(out, l->x_mid, a->delta, R * C);
}

/* Sets the inputs of the slots and the angles of their positions. */
static void begin_blocks(const DflashNet *n, DflashActs *a, const TrainSequence *seq) {
    int64_t C = n->C, n_rot = n->rope->params.n_rot;
    for (int32_t slot = 0, row = 0; slot < n->block; slot++)
        for (int32_t i = 0; i < a->n_anchors; i++, row++) {
            int32_t pending = a->anchors[i] + 1;
            const real *from = seq->embd + (slot ? n->mask : seq->tokens[pending]) * C;
            for (int64_t k = 0; k < C; k++) a->layers[0].x[row * C + k] = (real)n->embedding_scale * from[k];
            memcpy(a->angles + row * n_rot, a->cos_sin + (pending + slot) * n_rot, (size_t)n_rot * sizeof(real));
        }
}

static void forward(const DflashNet *n, real *const *w, DflashActs *a, const TrainSequence *seq) {
    real eps = (real)n->rms_eps;
    a->n_ctx = a->anchors[a->n_anchors - 1] + 1;
    linear_forward(a->fused, seq->streams, w[FC], NULL, a->n_ctx, streams_width(n), n->C);
    rmsnorm_forward(a->g, a->fused_rms, a->fused, w[CONTEXT_NORM], a->n_ctx, n->C, eps);
    begin_blocks(n, a, seq);
    for (int32_t i = 0; i < n->n_layer; i++) {
        real *const *layer = of_layer(n, w, i), *out = i + 1 < n->n_layer ? a->layers[i + 1].x : a->x;
        attention_block(n, layer, a, &a->layers[i]);
        feed_forward_block(n, layer, a, &a->layers[i], out);
    }
    rmsnorm_forward(a->out, a->x_rms, a->x, w[OUTPUT_NORM], n_slots(n, a), n->C, eps);
}

/* ---- the loss ----------------------------------------------------------------------------------- */

/* Collects the next predictions of a step, from anchor *from on. at[i] is the row of the slot that predicts at
 * positions[i]. Returns their number; 0: there are none left. */
static int32_t next_predictions(const DflashNet *n, const DflashActs *a, const TrainSequence *seq, int32_t step,
                                int32_t *from, int32_t positions[HEAD_LOSS_ROWS], int64_t at[HEAD_LOSS_ROWS]) {
    int32_t n_found = 0;
    for (; *from < a->n_anchors && n_found < HEAD_LOSS_ROWS; ++*from) {
        int32_t p = a->anchors[*from] + step;
        if (p >= seq->T || !seq->loss_mask[p]) continue;
        at[n_found] = (int64_t)slot_of_step(n, step) * a->n_anchors + *from;
        positions[n_found++] = p;
    }
    return n_found;
}

/* Computes the loss of all predictions of a step, and with wants_gradient a->dout. */
static void learn_predictions(const DflashNet *n, DflashActs *a, const TrainSequence *seq, int32_t step,
                              bool wants_gradient, double weight, TrainSums *sums) {
    int32_t positions[HEAD_LOSS_ROWS];
    int64_t at[HEAD_LOSS_ROWS];
    size_t row_bytes = (size_t)n->C * sizeof(real);
    for (int32_t from = 0, count; (count = next_predictions(n, a, seq, step, &from, positions, at)) > 0;) {
        head_loss_at(&a->loss, seq, positions, count);
        for (int32_t i = 0; i < count; i++) memcpy(a->rows + i * n->C, a->out + at[i] * n->C, row_bytes);
        zero(a->drows, (int64_t)count * n->C);
        head_loss_rows(&a->loss, seq, step, a->rows, n->C, seq->head, NULL, wants_gradient ? a->drows : NULL, NULL,
                       NULL, weight, sums);
        for (int32_t i = 0; wants_gradient && i < count; i++)
            memcpy(a->dout + at[i] * n->C, a->drows + i * n->C, row_bytes);
    }
}

/* Adds what the drawn anchors gave to the sums of all: their loss is an estimate of that of all candidates. */
static void add_sums(const TrainSums *drawn, double ratio, const TrainSequence *seq, TrainSums *sums) {
    sums->loss += ratio * drawn->loss;
    for (int32_t p = 1; p < seq->T; p++) sums->n += seq->loss_mask[p];
    if (sums->n_heads < drawn->n_heads) sums->n_heads = drawn->n_heads;
    for (int32_t i = 0; i < drawn->n_heads; i++) {
        sums->right[i] += drawn->right[i];
        sums->of[i] += drawn->of[i];
        for (int32_t k = 0; k < TRAIN_RANKS; k++) sums->at_rank[i][k] += drawn->at_rank[i][k];
    }
}

/* ---- backward ----------------------------------------------------------------------------------- */

/* Turns a->dx, the derivative with respect to the layer's output, into that with respect to x_mid. */
static void feed_forward_back(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a,
                              const DflashLayer *l) {
    int64_t R = n_slots(n, a), C = n->C, F = n->n_ff;
    zero(a->dhidden, R * F), zero(a->dgate, R * F), zero(a->dup, R * F), zero(a->dnormed, R * C);
    linear_backward(a->dhidden, dw[FFN_DOWN], NULL, a->dx, l->hidden, w[FFN_DOWN], R, F, C);
    swiglu_backward(a->dgate, a->dup, a->dhidden, l->gate, l->up, R * F);
    linear_backward(a->dnormed, dw[FFN_GATE], NULL, a->dgate, l->ffn_normed, w[FFN_GATE], R, C, F);
    linear_backward(a->dnormed, dw[FFN_UP], NULL, a->dup, l->ffn_normed, w[FFN_UP], R, C, F);
    rmsnorm_backward(a->dx, dw[FFN_NORM], a->dnormed, l->x_mid, w[FFN_NORM], l->ffn_rms, R, C);
}

/* From the derivative d with respect to rotated heads, which is overwritten: adds to din, dw and dnorm. */
static void heads_back(const DflashNet *n, DflashActs *a, const DflashHeads *h, real *d, real *din, real *dw,
                       real *dnorm, const real *in, const real *w, const real *norm, const real *angles, int64_t n_rows,
                       int64_t n_heads) {
    int64_t D = n->head_dim;
    rope_backward(ROPE_HALVES, d, angles, n_rows, n_heads, D, n->rope->params.n_rot);
    if (norm) {
        zero(a->draw, n_rows * n_heads * D);
        rmsnorm_backward(a->draw, dnorm, d, h->raw, norm, h->rms, n_rows * n_heads, D);
        d = a->draw;
    }
    linear_backward(din, dw, NULL, d, in, w, n_rows, n->C, n_heads * D);
}

/* Computes the derivatives of the rotated heads and of the values from a->dattended. */
static void blocks_attend_back(const DflashNet *n, DflashActs *a, const DflashLayer *l) {
    real *own_k[DFLASH_MAX_BLOCK], *own_v[DFLASH_MAX_BLOCK], *own_dk[DFLASH_MAX_BLOCK], *own_dv[DFLASH_MAX_BLOCK];
    int64_t R = n_slots(n, a), K = kv_dim(n), N = a->n_anchors;
    zero(a->dq, R * q_dim(n)), zero(a->dk, R * K), zero(a->dv, R * K);
    zero(a->dcontext_k, a->n_ctx * K), zero(a->dcontext_v, a->n_ctx * K);
    for (int32_t i = 0; i < n->block; i++) own_dk[i] = a->dk + i * N * K, own_dv[i] = a->dv + i * N * K;
    for (int32_t i = 0; i < n->block; i++) {
        UnrollAttention attention = attention_of(n, a, l, i, own_k, own_v);
        int64_t at = i * N * q_dim(n);
        unroll_attention_backward(a->dq + at, a->dcontext_k, a->dcontext_v, own_dk, own_dv, a->dattended + at,
                                  l->probs[i], l->q.rotated + at, a->dscores, &attention);
    }
}

/* Turns a->dx further, into the derivative with respect to the layer's input, and adds to a->dg. */
static void attention_back(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a, const DflashLayer *l) {
    int64_t R = n_slots(n, a), C = n->C;
    bool has = n->has_head_norms;
    const real *q_norm = has ? w[Q_NORM] : NULL, *k_norm = has ? w[K_NORM] : NULL;
    real *dq_norm = has ? dw[Q_NORM] : NULL, *dk_norm = has ? dw[K_NORM] : NULL;
    zero(a->dattended, R * q_dim(n)), zero(a->dnormed, R * C);
    linear_backward(a->dattended, dw[ATTN_OUTPUT], NULL, a->dx, l->attended, w[ATTN_OUTPUT], R, q_dim(n), C);
    blocks_attend_back(n, a, l);
    heads_back(n, a, &l->q, a->dq, a->dnormed, dw[ATTN_Q], dq_norm, l->attn_normed, w[ATTN_Q], q_norm, a->angles, R,
               n->n_head);
    heads_back(n, a, &l->k, a->dk, a->dnormed, dw[ATTN_K], dk_norm, l->attn_normed, w[ATTN_K], k_norm, a->angles, R,
               n->n_head_kv);
    heads_back(n, a, &l->context_k, a->dcontext_k, a->dg, dw[ATTN_K], dk_norm, a->g, w[ATTN_K], k_norm, a->cos_sin,
               a->n_ctx, n->n_head_kv);
    linear_backward(a->dnormed, dw[ATTN_V], NULL, a->dv, l->attn_normed, w[ATTN_V], R, C, kv_dim(n));
    linear_backward(a->dg, dw[ATTN_V], NULL, a->dcontext_v, a->g, w[ATTN_V], a->n_ctx, C, kv_dim(n));
    rmsnorm_backward(a->dx, dw[ATTN_NORM], a->dnormed, l->x, w[ATTN_NORM], l->attn_rms, R, C);
}

/* The embeddings of the slots and the streams of the target are frozen. */
static void backward(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a, const TrainSequence *seq) {
    int64_t R = n_slots(n, a), C = n->C;
    zero(a->dx, R * C), zero(a->dg, a->n_ctx * C), zero(a->dfused, a->n_ctx * C);
    rmsnorm_backward(a->dx, dw[OUTPUT_NORM], a->dout, a->x, w[OUTPUT_NORM], a->x_rms, R, C);
    for (int32_t i = n->n_layer - 1; i >= 0; i--) {
        feed_forward_back(n, of_layer(n, w, i), of_layer(n, dw, i), a, &a->layers[i]);
        attention_back(n, of_layer(n, w, i), of_layer(n, dw, i), a, &a->layers[i]);
    }
    rmsnorm_backward(a->dfused, dw[CONTEXT_NORM], a->dg, a->fused, w[CONTEXT_NORM], a->fused_rms, a->n_ctx, C);
    linear_backward(NULL, dw[FC], NULL, a->dfused, seq->streams, w[FC], a->n_ctx, streams_width(n), C);
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const DflashNet *n = net;
    DflashActs *a = acts;
    TrainSums drawn = {0};
    int32_t n_candidates = choose_anchors(n, a, seq);
    if (n_candidates == 0) return;
    double ratio = (double)n_candidates / a->n_anchors;
    forward(n, w, a, seq);
    if (dw) zero(a->dout, n_slots(n, a) * n->C);
    for (int32_t step = 1; step <= n->loss.n_steps; step++)
        learn_predictions(n, a, seq, step, dw != NULL, ratio * weight, &drawn);
    add_sums(&drawn, ratio, seq, sums);
    if (dw) backward(n, w, dw, a, seq);
}

const NetClass dflash_net_class = {"dflash", n_tensors, tensor, acts_open, acts_close, learn,
                                   set_keys, NULL,      NULL,   true,      NULL};

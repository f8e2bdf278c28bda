/* mtp_net.c - the network of `mtp`, layers for multi-token prediction in the form of DeepSeek-V3 (arXiv 2412.19437,
 * section 2.2), as src/draft/learned/draft_mtp.c runs them:
 *
 *     f^k_t = norm^k(layer^k(fc^k [norm E(x_{t+k}) ; norm f^{k-1}_t]))       k = 1 .. n, f^0_t = h_t
 *     f^s_t = norm^n(layer^n(fc^n [norm E(x_{t+s}) ; norm f^{s-1}_t]))       s > n: layer n reads its own outputs
 *     distribution of x_{t+s+1} = softmax(W f^s_t)                           with the target's head W
 *     loss of a step = KL(target's distribution || that)
 *
 * Each layer has keys and values of all positions, which it makes at its first step. So the steps of the last layer
 * from n on are one chain of unroll_layer.c, and each earlier layer has a chain of one step; here is what is around
 * them: fc, the norms and the LM head. Attention has what the target's own layers have: norms of heads, biases, gates.
 *
 *     n = 2        layer 1              layer 2              layer 2
 *     row t        h_t x_{t+1}          f^1_t x_{t+2}        f^2_t x_{t+3}
 *     position     t, sees rows 0 .. t  t, sees rows 0 .. t  t + 1, also sees itself
 *
 * The steps after the last layer's first are what a published layer lacks: it was trained for one step, and is right
 * less often when it reads its own output.
 *
 * Initial values: fc passes the hidden state through, the layer is the target's last one with zeros for Wo and Wdown,
 * and the norm before W gives its inputs the length that hidden states have. So a new layer first predicts what the
 * target did one token before.
 *
 * Test: test_train_drafters.c by finite differences in double, test_train_mtp.c against the drafter. */
#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/nets.h"

#include <stdio.h>
#include <string.h>

/* The tensors of a layer by the numbers of UNROLL_FC to UNROLL_O_BIAS, then these. Some are optional. */
enum { TOKEN_NORM = UNROLL_SLOTS, HIDDEN_NORM, OUTPUT_NORM, N_SLOTS };

typedef struct MtpActs {
    HeadLoss loss;
    UnrollActs layers[MTP_MAX_LAYERS];
    Arena arena;
    real *token_rms[TRAIN_MAX_STEPS], *hidden_rms[TRAIN_MAX_STEPS]; /* [n] of each step */
    real *out[TRAIN_MAX_STEPS], *out_rms[TRAIN_MAX_STEPS];          /* [T][C], [T] f, by t */
    real *dout[TRAIN_MAX_STEPS];                                    /* [T][C] */
    real *dscratch;                                                 /* [C] */
} MtpActs;

/* Returns the layer of a step, and its number in that layer's chain; both from 0. */
static int32_t layer_of(const MtpNet *n, int32_t step) { return step < n->n_layers ? step : n->n_layers - 1; }
static int32_t step_of(const MtpNet *n, int32_t step) { return step - layer_of(n, step); }

static UnrollShape shape_of(const MtpNet *n, int32_t layer) {
    UnrollShape s = n->layer;
    s.n_before = layer;
    s.n_steps = layer < n->n_layers - 1 ? 1 : n->loss.n_steps - layer;
    return s;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

static bool has_slot(const MtpNet *n, int32_t slot) {
    if (slot == UNROLL_FC_BIAS || slot == UNROLL_CHAIN_INPUTS) return false;
    if (slot == UNROLL_O_BIAS || slot == UNROLL_POST_ATTN_NORM || slot == UNROLL_POST_FFN_NORM) return false;
    if (slot == UNROLL_Q_NORM || slot == UNROLL_K_NORM) return n->layer.has_head_norms;
    if (slot == UNROLL_Q_BIAS || slot == UNROLL_K_BIAS || slot == UNROLL_V_BIAS) return n->layer.has_biases;
    return true;
}

static int32_t n_of_layer(const MtpNet *n) {
    int32_t count = 0;
    for (int32_t slot = 0; slot < N_SLOTS; slot++) count += has_slot(n, slot);
    return count;
}

static int32_t n_tensors(const void *net) { return ((const MtpNet *)net)->n_layers * n_of_layer(net); }

/* Finds the tensors of a layer by slot; NULL where there is none. */
static void find_slots(const MtpNet *n, real *const *w, int32_t layer, real *slots[N_SLOTS]) {
    int32_t i = layer * n_of_layer(n);
    for (int32_t slot = 0; slot < N_SLOTS; slot++) slots[slot] = w && has_slot(n, slot) ? w[i++] : NULL;
}

static NetTensor tensor_of_slot(const MtpNet *n, int32_t layer, int32_t slot) {
    const UnrollShape *s = &n->layer;
    int64_t C = s->C, F = s->n_ff, Q = (int64_t)s->n_head * s->head_dim, K = (int64_t)s->n_head_kv * s->head_dim;
    int64_t of_q = s->gates_output ? 2 * Q : Q, D = s->head_dim;
    const NetStart norm = n->takes_norm ? NET_COPY : NET_CONSTANT;
    const struct {
        const char *name;
        int64_t n_rows, n;
        NetStart start;
        double std;
    } slots[N_SLOTS] = {
        [UNROLL_FC] = {NEXTN_FC, C, 2 * C, NET_FUSE, 1 / sqrt((double)C)},
        [UNROLL_Q] = {LAYER_ATTN_Q, of_q, C, NET_LAYER, 0.02},
        [UNROLL_K] = {LAYER_ATTN_K, K, C, NET_LAYER, 0.02},
        [UNROLL_V] = {LAYER_ATTN_V, K, C, NET_LAYER, 0.02},
        [UNROLL_O] = {LAYER_ATTN_OUTPUT, C, Q, NET_ZEROS, 0},
        [UNROLL_FFN_NORM] = {n->ffn_norm, 0, C, NET_LAYER, 0},
        [UNROLL_GATE] = {LAYER_FFN_GATE, F, C, NET_LAYER, 0.02},
        [UNROLL_UP] = {LAYER_FFN_UP, F, C, NET_LAYER, 0.02},
        [UNROLL_DOWN] = {LAYER_FFN_DOWN, C, F, NET_ZEROS, 0},
        [UNROLL_ATTN_NORM] = {LAYER_ATTN_NORM, 0, C, NET_LAYER, 0},
        [UNROLL_Q_NORM] = {NEXTN_Q_NORM, 0, D, NET_LAYER, 0},
        [UNROLL_K_NORM] = {NEXTN_K_NORM, 0, D, NET_LAYER, 0},
        [UNROLL_Q_BIAS] = {NEXTN_Q_BIAS, 0, Q, NET_ZEROS, 0},
        [UNROLL_K_BIAS] = {NEXTN_K_BIAS, 0, K, NET_ZEROS, 0},
        [UNROLL_V_BIAS] = {NEXTN_V_BIAS, 0, K, NET_ZEROS, 0},
        [TOKEN_NORM] = {NEXTN_TOKEN_NORM, 0, C, NET_ONES, 0},
        [HIDDEN_NORM] = {NEXTN_HIDDEN_NORM, 0, C, NET_ONES, 0},
        [OUTPUT_NORM] = {NEXTN_OUTPUT_NORM, 0, C, norm, n->norm_start},
    };
    NetTensor t = {.n_rows = slots[slot].n_rows,
                   .n = slots[slot].n,
                   .start = slots[slot].start,
                   .std = slots[slot].std,
                   .suffix = slot == OUTPUT_NORM ? "output_norm.weight" : slots[slot].name,
                   .is_addition = slot == OUTPUT_NORM && n->takes_norm};
    snprintf(t.name, sizeof t.name, "blk.%d.%s", n->target->hparams.n_layer + layer, slots[slot].name);
    return t;
}

static NetTensor tensor(const void *net, int32_t i) {
    int32_t slot = 0, of_layer = n_of_layer(net);
    for (int32_t k = -1; slot < N_SLOTS; slot++)
        if (has_slot(net, slot) && ++k == i % of_layer) break;
    return tensor_of_slot(net, i / of_layer, slot);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static const char *const copies[] = {"token_embd.weight", "output_norm.weight", "output.weight"};

/* Sets the numbers of layers, and adds copies of what every model has beside its layers. */
static void set_keys(const void *net, GgufWriter *w) {
    const MtpNet *n = net;
    const Model *m = n->target;
    char key[96];
    snprintf(key, sizeof key, "%s.block_count", arch_name(m->hparams.arch));
    gguf_set_u32(w, key, (uint32_t)(m->hparams.n_layer + n->n_layers));
    snprintf(key, sizeof key, "%s.nextn_predict_layers", arch_name(m->hparams.arch));
    gguf_set_u32(w, key, (uint32_t)n->n_layers);
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        const GgufTensor *t = gguf_find_tensor(m->gguf, copies[i]);
        if (t) gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
}

/* A file to go on from may be a whole model. */
static bool keeps(const void *net, const char *name) {
    const MtpNet *n = net;
    int32_t layer;
    return sscanf(name, "blk.%d.", &layer) != 1 || layer < n->target->hparams.n_layer;
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    MtpActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    for (int32_t i = 0; i < MTP_MAX_LAYERS; i++) unroll_close(&a->layers[i]);
    arena_free(&a->arena);
    mem_free(a);
}

static int open_arrays(MtpActs *a, const MtpNet *n, int64_t T, fr_error *err) {
    static const char what[] = "a layer's activations; choose a smaller --length";
    int64_t C = n->layer.C;
    const ArenaItem shared[] = {ARENA_ITEM(&a->dscratch, C)};
    int status = arena_take(&a->arena, shared, ARENA_COUNT(shared), what, err);
    for (int32_t i = 0; i < n->loss.n_steps && !status; i++) {
        const ArenaItem of_step[] = {ARENA_ITEM(&a->token_rms[i], T), ARENA_ITEM(&a->hidden_rms[i], T),
                                     ARENA_ITEM(&a->out[i], T * C), ARENA_ITEM(&a->out_rms[i], T),
                                     ARENA_ITEM(&a->dout[i], T * C)};
        status = arena_take(&a->arena, of_step, ARENA_COUNT(of_step), what, err);
    }
    return status;
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const MtpNet *n = net;
    MtpActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a layer's activations", sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->layer.C, n->V, err);
    for (int32_t i = 0; i < n->n_layers && !status; i++) {
        UnrollShape s = shape_of(n, i);
        status = unroll_open(&a->layers[i], &s, max_length, err);
    }
    if (!status) status = open_arrays(a, n, max_length, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- forward ------------------------------------------------------------------------------------ */

/* Returns the embedding that a row of a step reads whose chain began at position t, and the state. */
static const real *embedding_of(const MtpNet *n, const TrainSequence *seq, int32_t step, int32_t t) {
    return seq->embd + seq->tokens[t + step + 1] * (int64_t)n->layer.C;
}

static const real *state_of(const MtpNet *n, const MtpActs *a, const TrainSequence *seq, int32_t step, int32_t t) {
    return (step ? a->out[step - 1] : seq->hidden) + t * (int64_t)n->layer.C;
}

static void run_step(const MtpNet *n, real *const *w, MtpActs *a, const TrainSequence *seq, int32_t step) {
    UnrollShape s = shape_of(n, layer_of(n, step));
    UnrollActs *layer = &a->layers[layer_of(n, step)];
    UnrollStep *p = &layer->steps[step_of(n, step)];
    int64_t C = s.C;
    real eps = (real)s.rms_eps;
    for (int32_t i = 0; i < p->n; i++) {
        int32_t t = p->chains[i];
        real *pair = p->pair + 2 * C * i;
        rmsnorm_forward(pair, a->token_rms[step] + i, embedding_of(n, seq, step, t), w[TOKEN_NORM], 1, C, eps);
        rmsnorm_forward(pair + C, a->hidden_rms[step] + i, state_of(n, a, seq, step, t), w[HIDDEN_NORM], 1, C, eps);
    }
    linear_forward(p->x, p->pair, w[UNROLL_FC], NULL, p->n, 2 * C, C);
    unroll_run_step(&s, w, layer, step_of(n, step));
    for (int32_t i = 0; i < p->n; i++) {
        int64_t t = p->chains[i];
        rmsnorm_forward(a->out[step] + t * C, a->out_rms[step] + t, p->f + t * C, w[OUTPUT_NORM], 1, C, eps);
    }
}

static bool has_rows(const MtpNet *n, const MtpActs *a, int32_t step) {
    return a->layers[layer_of(n, step)].steps[step_of(n, step)].n > 0;
}

static void forward(const MtpNet *n, real *const *w, MtpActs *a, const TrainSequence *seq) {
    real *slots[N_SLOTS];
    for (int32_t i = 0; i < n->n_layers; i++) {
        UnrollShape s = shape_of(n, i);
        unroll_choose_rows(&s, &a->layers[i], seq);
    }
    for (int32_t step = 0; step < n->loss.n_steps && has_rows(n, a, step); step++) {
        find_slots(n, w, layer_of(n, step), slots);
        run_step(n, slots, a, seq, step);
    }
}

/* ---- backward ----------------------------------------------------------------------------------- */

static void step_back(const MtpNet *n, real *const *w, real *const *dw, MtpActs *a, const TrainSequence *seq,
                      int32_t step) {
    UnrollShape s = shape_of(n, layer_of(n, step));
    UnrollActs *layer = &a->layers[layer_of(n, step)];
    UnrollStep *p = &layer->steps[step_of(n, step)];
    int64_t C = s.C;
    for (int32_t i = 0; i < p->n; i++) {
        int64_t t = p->chains[i];
        rmsnorm_backward(p->df + t * C, dw[OUTPUT_NORM], a->dout[step] + t * C, p->f + t * C, w[OUTPUT_NORM],
                         a->out_rms[step] + t, 1, C);
    }
    unroll_step_back(&s, w, dw, layer, step_of(n, step));
    memset(layer->dpair, 0, (size_t)(p->n * 2 * C) * sizeof(real));
    linear_backward(layer->dpair, dw[UNROLL_FC], NULL, layer->dx, p->pair, w[UNROLL_FC], p->n, 2 * C, C);
    for (int32_t i = 0; i < p->n; i++) { /* the embedding and the target's hidden states are frozen */
        int32_t t = p->chains[i];
        const real *dpair = layer->dpair + 2 * C * i;
        memset(a->dscratch, 0, (size_t)C * sizeof(real));
        rmsnorm_backward(a->dscratch, dw[TOKEN_NORM], dpair, embedding_of(n, seq, step, t), w[TOKEN_NORM],
                         a->token_rms[step] + i, 1, C);
        rmsnorm_backward(step ? a->dout[step - 1] + t * C : a->dscratch, dw[HIDDEN_NORM], dpair + C,
                         state_of(n, a, seq, step, t), w[HIDDEN_NORM], a->hidden_rms[step] + i, 1, C);
    }
}

static void backward(const MtpNet *n, real *const *w, real *const *dw, MtpActs *a, const TrainSequence *seq) {
    real *slots[N_SLOTS], *dslots[N_SLOTS];
    for (int32_t i = 0; i < n->n_layers; i++) {
        UnrollShape s = shape_of(n, i);
        unroll_begin_back(&s, &a->layers[i]);
        unroll_zero(&s, &a->layers[i], seq);
    }
    for (int32_t step = n->loss.n_steps - 1; step >= 0; step--) {
        if (!has_rows(n, a, step)) continue;
        find_slots(n, w, layer_of(n, step), slots);
        find_slots(n, dw, layer_of(n, step), dslots);
        step_back(n, slots, dslots, a, seq, step);
    }
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const MtpNet *n = net;
    MtpActs *a = acts;
    forward(n, w, a, seq);
    for (int32_t i = 0; dw && i < n->loss.n_steps; i++)
        memset(a->dout[i], 0, (size_t)seq->T * (size_t)n->layer.C * sizeof(real));
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        for (int32_t step = 1; step <= n->loss.n_steps; step++)
            head_loss_step(&a->loss, seq, step, a->out[step - 1], seq->head, NULL, dw ? a->dout[step - 1] : NULL, NULL,
                           NULL, weight, sums);
    if (dw) backward(n, w, dw, a, seq);
}

const NetClass mtp_net_class = {"mtp",    n_tensors, tensor, acts_open,        acts_close, learn,
                                set_keys, NULL,      NULL,   LAYOUT_COMPANION, keeps};

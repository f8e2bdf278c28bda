/* eagle3_net.c - the network of `eagle3`, EAGLE-3 (arXiv 2503.01840), as src/draft/learned/draft_eagle3.c runs it:
 *
 *     g_t = fc [s_1 ; s_2 ; s_3]                              residual streams of the frozen target after some layers
 *     f^1_t = layer([norm E(x_{t+1}) ; norm g_t], g_t)        q, k and v read the pair, g_t is the residual stream
 *     f^s_t = layer([norm E(x_{t+s}) ; norm f^{s-1}_t], f^{s-1}_t)
 *     distribution of x_{t+s+1} = softmax(W norm f^s_t)
 *     loss of a step = KL(target's distribution || that)
 *
 * The steps after the first are the training-time test of the paper: the layer reads its own outputs, as it does when
 * it drafts. unroll_layer.c runs them as rows of one batch and has the layer; here is what is around it: fc, the norms
 * and the LM head. There is no loss of hidden states, so f is free to hold whatever predicts the tokens best.
 *
 * W may have a vocabulary of its own, mostly the tokens that are frequent in the training data
 * (HeadLossOptions.own_of).
 *
 * Variants of published files: a norm of the streams before fc, of all together or of each; a residual stream that
 * begins with norm g_t (keeps_normed); steps that read norm f instead of f (continues_normed).
 *
 * Initial values: fc passes the last stream through, Wo and Wdown are zeros, and the norm before W and W itself are the
 * target's. So the drafter first repeats what the target's late layer predicts.
 *
 * Test: test_train_drafters.c by finite differences in double, test_train_eagle3.c against the drafter. */
#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/nets.h"

#include <stdio.h>
#include <string.h>

/* The tensors of the layer by the numbers of UNROLL_FC to UNROLL_DOWN, then these. Some are optional. */
enum { TOKEN_NORM = UNROLL_DOWN + 1, HIDDEN_NORM, OUTPUT_NORM, STREAM_NORM, OUTPUT, N_SLOTS };

typedef struct Eagle3Acts {
    HeadLoss loss;
    UnrollActs layer;
    Arena arena;
    real *streams, *stream_rms;    /* [T][streams_width] what fc reads, if the streams have a norm; [T][n_streams] */
    real *dstreams, *dscratch;     /* [T][streams_width], [streams_width] */
    real *state[UNROLL_MAX_STEPS]; /* [n][C] what the step continues from */
    real *token_rms[UNROLL_MAX_STEPS], *hidden_rms[UNROLL_MAX_STEPS]; /* [n] */
    real *out[UNROLL_MAX_STEPS], *out_rms[UNROLL_MAX_STEPS];          /* [T][C], [T] norm f, by t */
    real *dout[UNROLL_MAX_STEPS];                                     /* [T][C] */
    real *dstate;                                                     /* [T][C] */
    real *x, *dx;                                                     /* [HEAD_LOSS_ROWS][C] inputs of the LM head */
} Eagle3Acts;

static int64_t streams_width(const Eagle3Net *n) { return (int64_t)n->n_streams * n->n_target; }

/* ---- tensors ------------------------------------------------------------------------------------ */

static bool has_slot(const Eagle3Net *n, int32_t slot) {
    if (slot == UNROLL_FC_BIAS) return n->has_fc_bias;
    if (slot == STREAM_NORM) return n->norms_streams || n->norms_each;
    return slot != OUTPUT || n->has_own_output;
}

static int32_t n_tensors(const void *net) {
    int32_t n = 0;
    for (int32_t slot = 0; slot < N_SLOTS; slot++) n += has_slot(net, slot);
    return n;
}

/* Finds the tensors by slot; NULL where there is none. */
static void find_slots(const Eagle3Net *n, real *const *w, real *slots[N_SLOTS]) {
    for (int32_t slot = 0, i = 0; slot < N_SLOTS; slot++) slots[slot] = w && has_slot(n, slot) ? w[i++] : NULL;
}

static NetTensor tensor_of_slot(const Eagle3Net *n, int32_t slot) {
    const UnrollShape *s = &n->layer;
    int64_t C = s->C, F = s->n_ff, Q = (int64_t)s->n_head * s->head_dim, K = (int64_t)s->n_head_kv * s->head_dim;
    bool is_anew = s->qk_start_anew, has_targets_width = C == n->n_target;
    const NetStart fc = has_targets_width ? NET_FUSE : NET_NORMAL, qk = is_anew ? NET_NORMAL : NET_PAIR,
                   output = has_targets_width ? NET_HEAD : NET_NORMAL;
    const struct {
        const char *name, *suffix;
        int64_t n_rows, n;
        NetStart start;
        double std;
    } slots[N_SLOTS] = {
        [UNROLL_FC] = {EAGLE3_FC ".weight", NULL, C, streams_width(n), fc, 0.01},
        [UNROLL_FC_BIAS] = {EAGLE3_FC ".bias", NULL, 0, C, NET_ZEROS, 0},
        [UNROLL_Q] = {EAGLE3_ATTN_Q, LAYER_ATTN_Q, Q, 2 * C, qk, 0.02},
        [UNROLL_K] = {EAGLE3_ATTN_K, LAYER_ATTN_K, K, 2 * C, qk, 0.02},
        [UNROLL_V] = {EAGLE3_ATTN_V, LAYER_ATTN_V, K, 2 * C, NET_PAIR, 1 / sqrt((double)C)},
        [UNROLL_O] = {EAGLE3_ATTN_OUTPUT, NULL, C, Q, NET_ZEROS, 0},
        [UNROLL_FFN_NORM] = {EAGLE3_FFN_NORM, LAYER_FFN_NORM, 0, C, NET_LAYER, 0},
        [UNROLL_GATE] = {EAGLE3_FFN_GATE, LAYER_FFN_GATE, F, C, NET_LAYER, 0.02},
        [UNROLL_UP] = {EAGLE3_FFN_UP, LAYER_FFN_UP, F, C, NET_LAYER, 0.02},
        [UNROLL_DOWN] = {EAGLE3_FFN_DOWN, NULL, C, F, NET_ZEROS, 0},
        [TOKEN_NORM] = {EAGLE3_TOKEN_NORM, NULL, 0, C, NET_ONES, 0},
        [HIDDEN_NORM] = {EAGLE3_HIDDEN_NORM, LAYER_ATTN_NORM, 0, C, NET_LAYER, 0},
        [OUTPUT_NORM] = {EAGLE3_OUTPUT_NORM, "output_norm.weight", 0, C, NET_COPY, 0},
        [STREAM_NORM] = {EAGLE3_STREAM_NORM, NULL, 0, streams_width(n), NET_ONES, 0},
        [OUTPUT] = {EAGLE3_OUTPUT, NULL, n->loss.own_of ? n->loss.n_own : n->V, C, output, 0},
    };
    NetTensor t = {.n_rows = slots[slot].n_rows,
                   .n = slots[slot].n,
                   .start = slots[slot].start,
                   .std = slots[slot].std,
                   .suffix = slots[slot].suffix,
                   .tokens = slot == OUTPUT ? n->tokens : NULL};
    snprintf(t.name, sizeof t.name, "%s", slots[slot].name);
    return t;
}

static NetTensor tensor(const void *net, int32_t i) {
    int32_t slot = 0;
    for (int32_t k = -1; slot < N_SLOTS; slot++)
        if (has_slot(net, slot) && ++k == i) break;
    return tensor_of_slot(net, slot);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static void set_int(GgufWriter *w, const char *key, int64_t value) { gguf_set_u32(w, key, (uint32_t)value); }

static void set_rope(GgufWriter *w, const RopeParams *r) {
    set_int(w, EAGLE3 "rope.dimension_count", r->n_rot);
    gguf_set_f32(w, EAGLE3 "rope.freq_base", (float)r->base);
    if (r->scaling == ROPE_SCALING_NONE) return;
    bool is_yarn = r->scaling == ROPE_SCALING_YARN;
    const char *type = is_yarn ? "yarn" : "linear";
    gguf_set_string(w, EAGLE3 "rope.scaling.type", type, strlen(type));
    gguf_set_f32(w, EAGLE3 "rope.scaling.factor", (float)r->factor);
    set_int(w, EAGLE3 "rope.scaling.original_context_length", r->n_ctx_orig);
    if (!is_yarn) return;
    gguf_set_f32(w, EAGLE3 "rope.scaling.yarn_attn_factor", (float)r->magnitude);
    gguf_set_f32(w, EAGLE3 "rope.scaling.yarn_ext_factor", (float)r->ext_factor);
    gguf_set_f32(w, EAGLE3 "rope.scaling.yarn_beta_fast", (float)r->beta_fast);
    gguf_set_f32(w, EAGLE3 "rope.scaling.yarn_beta_slow", (float)r->beta_slow);
}

static void set_keys(const void *net, GgufWriter *w) {
    const Eagle3Net *n = net;
    const UnrollShape *s = &n->layer;
    set_int(w, EAGLE3 "block_count", 1);
    set_int(w, EAGLE3 "context_length", n->n_ctx);
    set_int(w, EAGLE3 "embedding_length", s->C);
    set_int(w, EAGLE3 "feed_forward_length", s->n_ff);
    set_int(w, EAGLE3 "attention.head_count", s->n_head);
    set_int(w, EAGLE3 "attention.head_count_kv", s->n_head_kv);
    set_int(w, EAGLE3 "attention.key_length", s->head_dim);
    set_int(w, EAGLE3 "attention.value_length", s->head_dim);
    gguf_set_f32(w, EAGLE3 "attention.layer_norm_rms_epsilon", s->rms_eps);
    set_rope(w, &s->rope->params);
    gguf_set_i32s(w, EAGLE3 EAGLE3_KEY_LAYERS, n->layers, n->n_streams);
    set_int(w, EAGLE3 EAGLE3_KEY_TARGET_WIDTH, n->n_target);
    const struct {
        const char *key;
        bool is_set;
    } flags[] = {{EAGLE3 EAGLE3_KEY_NORM_BEFORE_FC, n->norms_streams},
                 {EAGLE3 EAGLE3_KEY_NORM_EACH_STREAM, n->norms_each},
                 {EAGLE3 EAGLE3_KEY_NORM_BEFORE_RESIDUAL, n->keeps_normed},
                 {EAGLE3 EAGLE3_KEY_NORM_OUTPUT, n->continues_normed}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].is_set) gguf_set_bool(w, flags[i].key, true);
    if (n->map) gguf_add_map(w, n->map, n->loss.n_own);
    if (n->rope_factors)
        gguf_add_tensor(w, EAGLE3_ROPE_FACTORS, TYPE_F32, 1, (int64_t[]){s->rope->params.n_rot / 2}, n->rope_factors);
    if (n->embedding)
        gguf_add_tensor(w, EAGLE3_EMBEDDING, n->embedding->type, 2, n->embedding->dims, n->embedding->data);
}

static bool keeps(const void *net, const char *name) {
    const Eagle3Net *n = net;
    return (n->map && strcmp(name, GGUF_MAP) == 0) || (n->rope_factors && strcmp(name, EAGLE3_ROPE_FACTORS) == 0) ||
           (n->embedding && strcmp(name, EAGLE3_EMBEDDING) == 0);
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    Eagle3Acts *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    unroll_close(&a->layer);
    arena_free(&a->arena);
    mem_free(a);
}

static int open_arrays(Eagle3Acts *a, const Eagle3Net *n, int64_t T, fr_error *err) {
    static const char what[] = "a layer's activations; choose a smaller --length";
    int64_t C = n->layer.C, of_norm = has_slot(n, STREAM_NORM) ? T * streams_width(n) : 1;
    const ArenaItem shared[] = {
        ARENA_ITEM(&a->streams, of_norm),       ARENA_ITEM(&a->stream_rms, T * n->n_streams),
        ARENA_ITEM(&a->dstreams, of_norm),      ARENA_ITEM(&a->dscratch, streams_width(n) + C),
        ARENA_ITEM(&a->dstate, T * C),          ARENA_ITEM(&a->x, HEAD_LOSS_ROWS * C),
        ARENA_ITEM(&a->dx, HEAD_LOSS_ROWS * C),
    };
    int status = arena_take(&a->arena, shared, ARENA_COUNT(shared), what, err);
    for (int32_t i = 0; i < n->layer.n_steps && !status; i++) {
        const ArenaItem of_step[] = {
            ARENA_ITEM(&a->state[i], T * C), ARENA_ITEM(&a->token_rms[i], T), ARENA_ITEM(&a->hidden_rms[i], T),
            ARENA_ITEM(&a->out[i], T * C),   ARENA_ITEM(&a->out_rms[i], T),   ARENA_ITEM(&a->dout[i], T * C),
        };
        status = arena_take(&a->arena, of_step, ARENA_COUNT(of_step), what, err);
    }
    return status;
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const Eagle3Net *n = net;
    Eagle3Acts *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a layer's activations", sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->n_target, n->V, err);
    if (!status) status = unroll_open(&a->layer, &n->layer, max_length, err);
    if (!status) status = open_arrays(a, n, max_length, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- forward ------------------------------------------------------------------------------------ */

/* Computes the norms of a row of streams, each of width `each`. */
static void norm_streams(const Eagle3Net *n, real *const *w, Eagle3Acts *a, const real *streams, int64_t rows) {
    int64_t all = streams_width(n), each = n->norms_each ? n->n_target : all;
    for (int64_t at = 0, i = 0; at < rows * all; at += each, i++)
        rmsnorm_forward(a->streams + at, a->stream_rms + i, streams + at, w[STREAM_NORM] + at % all, 1, each,
                        (real)n->layer.rms_eps);
}

/* Makes the states that a step continues from: g, or the outputs of the step before. */
static void make_states(const Eagle3Net *n, real *const *w, Eagle3Acts *a, const TrainSequence *seq, int32_t step) {
    const UnrollStep *p = &a->layer.steps[step];
    int64_t C = n->layer.C;
    if (step == 0) { /* its rows are those of all positions */
        if (w[STREAM_NORM]) norm_streams(n, w, a, seq->streams, p->n);
        linear_forward(a->state[0], w[STREAM_NORM] ? a->streams : seq->streams, w[UNROLL_FC], w[UNROLL_FC_BIAS], p->n,
                       streams_width(n), C);
        return;
    }
    const real *from = n->continues_normed ? a->out[step - 1] : a->layer.steps[step - 1].f;
    for (int32_t i = 0; i < p->n; i++)
        memcpy(a->state[step] + i * C, from + p->chains[i] * C, (size_t)C * sizeof *from);
}

/* Returns the embedding that row i of a step reads. */
static const real *embedding_of(const Eagle3Net *n, const Eagle3Acts *a, const TrainSequence *seq, int32_t step,
                                int32_t i) {
    const real *table = n->embd ? n->embd : seq->embd;
    return table + seq->tokens[a->layer.steps[step].chains[i] + step + 1] * (int64_t)n->layer.C;
}

static void make_pairs(const Eagle3Net *n, real *const *w, Eagle3Acts *a, const TrainSequence *seq, int32_t step) {
    UnrollStep *p = &a->layer.steps[step];
    int64_t C = n->layer.C;
    real eps = (real)n->layer.rms_eps;
    for (int32_t i = 0; i < p->n; i++) {
        real *pair = p->pair + 2 * C * i, *state = a->state[step] + C * i;
        rmsnorm_forward(pair, a->token_rms[step] + i, embedding_of(n, a, seq, step, i), w[TOKEN_NORM], 1, C, eps);
        rmsnorm_forward(pair + C, a->hidden_rms[step] + i, state, w[HIDDEN_NORM], 1, C, eps);
        memcpy(p->x + C * i, n->keeps_normed ? pair + C : state, (size_t)C * sizeof *state);
    }
}

static void forward(const Eagle3Net *n, real *const *w, Eagle3Acts *a, const TrainSequence *seq) {
    int64_t C = n->layer.C;
    unroll_choose_rows(&n->layer, &a->layer, seq);
    for (int32_t step = 0; step < n->layer.n_steps && a->layer.steps[step].n; step++) {
        const UnrollStep *p = &a->layer.steps[step];
        make_states(n, w, a, seq, step);
        make_pairs(n, w, a, seq, step);
        unroll_run_step(&n->layer, w, &a->layer, step);
        for (int32_t i = 0; i < p->n; i++) {
            int64_t t = p->chains[i];
            rmsnorm_forward(a->out[step] + t * C, a->out_rms[step] + t, p->f + t * C, w[OUTPUT_NORM], 1, C,
                            (real)n->layer.rms_eps);
        }
    }
}

/* Computes the loss of all steps at the current positions. */
static void learn_positions(const Eagle3Net *n, real *const *w, real *const *dw, Eagle3Acts *a,
                            const TrainSequence *seq, double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    size_t C = (size_t)n->layer.C;
    for (int32_t step = 1; step <= n->layer.n_steps; step++) {
        for (int32_t i = head_loss_skipped(h, step); i < h->n; i++)
            memcpy(a->x + (size_t)i * C, a->out[step - 1] + (size_t)(h->positions[i] - step) * C, C * sizeof(real));
        memset(a->dx, 0, (size_t)h->n * C * sizeof(real));
        head_loss_rows(h, seq, step, a->x, n->layer.C, n->has_own_output ? w[OUTPUT] : seq->head, NULL,
                       dw ? a->dx : NULL, dw ? dw[OUTPUT] : NULL, NULL, weight, sums);
        for (int32_t i = head_loss_skipped(h, step); dw && i < h->n; i++) {
            real *dout = a->dout[step - 1] + (size_t)(h->positions[i] - step) * C;
            for (size_t k = 0; k < C; k++) dout[k] += a->dx[(size_t)i * C + k];
        }
    }
}

/* ---- backward ----------------------------------------------------------------------------------- */

/* Turns the derivatives with respect to x and the pairs of a step into a->dstate. */
static void pairs_back(const Eagle3Net *n, real *const *w, real *const *dw, Eagle3Acts *a, const TrainSequence *seq,
                       int32_t step) {
    int64_t C = n->layer.C;
    for (int32_t i = 0; i < a->layer.steps[step].n; i++) {
        real *dpair = a->layer.dpair + 2 * C * i, *dx = a->layer.dx + C * i, *dstate = a->dstate + C * i;
        for (int64_t k = 0; k < C; k++) {
            dstate[k] = n->keeps_normed ? 0 : dx[k];
            if (n->keeps_normed) dpair[C + k] += dx[k];
        }
        rmsnorm_backward(dstate, dw[HIDDEN_NORM], dpair + C, a->state[step] + C * i, w[HIDDEN_NORM],
                         a->hidden_rms[step] + i, 1, C);
        memset(a->dscratch, 0, (size_t)C * sizeof(real)); /* the embedding is frozen */
        rmsnorm_backward(a->dscratch, dw[TOKEN_NORM], dpair, embedding_of(n, a, seq, step, i), w[TOKEN_NORM],
                         a->token_rms[step] + i, 1, C);
    }
}

/* Passes a->dstate on to fc and the norm of the streams, which are frozen. */
static void streams_back(const Eagle3Net *n, real *const *w, real *const *dw, Eagle3Acts *a, const TrainSequence *seq) {
    int64_t rows = a->layer.steps[0].n, all = streams_width(n), each = n->norms_each ? n->n_target : all;
    bool has_norm = w[STREAM_NORM] != NULL;
    if (has_norm) memset(a->dstreams, 0, (size_t)(rows * all) * sizeof(real));
    linear_backward(has_norm ? a->dstreams : NULL, dw[UNROLL_FC], dw[UNROLL_FC_BIAS], a->dstate,
                    has_norm ? a->streams : seq->streams, w[UNROLL_FC], rows, all, n->layer.C);
    for (int64_t at = 0, i = 0; has_norm && at < rows * all; at += each, i++) {
        memset(a->dscratch, 0, (size_t)each * sizeof(real));
        rmsnorm_backward(a->dscratch, dw[STREAM_NORM] + at % all, a->dstreams + at, seq->streams + at,
                         w[STREAM_NORM] + at % all, a->stream_rms + i, 1, each);
    }
}

static void backward(const Eagle3Net *n, real *const *w, real *const *dw, Eagle3Acts *a, const TrainSequence *seq) {
    int64_t C = n->layer.C;
    unroll_begin_back(&n->layer, &a->layer);
    for (int32_t step = n->layer.n_steps - 1; step >= 0; step--) {
        UnrollStep *p = &a->layer.steps[step];
        if (p->n == 0) continue;
        for (int32_t i = 0; i < p->n; i++) {
            int64_t t = p->chains[i];
            rmsnorm_backward(p->df + t * C, dw[OUTPUT_NORM], a->dout[step] + t * C, p->f + t * C, w[OUTPUT_NORM],
                             a->out_rms[step] + t, 1, C);
        }
        unroll_step_back(&n->layer, w, dw, &a->layer, step);
        pairs_back(n, w, dw, a, seq, step);
        if (step == 0) {
            streams_back(n, w, dw, a, seq);
            continue;
        }
        real *before = n->continues_normed ? a->dout[step - 1] : a->layer.steps[step - 1].df;
        for (int32_t i = 0; i < p->n; i++)
            for (int64_t k = 0; k < C; k++) before[p->chains[i] * C + k] += a->dstate[i * C + k];
    }
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const Eagle3Net *n = net;
    Eagle3Acts *a = acts;
    real *slots[N_SLOTS], *dslots[N_SLOTS];
    find_slots(n, w, slots);
    find_slots(n, dw, dslots);
    forward(n, slots, a, seq);
    if (dw) unroll_zero(&n->layer, &a->layer, seq);
    for (int32_t i = 0; dw && i < n->layer.n_steps; i++)
        memset(a->dout[i], 0, (size_t)seq->T * (size_t)n->layer.C * sizeof(real));
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        learn_positions(n, slots, dw ? dslots : NULL, a, seq, weight, sums);
    if (dw) backward(n, slots, dslots, a, seq);
}

const NetClass eagle3_net_class = {"eagle3", n_tensors, tensor, acts_open,        acts_close, learn,
                                   set_keys, NULL,      NULL,   LAYOUT_PUBLISHED, keeps};

/* hydra_net.c - heads that read the tokens predicted by the heads before them (Ankner et al. 2024, "Hydra:
 * Sequentially- Dependent Draft Heads for Medusa Decoding", arXiv 2402.05109). From position t, head i (from 0)
 * computes step s = i + 1 from
 *
 *     c   = [h_t ; E(x_{t+1}) ; ... ; E(x_{t+s})]       (s + 1) C numbers; E is the target's embedding, and frozen
 *     x_0 = R c + SiLU(W c + b),   x_k = x_{k-1} + SiLU(A_k x_{k-1} + a_k),   logits = O x_n
 *
 * In training, the tokens are those of the text. Initially R is the identity on h_t and random on E, W and the blocks
 * are zeros, and O is the target's output matrix. So, as in medusa_net.c, each head initially repeats the target's
 * distribution at t, except for the noise that the tokens add. Zeros on E would do worse: its numbers are small, and
 * the head would learn to use the tokens only slowly (docs/TRAINING.md).
 *
 * The rows of a head are independent of each other, so only those in the loss are computed.
 *
 * Hydra++. The heads read g_t = norm(Layer(h_t)) in the place of h_t. The layer attends to all positions before t, so
 * it runs over the whole sequence before the heads, and backwards after them. It is the target's last one, but adds
 * nothing at first (unroll_layer.c), and the norm after it begins with the length of the target's hidden states: so g_t
 * is nearly h_t.
 *
 * Tests: test_train_heads.c, test_train_drafters.c by finite differences. */
#include "train/nets.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

/* The tensors of the first block; after them come weight and bias of the others, O, and the biases of R and of O. */
enum { IN_WEIGHT, IN_BIAS, SKIP_WEIGHT, N_FIRST };

/* The layer of Hydra++ has the tensors from UNROLL_Q to UNROLL_ATTN_NORM, after those of all heads; then comes its
 * norm. */
enum { N_OF_LAYER = UNROLL_ATTN_NORM + 1 - UNROLL_Q, OUTPUT_NORM = N_OF_LAYER, N_PREFIX };

typedef struct HydraActs {
    HeadLoss loss;
    ResidualChain chain; /* the current head's, a row for each current position; its input is x_0 */
    Arena arena;
    real *c, *sum, *silu;     /* [rows][(n_heads + 1) C], W c + b [rows][C], [rows][C] */
    real *offsets, *doffsets; /* [rows][V] the bias of O in each row; NULL: there is none */
    /* Hydra++ */
    UnrollActs layer;
    real *g, *rms, *dg; /* [T][C], [T], [T][C] by position */
    real *dc;           /* as c */
} HydraActs;

/* ---- tensors ------------------------------------------------------------------------------------ */

static int32_t output_of_head(const HydraNet *n) { return N_FIRST + 2 * (n->n_blocks - 1); }
static int32_t skip_bias_of_head(const HydraNet *n) { return output_of_head(n) + n->has_own_output; }
static int32_t output_bias_of_head(const HydraNet *n) { return skip_bias_of_head(n) + n->has_skip_bias; }
static int32_t tensors_of_head(const HydraNet *n) { return output_bias_of_head(n) + n->has_output_bias; }
static int32_t first_of_prefix(const HydraNet *n) { return n->n_heads * tensors_of_head(n); }
static int32_t n_tensors(const void *net) {
    const HydraNet *n = net;
    return first_of_prefix(n) + (n->has_prefix ? N_PREFIX : 0);
}

static NetTensor tensor_of_prefix(const HydraNet *n, int32_t i) {
    if (i < N_OF_LAYER) return unroll_tensor(&n->prefix, UNROLL_Q + i);
    return (NetTensor){.name = HYDRA_PREFIX LAYER_OUTPUT_NORM, .n = n->C, .start = NET_CONSTANT, .std = n->norm_start};
}

static NetTensor tensor(const void *net, int32_t i) {
    static const char *const first[N_FIRST] = {HYDRA_IN ".weight", HYDRA_IN ".bias", HYDRA_SKIP ".weight"};
    const HydraNet *n = net;
    if (i >= first_of_prefix(n)) return tensor_of_prefix(n, i - first_of_prefix(n));
    int32_t head = i / tensors_of_head(n), k = i % tensors_of_head(n), block = (k - N_FIRST) / 2 + 1;
    NetTensor t = {.n_rows = n->C, .n = n->C, .start = NET_ZEROS};
    if (k < N_FIRST) {
        if (k == IN_BIAS) t.n_rows = 0;
        else t.n = (head + 2) * (int64_t)n->C;
        if (k == SKIP_WEIGHT) t.start = NET_PASS, t.std = n->token_std / sqrt(head + 1);
        snprintf(t.name, sizeof t.name, HYDRA_HEAD "%s", head, first[k]);
    } else if (k >= skip_bias_of_head(n)) {
        bool is_of_output = k == output_bias_of_head(n);
        t.n_rows = 0, t.n = is_of_output ? n->V : n->C;
        snprintf(t.name, sizeof t.name, HYDRA_HEAD "%s.bias", head, is_of_output ? HYDRA_OUTPUT : HYDRA_SKIP);
    } else if (k == output_of_head(n)) {
        t.n_rows = n->V, t.start = NET_HEAD;
        snprintf(t.name, sizeof t.name, HYDRA_HEAD HYDRA_OUTPUT ".weight", head);
    } else {
        bool is_bias = (k - N_FIRST) % 2;
        if (is_bias) t.n_rows = 0;
        snprintf(t.name, sizeof t.name, HYDRA_HEAD HYDRA_BLOCK ".%s", head, block, is_bias ? "bias" : "weight");
    }
    return t;
}

static void set_keys(const void *net, GgufWriter *w) {
    const HydraNet *n = net;
    const char *output = n->has_own_output ? "own" : "target";
    gguf_set_u32(w, DRAFTER_KEY(HYDRA_KEY_HEAD_COUNT), (uint32_t)n->n_heads);
    gguf_set_u32(w, DRAFTER_KEY(HYDRA_KEY_BLOCK_COUNT), (uint32_t)n->n_blocks);
    gguf_set_string(w, DRAFTER_KEY(HYDRA_KEY_OUTPUT), output, strlen(output));
    if (n->has_prefix) gguf_set_u32(w, DRAFTER_KEY(HYDRA_PREFIX LAYER_KEY_FEED_FORWARD), (uint32_t)n->prefix.n_ff);
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    HydraActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    residual_chain_close(&a->chain);
    unroll_close(&a->layer);
    arena_free(&a->arena);
    mem_free(a);
}

static int open_arrays(HydraActs *a, const HydraNet *n, int64_t T, fr_error *err) {
    int64_t rows = HEAD_LOSS_ROWS * (int64_t)n->C;
    const ArenaItem items[] = {ARENA_ITEM(&a->c, (n->n_heads + 1) * rows), ARENA_ITEM(&a->sum, rows),
                               ARENA_ITEM(&a->silu, rows)};
    const ArenaItem of_prefix[] = {ARENA_ITEM(&a->g, T * n->C), ARENA_ITEM(&a->rms, T), ARENA_ITEM(&a->dg, T * n->C),
                                   ARENA_ITEM(&a->dc, (n->n_heads + 1) * rows)};
    const ArenaItem of_bias[] = {ARENA_ITEM(&a->offsets, HEAD_LOSS_ROWS * (int64_t)n->V),
                                 ARENA_ITEM(&a->doffsets, HEAD_LOSS_ROWS * (int64_t)n->V)};
    int status = arena_take(&a->arena, items, ARENA_COUNT(items), "a head's activations", err);
    if (!status && n->has_output_bias)
        status = arena_take(&a->arena, of_bias, ARENA_COUNT(of_bias), "a head's logits", err);
    if (status || !n->has_prefix) return status;
    status = arena_take(&a->arena, of_prefix, ARENA_COUNT(of_prefix), "a layer's activations", err);
    return status ? status : unroll_open(&a->layer, &n->prefix, (int32_t)T, err);
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const HydraNet *n = net;
    HydraActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a head's activations", sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->C, n->V, err);
    if (!status) status = residual_chain_open(&a->chain, n->C, n->n_blocks - 1, HEAD_LOSS_ROWS, err);
    if (!status) status = open_arrays(a, n, max_length, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- the layer of Hydra++ ------------------------------------------------------------------------ */

/* The layer's tensors by the numbers of the unrolled layer's, of w or dw. */
static real *const *layer_tensors(const HydraNet *n, real *const *w) { return w + first_of_prefix(n) - UNROLL_Q; }

static void prefix_forward(const HydraNet *n, real *const *w, HydraActs *a, const TrainSequence *seq) {
    unroll_choose_rows(&n->prefix, &a->layer, seq);
    UnrollStep *p = &a->layer.steps[0]; /* its rows are those of the first p->n positions */
    memcpy(p->x, seq->hidden, (size_t)p->n * (size_t)n->C * sizeof *p->x);
    unroll_run_step(&n->prefix, layer_tensors(n, w), &a->layer, 0);
    rmsnorm_forward(a->g, a->rms, p->f, w[first_of_prefix(n) + OUTPUT_NORM], p->n, n->C, (real)n->prefix.rms_eps);
    memset(a->dg, 0, (size_t)seq->T * (size_t)n->C * sizeof *a->dg);
}

/* From a->dg. The target is frozen. */
static void prefix_back(const HydraNet *n, real *const *w, real *const *dw, HydraActs *a, const TrainSequence *seq) {
    UnrollStep *p = &a->layer.steps[0];
    int32_t norm = first_of_prefix(n) + OUTPUT_NORM;
    unroll_begin_back(&n->prefix, &a->layer);
    unroll_zero(&n->prefix, &a->layer, seq);
    rmsnorm_backward(p->df, dw[norm], a->dg, p->f, w[norm], a->rms, p->n, n->C);
    unroll_step_back(&n->prefix, layer_tensors(n, w), layer_tensors(n, dw), &a->layer, 0);
}

/* ---- the heads ------------------------------------------------------------------------------------ */

/* c of each current position; zeros for positions below s, which step s cannot predict. */
static void gather_inputs(const HydraNet *n, HydraActs *a, const TrainSequence *seq, int32_t step) {
    const HeadLoss *h = &a->loss;
    size_t part = (size_t)n->C * sizeof(real);
    const real *states = n->has_prefix ? a->g : seq->hidden;
    real *c = a->c;
    for (int32_t k = 0; k < h->n; k++) {
        int32_t t = h->positions[k] - step;
        memcpy(c, states + (t < 0 ? 0 : t) * (int64_t)n->C, part);
        c += n->C;
        for (int32_t s = 1; s <= step; s++, c += n->C) {
            if (t < 0) memset(c, 0, part);
            else memcpy(c, seq->embd + seq->tokens[t + s] * (int64_t)n->C, part);
        }
    }
}

static void head_forward(const HydraNet *n, real *const *w, HydraActs *a, const TrainSequence *seq, int32_t step) {
    int64_t rows = a->loss.n, width = (step + 1) * (int64_t)n->C;
    real *x = a->chain.x;
    gather_inputs(n, a, seq, step);
    linear_forward(x, a->c, w[SKIP_WEIGHT], n->has_skip_bias ? w[skip_bias_of_head(n)] : NULL, rows, width, n->C);
    linear_forward(a->sum, a->c, w[IN_WEIGHT], w[IN_BIAS], rows, width, n->C);
    silu_forward(a->silu, a->sum, rows * n->C);
    for (int64_t i = 0; i < rows * n->C; i++) x[i] += a->silu[i];
    residual_chain_forward(&a->chain, w + N_FIRST, rows);
}

/* Adds the gradient of the first part of c to that of the layer's outputs. */
static void scatter_inputs(const HydraNet *n, HydraActs *a, int32_t step) {
    int64_t width = (step + 1) * (int64_t)n->C;
    for (int32_t k = 0; k < a->loss.n; k++) {
        int64_t t = a->loss.positions[k] - step;
        for (int64_t i = 0; t >= 0 && i < n->C; i++) a->dg[t * n->C + i] += a->dc[k * width + i];
    }
}

/* From chain.dx, the derivative with respect to the chain's output. What c has of the frozen target gets no
 * gradient. */
static void head_back(const HydraNet *n, real *const *w, real *const *dw, HydraActs *a, int32_t step) {
    int64_t rows = a->loss.n, width = (step + 1) * (int64_t)n->C;
    real *dx = a->chain.dx, *dsum = a->silu, *dc = n->has_prefix ? a->dc : NULL;
    residual_chain_back(&a->chain, w + N_FIRST, dw + N_FIRST, rows, true);
    memset(dsum, 0, (size_t)(rows * n->C) * sizeof *dsum);
    silu_backward(dsum, dx, a->sum, rows * n->C);
    if (dc) memset(dc, 0, (size_t)(rows * width) * sizeof *dc);
    linear_backward(dc, dw[SKIP_WEIGHT], n->has_skip_bias ? dw[skip_bias_of_head(n)] : NULL, dx, a->c, w[SKIP_WEIGHT],
                    rows, width, n->C);
    linear_backward(dc, dw[IN_WEIGHT], dw[IN_BIAS], dsum, a->c, w[IN_WEIGHT], rows, width, n->C);
    if (dc) scatter_inputs(n, a, step);
}

/* Puts the bias of O into each current row. */
static void spread_bias(const HydraNet *n, real *const *w, HydraActs *a) {
    for (int32_t k = 0; n->has_output_bias && k < a->loss.n; k++)
        memcpy(a->offsets + k * (int64_t)n->V, w[output_bias_of_head(n)], (size_t)n->V * sizeof(real));
    if (n->has_output_bias) memset(a->doffsets, 0, (size_t)a->loss.n * (size_t)n->V * sizeof(real));
}

static void collect_bias(const HydraNet *n, real *const *dw, const HydraActs *a) {
    for (int32_t k = 0; n->has_output_bias && k < a->loss.n; k++)
        for (int64_t v = 0; v < n->V; v++) dw[output_bias_of_head(n)][v] += a->doffsets[k * (int64_t)n->V + v];
}

/* Head i at the current positions. w, dw: its own tensors; dw may be NULL. */
static void learn_head(const HydraNet *n, real *const *w, real *const *dw, HydraActs *a, const TrainSequence *seq,
                       int32_t i, double weight, TrainSums *sums) {
    ResidualChain *chain = &a->chain;
    int32_t step = i + 1, output = output_of_head(n);
    head_forward(n, w, a, seq, step);
    spread_bias(n, w, a);
    if (dw) memset(chain->dx, 0, (size_t)(a->loss.n * n->C) * sizeof *chain->dx);
    head_loss_rows(&a->loss, seq, step, residual_chain_out(chain), n->C, n->has_own_output ? w[output] : seq->head,
                   a->offsets, dw ? chain->dx : NULL, dw && n->has_own_output ? dw[output] : NULL,
                   dw ? a->doffsets : NULL, weight, sums);
    if (dw) collect_bias(n, dw, a);
    if (dw) head_back(n, w, dw, a, step);
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const HydraNet *n = net;
    HydraActs *a = acts;
    int32_t each = tensors_of_head(n);
    if (n->has_prefix) prefix_forward(n, w, a, seq);
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        for (int32_t i = 0; i < n->n_heads; i++)
            learn_head(n, w + i * each, dw ? dw + i * each : NULL, a, seq, i, weight, sums);
    if (n->has_prefix && dw) prefix_back(n, w, dw, a, seq);
}

const NetClass hydra_net_class = {"hydra",  n_tensors, tensor, acts_open,  acts_close, learn,
                                  set_keys, NULL,      NULL,   LAYOUT_OWN, NULL};

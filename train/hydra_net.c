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
 * The rows of a head are independent of each other, so only those in the loss are computed. Test:
 * test_train_heads.c. */
#include "train/nets.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

/* The tensors of the first block; after them come weight and bias of the others, and O. */
enum { IN_WEIGHT, IN_BIAS, SKIP_WEIGHT, N_FIRST };

typedef struct HydraActs {
    HeadLoss loss;
    ResidualChain chain; /* the current head's, a row for each current position; its input is x_0 */
    Arena arena;
    real *c, *sum, *silu; /* [rows][(n_heads + 1) C], W c + b [rows][C], [rows][C] */
} HydraActs;

/* ---- tensors ------------------------------------------------------------------------------------ */

static int32_t tensors_of_head(const HydraNet *n) { return N_FIRST + 2 * (n->n_blocks - 1) + n->has_own_output; }
static int32_t n_tensors(const void *net) { return ((const HydraNet *)net)->n_heads * tensors_of_head(net); }

static NetTensor tensor(const void *net, int32_t i) {
    static const char *const first[N_FIRST] = {HYDRA_IN ".weight", HYDRA_IN ".bias", HYDRA_SKIP ".weight"};
    const HydraNet *n = net;
    int32_t head = i / tensors_of_head(n), k = i % tensors_of_head(n), block = (k - N_FIRST) / 2 + 1;
    NetTensor t = {.n_rows = n->C, .n = n->C, .start = NET_ZEROS};
    if (k < N_FIRST) {
        if (k == IN_BIAS) t.n_rows = 0;
        else t.n = (head + 2) * (int64_t)n->C;
        if (k == SKIP_WEIGHT) t.start = NET_PASS, t.std = n->token_std / sqrt(head + 1);
        snprintf(t.name, sizeof t.name, HYDRA_HEAD "%s", head, first[k]);
    } else if (block == n->n_blocks) {
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
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    HydraActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    residual_chain_close(&a->chain);
    arena_free(&a->arena);
    mem_free(a);
}

static int open_arrays(HydraActs *a, const HydraNet *n, fr_error *err) {
    int64_t rows = HEAD_LOSS_ROWS * (int64_t)n->C;
    const ArenaItem items[] = {ARENA_ITEM(&a->c, (n->n_heads + 1) * rows), ARENA_ITEM(&a->sum, rows),
                               ARENA_ITEM(&a->silu, rows)};
    return arena_take(&a->arena, items, ARENA_COUNT(items), "a head's activations", err);
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    (void)max_length;
    const HydraNet *n = net;
    HydraActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a head's activations", sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->C, n->V, err);
    if (!status) status = residual_chain_open(&a->chain, n->C, n->n_blocks - 1, HEAD_LOSS_ROWS, err);
    if (!status) status = open_arrays(a, n, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- forward and backward ----------------------------------------------------------------------- */

/* c of each current position; zeros for positions below s, which step s cannot predict. */
static void gather_inputs(const HydraNet *n, HydraActs *a, const TrainSequence *seq, int32_t step) {
    const HeadLoss *h = &a->loss;
    size_t part = (size_t)n->C * sizeof(real);
    real *c = a->c;
    for (int32_t k = 0; k < h->n; k++) {
        int32_t t = h->positions[k] - step;
        memcpy(c, seq->hidden + (t < 0 ? 0 : t) * (int64_t)n->C, part);
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
    linear_forward(x, a->c, w[SKIP_WEIGHT], NULL, rows, width, n->C);
    linear_forward(a->sum, a->c, w[IN_WEIGHT], w[IN_BIAS], rows, width, n->C);
    silu_forward(a->silu, a->sum, rows * n->C);
    for (int64_t i = 0; i < rows * n->C; i++) x[i] += a->silu[i];
    residual_chain_forward(&a->chain, w + N_FIRST, rows);
}

/* From chain.dx, the derivative with respect to the chain's output. c comes from the frozen target and gets no
 * gradient. */
static void head_back(const HydraNet *n, real *const *w, real *const *dw, HydraActs *a, int32_t step) {
    int64_t rows = a->loss.n, width = (step + 1) * (int64_t)n->C;
    real *dx = a->chain.dx, *dsum = a->silu;
    residual_chain_back(&a->chain, w + N_FIRST, dw + N_FIRST, rows, true);
    memset(dsum, 0, (size_t)(rows * n->C) * sizeof *dsum);
    silu_backward(dsum, dx, a->sum, rows * n->C);
    linear_backward(NULL, dw[SKIP_WEIGHT], NULL, dx, a->c, w[SKIP_WEIGHT], rows, width, n->C);
    linear_backward(NULL, dw[IN_WEIGHT], dw[IN_BIAS], dsum, a->c, w[IN_WEIGHT], rows, width, n->C);
}

/* Head i at the current positions. w, dw: its own tensors; dw may be NULL. */
static void learn_head(const HydraNet *n, real *const *w, real *const *dw, HydraActs *a, const TrainSequence *seq,
                       int32_t i, double weight, TrainSums *sums) {
    ResidualChain *chain = &a->chain;
    int32_t step = i + 1, output = N_FIRST + 2 * (n->n_blocks - 1);
    head_forward(n, w, a, seq, step);
    if (dw) memset(chain->dx, 0, (size_t)(a->loss.n * n->C) * sizeof *chain->dx);
    head_loss_rows(&a->loss, seq, step, residual_chain_out(chain), n->C, n->has_own_output ? w[output] : seq->head,
                   NULL, dw ? chain->dx : NULL, dw && n->has_own_output ? dw[output] : NULL, NULL, weight, sums);
    if (dw) head_back(n, w, dw, a, step);
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const HydraNet *n = net;
    HydraActs *a = acts;
    int32_t each = tensors_of_head(n);
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        for (int32_t i = 0; i < n->n_heads; i++)
            learn_head(n, w + i * each, dw ? dw + i * each : NULL, a, seq, i, weight, sums);
}

const NetClass hydra_net_class = {"hydra",  n_tensors, tensor, acts_open,  acts_close, learn,
                                  set_keys, NULL,      NULL,   LAYOUT_OWN, NULL};

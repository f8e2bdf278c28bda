/* medusa_net.c - Medusa's heads (Cai et al. 2024, arXiv 2401.10774). From the hidden state at t, head i (from 0)
 * predicts the token of step i + 1:
 *
 *     x_0 = h_t,   x_k = x_{k-1} + SiLU(A_k x_{k-1} + a_k),   logits = O x_n
 *
 * Initially the blocks are zeros and O is the target's output matrix, so each head begins by repeating the target's
 * distribution of x_{t+1} (section 2.1).
 *
 * The rows of a head are independent of each other, so only those in the loss are computed, and a prompt costs nothing.
 * Test: test_train_heads.c. */
#include "train/nets.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

typedef struct MedusaActs {
    HeadLoss loss;
    ResidualChain chain; /* the current head's, a row for each current position */
} MedusaActs;

/* ---- tensors ------------------------------------------------------------------------------------ */

static int32_t tensors_of_head(const MedusaNet *n) { return 2 * n->n_blocks + n->has_own_output; }
static int32_t n_tensors(const void *net) { return ((const MedusaNet *)net)->n_heads * tensors_of_head(net); }

static NetTensor tensor(const void *net, int32_t i) {
    const MedusaNet *n = net;
    int32_t head = i / tensors_of_head(n), k = i % tensors_of_head(n);
    NetTensor t = {.n_rows = n->C, .n = n->C, .start = NET_ZEROS};
    if (k == 2 * n->n_blocks) {
        t.n_rows = n->V, t.start = NET_HEAD;
        snprintf(t.name, sizeof t.name, MEDUSA_OUTPUT ".weight", head);
    } else {
        if (k % 2) t.n_rows = 0;
        snprintf(t.name, sizeof t.name, MEDUSA_BLOCK ".%s", head, k / 2, k % 2 ? "bias" : "weight");
    }
    return t;
}

static void set_keys(const void *net, GgufWriter *w) {
    const MedusaNet *n = net;
    const char *output = n->has_own_output ? "own" : "target";
    gguf_set_u32(w, DRAFTER_KEY(MEDUSA_KEY_HEAD_COUNT), (uint32_t)n->n_heads);
    gguf_set_u32(w, DRAFTER_KEY(MEDUSA_KEY_BLOCK_COUNT), (uint32_t)n->n_blocks);
    gguf_set_string(w, DRAFTER_KEY(MEDUSA_KEY_OUTPUT), output, strlen(output));
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    MedusaActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    residual_chain_close(&a->chain);
    mem_free(a);
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    (void)max_length;
    const MedusaNet *n = net;
    MedusaActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a head's activations", sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->C, n->V, err);
    if (!status) status = residual_chain_open(&a->chain, n->C, n->n_blocks, HEAD_LOSS_ROWS, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- forward and backward ----------------------------------------------------------------------- */

/* Head i at the current positions. w, dw: its own tensors; dw may be NULL. */
static void learn_head(const MedusaNet *n, real *const *w, real *const *dw, MedusaActs *a, const TrainSequence *seq,
                       int32_t i, double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    ResidualChain *c = &a->chain;
    int32_t step = i + 1, output = 2 * n->n_blocks;
    size_t row = (size_t)n->C * sizeof(real);
    for (int32_t k = 0; k < h->n; k++) { /* a position that the loss skips may have any row */
        int32_t t = h->positions[k] < step ? 0 : h->positions[k] - step;
        memcpy(c->x + k * n->C, seq->hidden + (int64_t)t * n->C, row);
    }
    residual_chain_forward(c, w, h->n);
    if (dw) memset(c->dx, 0, (size_t)h->n * row);
    head_loss_rows(h, seq, step, residual_chain_out(c), n->C, n->has_own_output ? w[output] : seq->head, NULL,
                   dw ? c->dx : NULL, dw && n->has_own_output ? dw[output] : NULL, NULL, weight, sums);
    if (dw) residual_chain_back(c, w, dw, h->n, false); /* the input comes from the frozen target */
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const MedusaNet *n = net;
    MedusaActs *a = acts;
    int32_t each = tensors_of_head(n);
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        for (int32_t i = 0; i < n->n_heads; i++)
            learn_head(n, w + i * each, dw ? dw + i * each : NULL, a, seq, i, weight, sums);
}

const NetClass medusa_net_class = {"medusa", n_tensors,       tensor, acts_open,  acts_close, learn,
                                   set_keys, MEDUSA_ACCURACY, NULL,   LAYOUT_OWN, NULL};

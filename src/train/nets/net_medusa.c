/* net_medusa.c - head i (from 0) says from the hidden state at t what its step i + 1 is to guess:
 *
 *     x_0 = h_t,   x_k = x_{k-1} + SiLU(A_k x_{k-1} + a_k),   logits = O x_n
 *
 * With blocks that begin as zeros and O as the target's head, each head first says again what the target says of the token
 * before the one it is asked for, and learns from there (Cai et al. 2024, section 2.1).
 *
 * A head's rows have nothing to do with each other, so it makes those that are judged and no others: a prompt costs nothing.
 * Test: test_train_heads.c. */
#include "train/nets/net_medusa.h"

#include "base/mem.h"
#include "train/ops/residual_chain.h"

#include <stdio.h>
#include <string.h>

typedef struct MedusaActs {
    HeadLoss loss;
    ResidualChain chain; /* of the head at hand, a row for each place at hand */
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
        snprintf(t.name, sizeof t.name, "medusa.%d.output.weight", head);
    } else {
        if (k % 2) t.n_rows = 0;
        snprintf(t.name, sizeof t.name, "medusa.%d.block.%d.%s", head, k / 2, k % 2 ? "bias" : "weight");
    }
    return t;
}

static void set_keys(const void *net, GgufWriter *w) {
    const MedusaNet *n = net;
    const char *output = n->has_own_output ? "own" : "target";
    gguf_set_u32(w, DRAFTER_KEY("medusa.head_count"), (uint32_t)n->n_heads);
    gguf_set_u32(w, DRAFTER_KEY("medusa.block_count"), (uint32_t)n->n_blocks);
    gguf_set_string(w, DRAFTER_KEY("medusa.output"), output, strlen(output));
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

/* ---- forward and back --------------------------------------------------------------------------- */

/* Head i on the places at hand. w, dw: its own tensors; dw may be NULL. */
static void learn_head(const MedusaNet *n, real *const *w, real *const *dw, MedusaActs *a, const TrainSequence *l, int32_t i,
                       double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    ResidualChain *c = &a->chain;
    int32_t step = i + 1, output = 2 * n->n_blocks;
    size_t row = (size_t)n->C * sizeof(real);
    for (int32_t k = 0; k < h->n; k++) { /* a place that is skipped has any row */
        int32_t t = h->places[k] < step ? 0 : h->places[k] - step;
        memcpy(c->x + k * n->C, l->hidden + (int64_t)t * n->C, row);
    }
    residual_chain_forward(c, w, h->n);
    if (dw) memset(c->dx, 0, (size_t)h->n * row);
    head_loss_rows(h, l, step, residual_chain_out(c), n->C, n->has_own_output ? w[output] : l->head, NULL, dw ? c->dx : NULL,
                   dw && n->has_own_output ? dw[output] : NULL, NULL, weight, sums);
    if (dw) residual_chain_back(c, w, dw, h->n, false); /* below the first block is the target, which learns nothing */
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *l, double weight,
                  TrainSums *sums) {
    const MedusaNet *n = net;
    MedusaActs *a = acts;
    int32_t each = tensors_of_head(n);
    for (int32_t from = 1; head_loss_next(&a->loss, l, &from);)
        for (int32_t i = 0; i < n->n_heads; i++) learn_head(n, w + i * each, dw ? dw + i * each : NULL, a, l, i, weight, sums);
}

const NetClass medusa_net_class = {"medusa", n_tensors, tensor, acts_open, acts_close, learn, set_keys,
                                   "medusa.accuracy"};

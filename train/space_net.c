/* space_net.c - the masks of SPACE (Yi et al. 2024; the essay is in src/draft/learned/draft_space.c). The target reads
 * masks m_1 .. m_n after token t of a text; mask s predicts x_{t+s+1}:
 *
 *     r_s = the target's hidden state at mask s      (mask_rows.c)
 *     y_0 = r_s,   y_k = y_{k-1} + SiLU(A_sk y_{k-1} + a_sk),   logits = target's output matrix times y_last
 *
 * The input vectors m_s are trained and, if there are blocks, A and a, which begin as zeros. Groups follow every token
 * from which a mask predicts at one of the current positions of the loss (HeadLoss).
 *
 * Test: test_train_drafters.c, by finite differences in double. */
#include "train/nets.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

typedef struct SpaceActs {
    HeadLoss loss;
    MaskRows masks;
    ResidualChain chain; /* the current step's, a row for each current position */
    int32_t *group_of;   /* [max_length] the group after each token; -1: none */
} SpaceActs;

/* ---- tensors ------------------------------------------------------------------------------------ */

static int32_t n_tensors(const void *net) {
    const SpaceNet *n = net;
    return 1 + 2 * n->n_blocks * n->loss.n_steps;
}

static NetTensor tensor(const void *net, int32_t i) {
    const SpaceNet *n = net;
    NetTensor t = {.n_rows = n->target.C, .n = n->target.C, .start = NET_ZEROS};
    if (i == 0) {
        t.n_rows = n->loss.n_steps, t.start = NET_NORMAL, t.std = n->mask_std;
        snprintf(t.name, sizeof t.name, SPACE_MASKS);
        return t;
    }
    int32_t k = i - 1, block = k / 2;
    if (k % 2) t.n_rows = 0;
    snprintf(t.name, sizeof t.name, SPACE_BLOCK ".%s", block / n->n_blocks, block % n->n_blocks,
             k % 2 ? "bias" : "weight");
    return t;
}

static void set_keys(const void *net, GgufWriter *w) {
    const SpaceNet *n = net;
    gguf_set_u32(w, DRAFTER_KEY(SPACE_KEY_MASK_COUNT), (uint32_t)n->loss.n_steps);
    gguf_set_u32(w, DRAFTER_KEY(SPACE_KEY_BLOCK_COUNT), (uint32_t)n->n_blocks);
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    SpaceActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    mask_rows_close(&a->masks);
    residual_chain_close(&a->chain);
    mem_free(a->group_of);
    mem_free(a);
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const SpaceNet *n = net;
    int32_t S = n->loss.n_steps, groups = HEAD_LOSS_ROWS * S < max_length ? HEAD_LOSS_ROWS * S : max_length;
    SpaceActs *a = mem_calloc(1, sizeof *a);
    if (!a || !(a->group_of = mem_calloc((size_t)max_length, sizeof *a->group_of))) {
        error_memory(err, "the activations of masks", sizeof *a);
        acts_close(a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->target.C, n->V, err);
    if (!status) status = mask_rows_open(&a->masks, &n->target, S, max_length, groups, err);
    if (!status) status = residual_chain_open(&a->chain, n->target.C, n->n_blocks, HEAD_LOSS_ROWS, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- forward and backward ----------------------------------------------------------------------- */

/* Groups after the tokens from which some mask predicts at a current position. */
static void choose_groups(SpaceActs *a, int32_t n_steps) {
    MaskRows *m = &a->masks;
    const HeadLoss *h = &a->loss;
    for (int32_t t = 0; t < m->T; t++) a->group_of[t] = -1;
    for (int32_t i = 0; i < h->n; i++)
        for (int32_t s = 1; s <= n_steps && s <= h->positions[i]; s++) a->group_of[h->positions[i] - s] = 0;
    m->n = 0;
    for (int32_t t = 0; t < m->T; t++)
        if (a->group_of[t] == 0) a->group_of[t] = m->n, m->after[m->n++] = t;
}

/* Returns the row of mask `step` that predicts at current position i; NULL: no group begins so early. */
static real *row_of(const SpaceActs *a, real *rows, int32_t step, int32_t i, int64_t C) {
    int32_t t = a->loss.positions[i] - step;
    return t < 0 ? NULL : rows + ((step - 1) * (int64_t)a->masks.n + a->group_of[t]) * C;
}

/* Computes the loss of mask `step` at the current positions. w, dw: of its blocks; dw may be NULL. */
static void learn_mask(const SpaceNet *n, real *const *w, real *const *dw, SpaceActs *a, const TrainSequence *seq,
                       int32_t step, double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    ResidualChain *c = &a->chain;
    int64_t C = n->target.C;
    const real *row;
    real *drow;
    for (int32_t i = 0; i < h->n; i++)
        if ((row = row_of(a, a->masks.out, step, i, C))) memcpy(c->x + i * C, row, (size_t)C * sizeof *row);
    residual_chain_forward(c, w, h->n);
    if (dw) memset(c->dx, 0, (size_t)(h->n * C) * sizeof(real));
    head_loss_rows(h, seq, step, residual_chain_out(c), C, seq->head, NULL, dw ? c->dx : NULL, NULL, NULL, weight,
                   sums);
    if (!dw) return;
    residual_chain_back(c, w, dw, h->n, true);
    for (int32_t i = 0; i < h->n; i++)
        if ((drow = row_of(a, a->masks.dout, step, i, C)))
            for (int64_t k = 0; k < C; k++) drow[k] += c->dx[i * C + k];
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const SpaceNet *n = net;
    SpaceActs *a = acts;
    int32_t each = 2 * n->n_blocks;
    mask_rows_read_text(&a->masks, &n->target, seq->embd, seq->tokens, seq->T);
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);) {
        choose_groups(a, n->loss.n_steps);
        mask_rows_forward(&a->masks, &n->target, w[0]);
        for (int32_t s = 1; s <= n->loss.n_steps; s++)
            learn_mask(n, w + 1 + (s - 1) * each, dw ? dw + 1 + (s - 1) * each : NULL, a, seq, s, weight, sums);
        if (dw) mask_rows_backward(&a->masks, &n->target, dw[0]);
    }
}

const NetClass space_net_class = {"space",  n_tensors,      tensor, acts_open,  acts_close, learn,
                                  set_keys, SPACE_ACCURACY, NULL,   LAYOUT_OWN, NULL};

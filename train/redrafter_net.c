/* redrafter_net.c - ReDrafter's recurrent head (Zhang et al. 2024, arXiv 2403.09919). From each position t, step s
 * predicts the distribution at position p = t + s:
 *
 *     s_0 = 0 or s_1 = E(x_{t+1}),   s_s = SiLU(W E(x_p) + U s_{s-1} + b)
 *     logits = O f([s_s, h_t])  (+ info(x_p), token_info_net.c);  f: blocks x + SiLU(A x + a) of width 2C
 *
 * Backpropagation through time: ds_s, the derivative with respect to the state of step s, comes from the head of that
 * step and from step s + 1, and
 *
 *     dsum = ds_s SiLU'(sum_s),   ds_{s-1} += U^T dsum,   dU += dsum s_{s-1}^T,   db += dsum,   dW += dsum E(x_p)^T
 *
 * In training, the tokens are those of the text, so W E(x_p) is the same for all steps that read position p and is
 * computed once, as is dW. States are computed only for positions from which some step leads to a position in the loss
 * mask; the head, which is most of the cost, only for steps at positions in the mask.
 *
 * Distillation. The paper (section 3.5) minimises the KL of the target's joint distribution of the next S tokens, from
 * each position of the text, and writes it as the mean of -log q over continuations sampled from the target. By the
 * chain rule it is the sum over steps of the KL of the distributions of one token, averaged over the target's
 * continuations so far. A text that the target generated (forerun distill-data) is such a continuation, and the soft
 * labels here are that sum with the inner mean taken exactly. Hard labels on any text are the plain training that the
 * paper compares it with.
 *
 * Initial values: O is the target's output matrix on h_t, and small on the state; the blocks are zeros. W brings E(x),
 * whose numbers are small, to the range where SiLU is not linear; U is zeros, so that a state initially depends on its
 * last token and on nothing else. Test: test_train_heads.c. */
#include "train/nets.h"

#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/ops.h"

#include <stdio.h>
#include <string.h>

enum { W_WEIGHT, U_WEIGHT, U_BIAS, N_RECURRENT }; /* then weight and bias of each block, O, token info */

typedef struct RedrafterActs {
    HeadLoss loss;
    InfoActs info;
    ResidualChain chain; /* the current step's, a row for each current position */
    int32_t max_length, n_starts;
    int32_t *starts; /* [n_starts] the positions t that chains start from, ascending */
    int32_t *row_of; /* [T] the row of position t */
    Arena arena;
    real *embd, *pushed, *dpushed; /* [T][C] E(x_p), W E(x_p) and its derivative */
    real *sum, *state, *dstate;    /* [n_steps + 1][max_length][C], by step and row of the start; step 0 has s_0 */
    real *scratch;                 /* [T][C] */
} RedrafterActs;

/* ---- tensors ------------------------------------------------------------------------------------ */

/* Returns the index of tensor O; those of token info follow it. */
static int32_t output_of(const RedrafterNet *n) { return N_RECURRENT + 2 * n->n_blocks; }

static int32_t n_tensors(const void *net) {
    const RedrafterNet *n = net;
    return output_of(n) + 1 + info_n_tensors(&n->info);
}

static NetTensor tensor(const void *net, int32_t i) {
    static const char *const recurrent[N_RECURRENT] = {REDRAFTER_W ".weight", REDRAFTER_U ".weight",
                                                       REDRAFTER_U ".bias"};
    const RedrafterNet *n = net;
    int32_t k = i - N_RECURRENT;
    if (i > output_of(n)) return info_tensor(&n->info, i - output_of(n) - 1);
    NetTensor t = {.n_rows = n->C, .n = n->C, .start = NET_ZEROS};
    if (i < N_RECURRENT) {
        if (i == U_BIAS) t.n_rows = 0;
        else if (i == W_WEIGHT) t.start = NET_NORMAL, t.std = n->token_std;
        snprintf(t.name, sizeof t.name, "%s", recurrent[i]);
    } else if (i == output_of(n)) {
        t = (NetTensor){.name = REDRAFTER_OUTPUT ".weight",
                        .n_rows = n->V,
                        .n = 2 * n->C,
                        .start = NET_HEAD,
                        .std = 0.02};
    } else {
        t.n_rows = k % 2 ? 0 : 2 * n->C, t.n = 2 * n->C;
        snprintf(t.name, sizeof t.name, REDRAFTER_BLOCK ".%s", k / 2, k % 2 ? "bias" : "weight");
    }
    return t;
}

static void set_keys(const void *net, GgufWriter *w) {
    const RedrafterNet *n = net;
    const char *start = n->starts_at_embedding ? "embedding" : "zero";
    gguf_set_u32(w, DRAFTER_KEY(REDRAFTER_KEY_BLOCK_COUNT), (uint32_t)n->n_blocks);
    gguf_set_string(w, DRAFTER_KEY(REDRAFTER_KEY_START), start, strlen(start));
    info_set_keys(&n->info, w);
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    RedrafterActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    info_close(&a->info);
    residual_chain_close(&a->chain);
    arena_free(&a->arena);
    mem_free(a);
}

static int open_arrays(RedrafterActs *a, const RedrafterNet *n, fr_error *err) {
    int64_t rows = (int64_t)a->max_length * n->C, of_steps = rows * (n->loss.n_steps + 1);
    const ArenaItem items[] = {
        ARENA_ITEM(&a->starts, a->max_length), ARENA_ITEM(&a->row_of, a->max_length), ARENA_ITEM(&a->embd, rows),
        ARENA_ITEM(&a->pushed, rows),          ARENA_ITEM(&a->dpushed, rows),         ARENA_ITEM(&a->scratch, rows),
        ARENA_ITEM(&a->sum, of_steps),         ARENA_ITEM(&a->state, of_steps),       ARENA_ITEM(&a->dstate, of_steps),
    };
    return arena_take(&a->arena, items, ARENA_COUNT(items),
                      "the recurrent states of a sequence; choose a smaller --length", err);
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const RedrafterNet *n = net;
    RedrafterActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "the recurrent states of a sequence", sizeof *a);
        return NULL;
    }
    a->max_length = max_length;
    int status = head_loss_open(&a->loss, &n->loss, n->C, n->V, err);
    if (!status) status = info_open(&a->info, &n->info, err);
    if (!status) status = residual_chain_open(&a->chain, 2 * n->C, n->n_blocks, HEAD_LOSS_ROWS, err);
    if (!status) status = open_arrays(a, n, err);
    if (!status) return a;
    acts_close(a);
    return NULL;
}

/* ---- states ------------------------------------------------------------------------------------- */

/* Row `row` of the step, in sum, state or dstate. */
static real *at_step(const RedrafterNet *n, const RedrafterActs *a, real *all, int32_t step, int32_t row) {
    return all + ((int64_t)step * a->max_length + row) * n->C;
}

/* Finds the positions from which some step leads to a position in the loss mask. */
static void find_starts(const RedrafterNet *n, RedrafterActs *a, const TrainSequence *seq) {
    a->n_starts = 0;
    for (int32_t t = 0, last = -1, p = 0; t < seq->T;
         t++) { /* last: the last position in the loss mask up to t + n_steps */
        for (; p < seq->T && p <= t + n->loss.n_steps; p++)
            if (seq->loss_mask[p]) last = p;
        a->row_of[t] = a->n_starts;
        if (last > t) a->starts[a->n_starts++] = t;
    }
}

/* Returns the number of starts whose step s still lies within the sequence; they come first. */
static int32_t rows_of_step(const RedrafterActs *a, const TrainSequence *seq, int32_t step) {
    int32_t n = a->n_starts;
    while (n > 0 && a->starts[n - 1] + step >= seq->T) n--;
    return n;
}

/* Returns the first step that is computed; the paper's s_1 is given. */
static int32_t first_step(const RedrafterNet *n) { return n->starts_at_embedding ? 2 : 1; }

static void states_forward(const RedrafterNet *n, real *const *w, RedrafterActs *a, const TrainSequence *seq) {
    int64_t C = n->C;
    embedding_forward(a->embd, seq->embd, seq->tokens, seq->T, C);
    linear_forward(a->pushed, a->embd, w[W_WEIGHT], NULL, seq->T, C, C);
    for (int32_t r = 0; n->starts_at_embedding && r < rows_of_step(a, seq, 1); r++)
        memcpy(at_step(n, a, a->state, 1, r), a->embd + (a->starts[r] + 1) * C, (size_t)C * sizeof(real));
    for (int32_t s = first_step(n); s <= n->loss.n_steps; s++) {
        int32_t rows = rows_of_step(a, seq, s);
        real *sum = at_step(n, a, a->sum, s, 0);
        linear_forward(sum, at_step(n, a, a->state, s - 1, 0), w[U_WEIGHT], w[U_BIAS], rows, C, C);
        for (int32_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < C; k++) sum[r * C + k] += a->pushed[(a->starts[r] + s) * C + k];
        silu_forward(at_step(n, a, a->state, s, 0), sum, rows * C);
    }
}

static void states_back(const RedrafterNet *n, real *const *w, real *const *dw, RedrafterActs *a,
                        const TrainSequence *seq) {
    int64_t C = n->C;
    real *dsum = a->scratch;
    memset(a->dpushed, 0, (size_t)(seq->T * C) * sizeof *a->dpushed);
    for (int32_t s = n->loss.n_steps; s >= first_step(n); s--) {
        int32_t rows = rows_of_step(a, seq, s);
        memset(dsum, 0, (size_t)(rows * C) * sizeof *dsum);
        silu_backward(dsum, at_step(n, a, a->dstate, s, 0), at_step(n, a, a->sum, s, 0), rows * C);
        linear_backward(s > first_step(n) ? at_step(n, a, a->dstate, s - 1, 0) : NULL, dw[U_WEIGHT], dw[U_BIAS], dsum,
                        at_step(n, a, a->state, s - 1, 0), w[U_WEIGHT], rows, C, C);
        for (int32_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < C; k++) a->dpushed[(a->starts[r] + s) * C + k] += dsum[r * C + k];
    }
    linear_backward(NULL, dw[W_WEIGHT], NULL, a->dpushed, a->embd, w[W_WEIGHT], seq->T, C, C);
}

/* ---- the head ----------------------------------------------------------------------------------- */

/* Step s at the current positions. The first half of the derivative with respect to [s_s, h_t] goes to the states. */
static void learn_step(const RedrafterNet *n, real *const *w, real *const *dw, RedrafterActs *a,
                       const TrainSequence *seq, int32_t step, double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    ResidualChain *c = &a->chain;
    int64_t C = n->C;
    int32_t skipped = head_loss_skipped(h, step), output = output_of(n);
    memset(c->x, 0, (size_t)(skipped * 2 * C) * sizeof *c->x);
    for (int32_t k = skipped; k < h->n; k++) {
        int32_t t = h->positions[k] - step;
        memcpy(c->x + k * 2 * C, at_step(n, a, a->state, step, a->row_of[t]), (size_t)C * sizeof *c->x);
        memcpy(c->x + k * 2 * C + C, seq->hidden + t * C, (size_t)C * sizeof *c->x);
    }
    residual_chain_forward(c, w + N_RECURRENT, h->n);
    if (dw) memset(c->dx, 0, (size_t)(h->n * 2 * C) * sizeof *c->dx);
    head_loss_rows(h, seq, step, residual_chain_out(c), 2 * C, w[output], a->info.info, dw ? c->dx : NULL,
                   dw ? dw[output] : NULL, dw ? a->info.dinfo : NULL, weight, sums);
    if (!dw) return;
    residual_chain_back(c, w + N_RECURRENT, dw + N_RECURRENT, h->n, true);
    for (int32_t k = skipped; k < h->n; k++) {
        real *dstate = at_step(n, a, a->dstate, step, a->row_of[h->positions[k] - step]);
        for (int64_t i = 0; i < C; i++) dstate[i] += c->dx[k * 2 * C + i];
    }
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const RedrafterNet *n = net;
    RedrafterActs *a = acts;
    find_starts(n, a, seq);
    states_forward(n, w, a, seq);
    if (dw)
        memset(a->dstate, 0, (size_t)(n->loss.n_steps + 1) * (size_t)a->max_length * (size_t)n->C * sizeof *a->dstate);
    int32_t info = output_of(n) + 1;
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);) {
        info_forward(&a->info, &n->info, w + info, &a->loss, seq);
        for (int32_t s = 1; s <= n->loss.n_steps; s++) learn_step(n, w, dw, a, seq, s, weight, sums);
        if (dw) info_backward(&a->info, &n->info, w + info, dw + info);
    }
    if (dw) states_back(n, w, dw, a, seq);
}

const NetClass redrafter_net_class = {"redrafter", n_tensors, tensor, acts_open,  acts_close, learn,
                                      set_keys,    NULL,      NULL,   LAYOUT_OWN, NULL};

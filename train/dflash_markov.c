/* dflash_markov.c - the heads of DSpark in training (src/draft/learned/markov_head.c has the idea and the formulas).
 * The Markov head adds a bias to the logits of a position, which depends on the token a before it:
 *
 *     vanilla      u = w1(a)
 *     gated        g = sigmoid(G [h ; w1(a)] + b),          u = g * w1(a)
 *     recurrent    [x ; y ; o] = J [s ; w1(a) ; h] + b,     u = tanh(o)
 *                  g = sigmoid(x), c = tanh(y),             s' = g s + (1 - g) c      s = 0 at the first prediction
 *     logits       W h + W2 u                               h: the slot after the final norm, W: the LM head
 *
 * where a is the true token before the position, as published trainings have it (DeepSpec). So u of all positions is
 * computed before the loss, the recurrence from the first step of a block to the last one, and backward:
 *
 *     du = W2^T dlogits
 *     gated        dg_raw = du * w1(a) * g (1 - g),         dw1 += du * g
 *     recurrent    dx = ds' * (s - c) * g (1 - g),          dy = ds' * (1 - g) (1 - c^2),     do = du * (1 - u^2)
 *                  ds = ds' * g                             and all three through G or J to its inputs
 *
 * The confidence head estimates the probability that a token drawn from q, the drafter's distribution, is accepted:
 *
 *     z = w [h ; w1(a)] + b,      y = sum over v of min(p_v, q_v)
 *     loss = log(1 + exp(z)) - y z,      dloss / dz = sigmoid(z) - y
 *
 * without w1(a) in a narrow head, which is also one without a Markov head. y is a number in this loss, as in DeepSpec.
 * There the gradient flows on into h and w1. Here it does not, as with the confidence head of lyanna: the drafter
 * learns to predict tokens, not to be predictable.
 *
 * Initial values: W2 is zeros, so a drafter to which a Markov head is added begins with what it predicted before. The
 * confidence head begins with 1/2.
 *
 * Rows are those of the slots (dflash_net.c); slots that predict nothing are left out. Test: test_train_drafters.c by
 * finite differences in double, test_train_dflash.c against the drafter. */
#include "base/math_functions.h"
#include "draft/learned/learned_files.h"
#include "train/dflash_net.h"

#include <stdio.h>
#include <string.h>

enum { MARKOV_BEFORE, MARKOV_OUTPUT, MARKOV_GATE, MARKOV_GATE_BIAS };

static bool is_recurrent(const DflashNet *n) { return n->markov == MARKOV_RECURRENT; }

/* What the gate or the recurrence reads: the state of r numbers, which only the latter has, then the vector of the
 * token before and the hidden state; a gate reads the hidden state first. And how many numbers it gives. */
static int64_t n_inputs(const DflashNet *n) { return n->C + (is_recurrent(n) ? 2 : 1) * (int64_t)n->markov_rank; }
static int64_t vector_at(const DflashNet *n) { return is_recurrent(n) ? n->markov_rank : n->C; }
static int64_t hidden_at(const DflashNet *n) { return is_recurrent(n) ? 2 * (int64_t)n->markov_rank : 0; }
static int64_t n_outputs(const DflashNet *n) { return (is_recurrent(n) ? 3 : 1) * (int64_t)n->markov_rank; }
static bool has_gate(const DflashNet *n) { return n->markov == MARKOV_GATED || is_recurrent(n); }

/* ---- tensors ------------------------------------------------------------------------------------ */

/* Tensors of the Markov head; those of the confidence head follow. */
static int32_t n_of_head(const DflashNet *n) {
    return n->markov == MARKOV_NONE ? 0 : has_gate(n) ? MARKOV_GATE_BIAS + 1 : MARKOV_OUTPUT + 1;
}

int32_t dflash_markov_n_tensors(const DflashNet *n) {
    return n_of_head(n) + (n->has_confidence ? CONFIDENCE_TENSORS : 0);
}

/* How many numbers of the vector of the token before the confidence head reads. */
static int64_t n_confidence_vector(const DflashNet *n) {
    return n->confidence_is_narrow || n->markov == MARKOV_NONE ? 0 : n->markov_rank;
}

/* The weights of the confidence head are a matrix of one row, unless the file that training goes on from has a
 * vector. */
static NetTensor confidence_tensor(const DflashNet *n, int32_t i) {
    NetTensor t = {.n = 1, .start = NET_ZEROS, .is_addition = true};
    if (i == CONFIDENCE_WEIGHTS) t.n_rows = !n->confidence_is_vector, t.n = n->C + n_confidence_vector(n);
    snprintf(t.name, sizeof t.name, DFLASH_CONFIDENCE "%s", i == CONFIDENCE_WEIGHTS ? ".weight" : ".bias");
    return t;
}

NetTensor dflash_markov_tensor(const DflashNet *n, int32_t i) {
    int64_t r = n->markov_rank;
    const char *gate = is_recurrent(n) ? DFLASH_MARKOV_JOINT : DFLASH_MARKOV_GATE;
    NetTensor t = {.n_rows = n->V, .n = r, .start = NET_ZEROS, .is_addition = n->adds_markov};
    if (i >= n_of_head(n)) return confidence_tensor(n, i - n_of_head(n));
    if (i == MARKOV_BEFORE) t.start = NET_NORMAL, t.std = 1 / sqrt((double)r);
    if (i == MARKOV_OUTPUT) t.n_rows = dflash_n_own(n);
    if (i == MARKOV_GATE) t.n_rows = n_outputs(n), t.n = n_inputs(n), t.start = NET_NORMAL, t.std = 0.02;
    if (i == MARKOV_GATE_BIAS) t.n_rows = 0, t.n = n_outputs(n);
    if (i >= MARKOV_GATE) snprintf(t.name, sizeof t.name, "%s%s", gate, i == MARKOV_GATE ? ".weight" : ".bias");
    else snprintf(t.name, sizeof t.name, "%s", i == MARKOV_BEFORE ? DFLASH_MARKOV_BEFORE : DFLASH_MARKOV_OUTPUT);
    return t;
}

/* ---- activations -------------------------------------------------------------------------------- */

int dflash_markov_open(DflashMarkov *m, const DflashNet *n, int64_t T, fr_error *err) {
    int64_t N = n->n_anchors < T ? n->n_anchors : T, R = N * n->block, r = n->markov_rank, rows = HEAD_LOSS_ROWS;
    int64_t in = has_gate(n) ? n_inputs(n) : 0, out = has_gate(n) ? n_outputs(n) : 0;
    const ArenaItem items[] = {
        ARENA_ITEM(&m->tokens, R),
        ARENA_ITEM(&m->before, R * r),
        ARENA_ITEM(&m->in, R * in),
        ARENA_ITEM(&m->gates, R * out),
        ARENA_ITEM(&m->vector, R * r),
        ARENA_ITEM(&m->dvector, R * r),
        ARENA_ITEM(&m->dbefore, N * r),
        ARENA_ITEM(&m->din, N * in),
        ARENA_ITEM(&m->dgates, N * out),
        ARENA_ITEM(&m->dstate, N * r),
        ARENA_ITEM(&m->x, rows * r),
        ARENA_ITEM(&m->dx, rows * r),
        ARENA_ITEM(&m->bias, rows * dflash_n_own(n)),
    };
    const ArenaItem of_confidence[] = {ARENA_ITEM(&m->rejected, rows)};
    int status = FR_OK;
    *m = (DflashMarkov){0};
    if (n->markov) status = arena_take(&m->arena, items, ARENA_COUNT(items), "the Markov head of a drafter", err);
    if (status || !n->has_confidence) return status;
    return arena_take(&m->arena, of_confidence, 1, "the confidence head of a drafter", err);
}

void dflash_markov_close(DflashMarkov *m) { arena_free(&m->arena); }

static int32_t first_slot(const DflashNet *n) { return n->from_anchor ? 0 : 1; }

/* ---- the vectors of all positions ------------------------------------------------------------------- */

static real tanh_of(real x) { return (real)math_tanh((double)x); }

/* Sets the inputs of the gate or the recurrence of some rows, except for the state. */
static void set_inputs(const DflashNet *n, DflashMarkov *m, const real *hidden, int64_t from, int64_t to) {
    int64_t C = n->C, r = n->markov_rank;
    for (int64_t row = from; row < to; row++) {
        real *in = m->in + row * n_inputs(n);
        memcpy(in + hidden_at(n), hidden + row * C, (size_t)C * sizeof *in);
        memcpy(in + vector_at(n), m->before + row * r, (size_t)r * sizeof *in);
    }
}

static void apply_gate(const DflashNet *n, DflashMarkov *m, int64_t from, int64_t to) {
    for (int64_t i = from * n->markov_rank; i < to * n->markov_rank; i++) {
        m->gates[i] = real_sigmoid(m->gates[i]);
        m->vector[i] = m->gates[i] * m->before[i];
    }
}

/* Also sets the state of the row after, if there is one: next is its input, or NULL. */
static void apply_recurrence(const DflashNet *n, DflashMarkov *m, int64_t row, real *next) {
    int64_t r = n->markov_rank;
    const real *state = m->in + row * n_inputs(n);
    real *gate = m->gates + row * n_outputs(n), *candidate = gate + r, *out = candidate + r;
    for (int64_t i = 0; i < r; i++) {
        gate[i] = real_sigmoid(gate[i]);
        candidate[i] = tanh_of(candidate[i]);
        m->vector[row * r + i] = out[i] = tanh_of(out[i]);
        if (next) next[i] = gate[i] * state[i] + (1 - gate[i]) * candidate[i];
    }
}

void dflash_markov_forward(DflashMarkov *m, const DflashNet *n, real *const *w, const TrainSequence *seq,
                           const int32_t *anchors, int32_t n_anchors, const real *hidden) {
    int64_t r = n->markov_rank, N = n_anchors, first = first_slot(n);
    for (int64_t slot = first; slot < n->block; slot++) {
        int64_t from = slot * N, to = from + N;
        for (int64_t i = 0; i < N; i++) {
            int64_t at = anchors[i] + 1 + slot - first; /* beyond the sequence nothing is predicted */
            m->tokens[from + i] = seq->tokens[at < seq->T ? at : seq->T];
        }
        embedding_forward(m->before + from * r, w[MARKOV_BEFORE], m->tokens + from, N, r);
        if (!has_gate(n)) {
            memcpy(m->vector + from * r, m->before + from * r, (size_t)(N * r) * sizeof *m->vector);
            continue;
        }
        set_inputs(n, m, hidden, from, to);
        for (int64_t i = from; is_recurrent(n) && slot == first && i < to; i++)
            memset(m->in + i * n_inputs(n), 0, (size_t)r * sizeof *m->in);
        linear_forward(m->gates + from * n_outputs(n), m->in + from * n_inputs(n), w[MARKOV_GATE], w[MARKOV_GATE_BIAS],
                       N, n_inputs(n), n_outputs(n));
        if (!is_recurrent(n)) apply_gate(n, m, from, to);
        for (int64_t i = from; is_recurrent(n) && i < to; i++)
            apply_recurrence(n, m, i, slot + 1 < n->block ? m->in + (i + N) * n_inputs(n) : NULL);
    }
    memset(m->dvector + first * N * r, 0, (size_t)((n->block - first) * N * r) * sizeof *m->dvector);
}

/* Sets m->dgates of N rows, and m->dbefore to what does not flow through the gate. */
static void gate_back(const DflashNet *n, DflashMarkov *m, int64_t from, int64_t N) {
    int64_t at = from * n->markov_rank;
    for (int64_t i = 0; i < N * n->markov_rank; i++) {
        real g = m->gates[at + i], du = m->dvector[at + i];
        m->dgates[i] = du * m->before[at + i] * g * (1 - g);
        m->dbefore[i] = du * g;
    }
}

/* Sets m->dgates of N rows, and multiplies m->dstate, the derivative with respect to the states after them, by the
 * gate. */
static void recurrence_back(const DflashNet *n, DflashMarkov *m, int64_t from, int64_t N) {
    int64_t r = n->markov_rank;
    for (int64_t k = 0; k < N; k++) {
        const real *state = m->in + (from + k) * n_inputs(n), *gate = m->gates + (from + k) * n_outputs(n);
        const real *candidate = gate + r, *out = candidate + r, *du = m->dvector + (from + k) * r;
        real *d = m->dgates + k * n_outputs(n), *dstate = m->dstate + k * r;
        for (int64_t i = 0; i < r; i++) {
            d[i] = dstate[i] * (state[i] - candidate[i]) * gate[i] * (1 - gate[i]);
            d[r + i] = dstate[i] * (1 - gate[i]) * (1 - candidate[i] * candidate[i]);
            d[2 * r + i] = du[i] * (1 - out[i] * out[i]);
            dstate[i] *= gate[i];
        }
    }
    memset(m->dbefore, 0, (size_t)(N * r) * sizeof *m->dbefore);
}

/* Passes m->dgates of N rows on to the weights and the inputs. */
static void inputs_back(const DflashNet *n, DflashMarkov *m, real *const *w, real *const *dw, int64_t from, int64_t N,
                        real *dhidden) {
    int64_t C = n->C, r = n->markov_rank;
    memset(m->din, 0, (size_t)(N * n_inputs(n)) * sizeof *m->din);
    linear_backward(m->din, dw[MARKOV_GATE], dw[MARKOV_GATE_BIAS], m->dgates, m->in + from * n_inputs(n),
                    w[MARKOV_GATE], N, n_inputs(n), n_outputs(n));
    for (int64_t k = 0; k < N; k++) {
        const real *din = m->din + k * n_inputs(n);
        for (int64_t i = 0; i < C; i++) dhidden[(from + k) * C + i] += din[hidden_at(n) + i];
        for (int64_t i = 0; i < r; i++) m->dbefore[k * r + i] += din[vector_at(n) + i];
        for (int64_t i = 0; is_recurrent(n) && i < r; i++) m->dstate[k * r + i] += din[i];
    }
}

void dflash_markov_backward(DflashMarkov *m, const DflashNet *n, real *const *w, real *const *dw, int32_t n_anchors,
                            real *dhidden) {
    int64_t r = n->markov_rank, N = n_anchors;
    memset(m->dstate, 0, (size_t)(N * r) * sizeof *m->dstate);
    for (int64_t slot = n->block - 1; slot >= first_slot(n); slot--) {
        int64_t from = slot * N;
        const real *dbefore = has_gate(n) ? m->dbefore : m->dvector + from * r;
        if (has_gate(n)) {
            (is_recurrent(n) ? recurrence_back : gate_back)(n, m, from, N);
            inputs_back(n, m, w, dw, from, N, dhidden);
        }
        embedding_backward(dw[MARKOV_BEFORE], dbefore, m->tokens + from, N, r);
    }
}

/* ---- the logits of some positions ------------------------------------------------------------------- */

const real *dflash_markov_bias(DflashMarkov *m, const DflashNet *n, real *const *w, const int64_t *at, int32_t count) {
    int64_t r = n->markov_rank;
    for (int32_t i = 0; i < count; i++) memcpy(m->x + i * r, m->vector + at[i] * r, (size_t)r * sizeof *m->x);
    linear_forward(m->bias, m->x, w[MARKOV_OUTPUT], NULL, count, r, dflash_n_own(n));
    return m->bias;
}

void dflash_markov_bias_back(DflashMarkov *m, const DflashNet *n, real *const *w, real *const *dw, const HeadLoss *h,
                             const int64_t *at) {
    int64_t r = n->markov_rank;
    memset(m->dx, 0, (size_t)(h->n * r) * sizeof *m->dx);
    linear_backward(m->dx, dw[MARKOV_OUTPUT], NULL, h->dlogits, m->x, w[MARKOV_OUTPUT], h->n, r, h->D);
    for (int32_t i = 0; i < h->n; i++) memcpy(m->dvector + at[i] * r, m->dx + i * r, (size_t)r * sizeof *m->dx);
}

/* ---- the confidence head -------------------------------------------------------------------------- */

void dflash_confidence_learn(DflashMarkov *m, const DflashNet *n, real *const *w, real *const *dw, const HeadLoss *h,
                             int32_t step, const real *x, const int64_t *at, double weight, TrainSums *sums) {
    int64_t C = n->C, r = n_confidence_vector(n);
    int32_t first = n_of_head(n);
    const real *weights = w[first + CONFIDENCE_WEIGHTS];
    double share = head_loss_share(h, step);
    total_variation_forward(m->rejected, h->logits, h->dist, h->n, h->D);
    for (int32_t i = 0; i < h->n; i++) {
        const real *hidden = x + i * C, *before = r ? m->before + at[i] * r : hidden; /* not read without r */
        double y = 1 - (double)m->rejected[i], dz;
        double z = (double)(real_dot(weights, hidden, C) + real_dot(weights + C, before, r) +
                            w[first + CONFIDENCE_OFFSET][0]);
        sums->loss += share * logistic_loss(z, y, &dz);
        if (!dw) continue;
        real d = (real)(weight * share * dz), *dweights = dw[first + CONFIDENCE_WEIGHTS];
        for (int64_t k = 0; k < C; k++) dweights[k] += d * hidden[k];
        for (int64_t k = 0; k < r; k++) dweights[C + k] += d * before[k];
        dw[first + CONFIDENCE_OFFSET][0] += d;
    }
}

/* dflash_net.c - the network of `dflash` as src/draft/learned/draft_dflash.c runs it. An anchor is a position t after
 * which a block of B slots begins: the pending token x_{t+1}, then B - 1 times the mask token m.
 *
 *     g_j = norm(fc [s_1 ; ... ; s_S])                     streams of the frozen target at position j
 *     k_j, v_j = rope(norm_k(Wk g_j)), Wv g_j              in each layer, for the context j = 0 .. t
 *     slots = E(x_{t+1}), E(m), E(m), ...                  at the positions t + 1, t + 2, ...
 *     slots += Wo attention(rope(norm_q(Wq n)), the context and all slots of the block),      n = norm(slots)
 *     slots += Wdown (silu(Wgate n) * (Wup n)),                                               n = norm(slots)
 *     distribution of x_{t+s+1} = softmax(W norm(slot))    the slot of step s; W is the target's head, or its own
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
 * Layers may have the form of Gemma 4's (OwnForm): what both parts add and values then have norms.
 *
 * DFlash 2 adds a convolution over the slots around both parts of each layer (dflash_conv.c) and a selector among the
 * best tokens of a position, with a loss of its own (dflash_selector.c). DSpark adds a bias to the logits that depends
 * on the token before, and an estimate of whether a token is accepted (dflash_markov.c).
 *
 * Initial values: fc passes the last stream through, each layer is the target's last one, and the norm before W is the
 * target's. Wo and Wdown are not zeros, as they are in other methods: the slots have nothing but a token's embedding
 * without the layers, and its norm would predict one token with confidence. An LM head of its own, which only files of
 * others have, with a vocabulary of its own or without, comes from the file.
 *
 * Test: test_train_drafters.c by finite differences in double, test_train_dflash.c against the drafter. */
#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/dflash_net.h"

#include <stdio.h>
#include <string.h>

/* Returns the slot that predicts at a step. */
static int32_t slot_of_step(const DflashNet *n, int32_t step) { return n->from_anchor ? step - 1 : step; }

/* ---- tensors ------------------------------------------------------------------------------------ */

/* Returns the number of the first tensor of the selector. */
static int32_t first_of_selector(const DflashNet *n) { return N_AROUND + n->n_layer * dflash_n_of_layer(n); }

/* Returns the number of the first tensor of DSpark's heads. */
static int32_t first_of_markov(const DflashNet *n) {
    return first_of_selector(n) + (n->selector_rank ? SELECTOR_TENSORS : 0);
}

/* Returns the number of the LM head, if the drafter has its own. */
static int32_t i_output(const DflashNet *n) { return first_of_markov(n) + dflash_markov_n_tensors(n); }

static int32_t n_tensors(const void *net) {
    const DflashNet *n = net;
    return i_output(n) + n->has_own_output;
}

static NetTensor tensor_around(const DflashNet *n, int32_t i) {
    NetTensor t = {.n = n->C, .start = NET_ONES};
    static const char *const names[] = {DFLASH_FC, DFLASH_CONTEXT_NORM, DFLASH_OUTPUT_NORM};
    if (i == AROUND_FC) t.n_rows = n->C, t.n = (int64_t)n->n_streams * n->C, t.start = NET_FUSE, t.std = 0.02;
    if (i == AROUND_OUTPUT_NORM) t.start = NET_COPY, t.suffix = DFLASH_OUTPUT_NORM;
    snprintf(t.name, sizeof t.name, "%s", names[i]);
    return t;
}

static NetTensor own_output(const DflashNet *n) {
    NetTensor t = {.n_rows = dflash_n_own(n), .n = n->C, .start = NET_HEAD, .tokens = n->own.tokens};
    snprintf(t.name, sizeof t.name, "%s", DFLASH_OUTPUT);
    return t;
}

static NetTensor tensor(const void *net, int32_t i) {
    const DflashNet *n = net;
    if (i < N_AROUND) return tensor_around(n, i);
    if (i == i_output(n)) return own_output(n);
    if (i >= first_of_markov(n)) return dflash_markov_tensor(n, i - first_of_markov(n));
    if (i >= first_of_selector(n)) return dflash_selector_tensor(n, i - first_of_selector(n));
    return dflash_tensor_of_layer(n, (i - N_AROUND) / dflash_n_of_layer(n), (i - N_AROUND) % dflash_n_of_layer(n));
}

/* ---- the file ----------------------------------------------------------------------------------- */

static void set_windows(const DflashNet *n, GgufWriter *w) {
    int32_t has_window[DFLASH_MAX_LAYERS];
    for (int32_t i = 0; i < n->n_layer; i++) has_window[i] = n->has_window[i];
    gguf_set_u32(w, DFLASH DFLASH_KEY_WINDOW, (uint32_t)n->window);
    gguf_set_i32s(w, DFLASH DFLASH_KEY_WINDOW_PATTERN, has_window, n->n_layer);
    gguf_set_bool(w, DFLASH DFLASH_KEY_CAUSAL_WINDOW, n->windows_are_causal);
}

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
                   {DFLASH DFLASH_KEY_BLOCK, n->block},
                   {DFLASH DFLASH_KEY_TARGET_WIDTH, n->C},
                   {DFLASH_VOCABULARY_MASK, n->mask}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        gguf_set_u32(w, numbers[i].key, (uint32_t)numbers[i].value);
    if (n->conv_taps) {
        gguf_set_u32(w, DFLASH DFLASH_KEY_CONV_TAPS, (uint32_t)n->conv_taps);
        gguf_set_u32(w, DFLASH DFLASH_KEY_CONV_GROUP, (uint32_t)n->conv_group);
    }
    if (n->selector_rank) {
        gguf_set_u32(w, DFLASH DFLASH_KEY_SELECTOR_RANK, (uint32_t)n->selector_rank);
        gguf_set_u32(w, DFLASH DFLASH_KEY_SELECTOR_TOP, (uint32_t)n->selector_top);
    }
    own_form_write(w, DFLASH, &n->form, n->n_layer);
    own_rope_write(w, DFLASH, &n->rope->params, DFLASH_ROPE_FACTORS, n->rope_factors);
    if (n->window) set_windows(n, w);
    gguf_set_f32(w, DFLASH "attention.layer_norm_rms_epsilon", n->rms_eps);
    gguf_set_f32(w, DFLASH DFLASH_KEY_EMBEDDING_SCALE, n->embedding_scale);
    gguf_set_i32s(w, DFLASH DFLASH_KEY_LAYERS, n->layers, n->n_streams);
    if (n->logit_scale > 0) gguf_set_f32(w, DFLASH DFLASH_KEY_LOGIT_SCALE, n->logit_scale);
    if (n->has_logit_cap) gguf_set_f32(w, DFLASH DFLASH_KEY_LOGIT_CAP, n->logit_cap);
    gguf_set_bool(w, DFLASH DFLASH_KEY_FROM_ANCHOR, n->from_anchor);
    gguf_set_bool(w, DFLASH DFLASH_KEY_CAUSAL, n->is_causal);
    own_vocabulary_write(w, &n->own, n->loss.n_own);
}

static bool keeps(const void *net, const char *name) {
    const DflashNet *n = net;
    return own_vocabulary_keeps(&n->own, name) || own_form_keeps(&n->form, n->n_layer, name) ||
           (n->rope_factors && strcmp(name, DFLASH_ROPE_FACTORS) == 0);
}

/* ---- activations -------------------------------------------------------------------------------- */

static void acts_close(void *acts) {
    DflashActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    dflash_selector_close(&a->selector);
    dflash_markov_close(&a->markov);
    arena_free(&a->arena);
    mem_free(a);
}

static void *acts_open(const void *net, int32_t max_length, fr_error *err) {
    const DflashNet *n = net;
    DflashActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a block's activations", sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->C, n->V, err);
    if (!status) status = dflash_selector_open(&a->selector, n, err);
    if (!status) status = dflash_markov_open(&a->markov, n, max_length, err);
    if (!status) status = dflash_layers_open(a, n, max_length, err);
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

/* Draws the anchors of a sequence. Returns the number of candidates. */
static int32_t choose_anchors(const DflashNet *n, DflashActs *a, const TrainSequence *seq) {
    int32_t n_candidates = 0;
    for (int32_t t = 0; t < seq->T; t++)
        if (is_candidate(n, seq, t)) a->anchors[n_candidates++] = t;
    a->n_anchors = anchors_draw(seq, a->anchors, n_candidates, n->n_anchors);
    return n_candidates;
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

/* Returns the matrix of the logits, and where its derivatives are added; NULL: it is frozen. */
static const real *head_of(const DflashNet *n, real *const *w, const TrainSequence *seq) {
    return n->has_own_output ? w[i_output(n)] : seq->head;
}
static real *dhead_of(const DflashNet *n, real *const *dw) { return n->has_own_output && dw ? dw[i_output(n)] : NULL; }

/* Computes the loss of the current positions of a->loss, whose slots are a->rows, with a selector. dx: their gradient;
 * NULL: none. */
static void learn_selection(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a,
                            const TrainSequence *seq, int32_t step, real *dx, double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    real *const *selector = w + first_of_selector(n), *const *dselector = dw ? dw + first_of_selector(n) : NULL;
    const real *head = head_of(n, w, seq);
    head_loss_logits(h, step, a->rows, n->C, head, NULL, sums);
    dflash_selector_forward(&a->selector, n, selector, h, seq, step, a->rows, sums);
    head_loss_tokens(h, seq, step, dx != NULL, weight, sums);
    dflash_selector_learn(&a->selector, n, selector, dselector, h, seq, step, a->rows, dx, weight, sums);
    if (dx) head_loss_back(h, step, a->rows, n->C, head, dx, dhead_of(n, dw), NULL);
}

/* The same with the heads of DSpark, or without any part of its own. at: the rows of the slots. */
static void learn_rows(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a, const TrainSequence *seq,
                       int32_t step, const int64_t *at, real *dx, double weight, TrainSums *sums) {
    HeadLoss *h = &a->loss;
    DflashMarkov *m = &a->markov;
    real *const *markov = w + first_of_markov(n), *const *dmarkov = dw ? dw + first_of_markov(n) : NULL;
    const real *bias = n->markov ? dflash_markov_bias(m, n, markov, at, h->n) : NULL;
    head_loss_rows(h, seq, step, a->rows, n->C, head_of(n, w, seq), bias, dx, dhead_of(n, dw), NULL, weight, sums);
    if (n->markov && dw) dflash_markov_bias_back(m, n, markov, dmarkov, h, at);
    if (n->has_confidence) dflash_confidence_learn(m, n, markov, dmarkov, h, step, a->rows, at, weight, sums);
}

/* Computes the loss of all predictions of a step, and unless dw is NULL a->dout. */
static void learn_predictions(const DflashNet *n, real *const *w, real *const *dw, DflashActs *a,
                              const TrainSequence *seq, int32_t step, double weight, TrainSums *sums) {
    int32_t positions[HEAD_LOSS_ROWS];
    int64_t at[HEAD_LOSS_ROWS];
    size_t row_bytes = (size_t)n->C * sizeof(real);
    for (int32_t from = 0, count; (count = next_predictions(n, a, seq, step, &from, positions, at)) > 0;) {
        head_loss_at(&a->loss, seq, positions, count);
        for (int32_t i = 0; i < count; i++) memcpy(a->rows + i * n->C, a->out + at[i] * n->C, row_bytes);
        memset(a->drows, 0, (size_t)count * row_bytes);
        real *dx = dw ? a->drows : NULL;
        if (n->selector_rank) learn_selection(n, w, dw, a, seq, step, dx, weight, sums);
        else learn_rows(n, w, dw, a, seq, step, at, dx, weight, sums);
        for (int32_t i = 0; dw && i < count; i++) memcpy(a->dout + at[i] * n->C, a->drows + i * n->C, row_bytes);
    }
}

static void learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq, double weight,
                  TrainSums *sums) {
    const DflashNet *n = net;
    DflashActs *a = acts;
    TrainSums drawn = {0};
    int32_t n_candidates = choose_anchors(n, a, seq);
    if (n_candidates == 0) return;
    double ratio = (double)n_candidates / a->n_anchors;
    dflash_layers_forward(n, w, a, seq);
    if (n->markov) dflash_markov_forward(&a->markov, n, w + first_of_markov(n), seq, a->anchors, a->n_anchors, a->out);
    if (dw) memset(a->dout, 0, (size_t)(a->n_anchors * n->block * n->C) * sizeof *a->dout);
    for (int32_t step = 1; step <= n->loss.n_steps; step++)
        learn_predictions(n, w, dw, a, seq, step, ratio * weight, &drawn);
    anchors_add_sums(&drawn, ratio, sums);
    for (int32_t p = 1; p < seq->T; p++) sums->n += seq->loss_mask[p];
    if (dw && n->markov)
        dflash_markov_backward(&a->markov, n, w + first_of_markov(n), dw + first_of_markov(n), a->n_anchors, a->dout);
    if (dw) dflash_layers_backward(n, w, dw, a, seq);
}

const NetClass dflash_net_class = {"dflash", n_tensors, tensor, acts_open,        acts_close, learn,
                                   set_keys, NULL,      NULL,   LAYOUT_PUBLISHED, keeps};

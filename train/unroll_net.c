/* unroll_net.c - the network of `eagle` and `lyanna`:
 *
 *     distribution of x_{t+s+1} = softmax(W_head f^s_t + info(x_{t+s}) + gate(f^s_t, x_{t+s}))
 *
 * with f from unroll_layer.c and, if their ranks are not 0, info and gate from token_info_net.c. The info at a position
 * is the same for all steps that predict there, so it is computed once, and its gradient is the sum over them. With
 * info_skips_first the first step has neither info nor gate.
 *
 * With layer.n_anchors the steps after the first are learned only at chains that are drawn anew whenever the sequence
 * is, each with the weight of those that it stands for. Most of what a step costs is products with the vocabulary, so
 * that a training of equal time has more steps. Test: test_train_drafters.c, with both networks. */
#include "base/math_functions.h"
#include "base/mem.h"
#include "draft/learned/learned_files.h"
#include "train/nets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Trains the confidence head beside its layer.
 *
 *     z = w f + b + (1 + a) m       loss = log(1 + exp(z)) - y z        dloss / dz = sigmoid(z) - y
 *
 * Here y is 1 where the drafter's best token at that step is the target's, given the true tokens before it, and m is
 * the logit of the drafter's own estimate (HeadLoss.margin). No gradient flows into f: the layer learns to predict
 * tokens, not to be predictable, and is the same with and without the head up to the clipping of the gradient's norm.
 *
 * Test: test_train_drafters.c. */

/* Returns 1, or 0 if there is no head. */
static int32_t confidence_head_n_tensors(const ConfidenceShape *s) { return s->exists; }

static NetTensor confidence_head_tensor(const ConfidenceShape *s) {
    NetTensor t = {.n = s->C + CONFIDENCE_SCALARS, .start = NET_ZEROS, .is_addition = true};
    snprintf(t.name, sizeof t.name, "%s." CONFIDENCE, s->method);
    return t;
}

/* Adds the loss of a step that head_loss_step has just finished, with the step's share: -log of the probability that
 * the head gives to what happened. f: [T][C] the step's rows by the position t they start from; w, dw: the tensor, dw
 * may be NULL. There is no gradient to f. */
static void confidence_head_learn(const ConfidenceShape *s, const HeadLoss *h, int32_t step, const real *f,
                                  const real *w, real *dw, double weight, TrainSums *sums) {
    double share = head_loss_share(h, step);
    const real *scalars = w + s->C;
    for (int32_t i = head_loss_skipped(h, step); i < h->n; i++) {
        const real *row = f + (h->positions[i] - step) * (int64_t)s->C;
        double z = (double)(real_dot(w, row, s->C) + scalars[CONFIDENCE_BIAS] +
                            (1 + scalars[CONFIDENCE_SLOPE]) * h->margin[i]),
               dz;
        sums->loss += share * logistic_loss(z, h->is_right[i], &dz);
        if (!dw) continue;
        real d = (real)(weight * share * dz);
        for (int32_t k = 0; k < s->C; k++) dw[k] += d * row[k];
        dw[s->C + CONFIDENCE_BIAS] += d;
        dw[s->C + CONFIDENCE_SLOPE] += d * h->margin[i];
    }
}

typedef struct UnrollNetActs {
    HeadLoss loss;
    UnrollActs layer;
    InfoActs info;
    GateActs gate;
} UnrollNetActs;

static int32_t unroll_net_n_tensors(const void *net) {
    const UnrollNet *n = net;
    return unroll_n_tensors(&n->layer) + info_n_tensors(&n->info) + gate_n_tensors(&n->gate) +
           confidence_head_n_tensors(&n->confidence);
}

static NetTensor unroll_net_tensor(const void *net, int32_t i) {
    const UnrollNet *n = net;
    int32_t of_layer = unroll_n_tensors(&n->layer), before_gate = of_layer + info_n_tensors(&n->info);
    if (i < of_layer) return unroll_tensor(&n->layer, i);
    if (i < before_gate) return info_tensor(&n->info, i - of_layer);
    return i < before_gate + gate_n_tensors(&n->gate) ? gate_tensor(&n->gate, i - before_gate)
                                                      : confidence_head_tensor(&n->confidence);
}

/* Sets the width of the feed-forward, and the keys of token info. */
static void unroll_net_set_keys(const void *net, GgufWriter *w) {
    const UnrollNet *n = net;
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s." LAYER_KEY_FEED_FORWARD), n->layer.method);
    gguf_set_u32(w, key, (uint32_t)n->layer.n_ff);
    info_set_keys(&n->info, w);
    gate_set_keys(&n->gate, w);
}

static void unroll_net_acts_close(void *acts) {
    UnrollNetActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    unroll_close(&a->layer);
    info_close(&a->info);
    gate_close(&a->gate);
    mem_free(a);
}

static void *unroll_net_acts_open(const void *net, int32_t max_length, fr_error *err) {
    const UnrollNet *n = net;
    UnrollNetActs *a = mem_calloc(1, sizeof *a);
    if (!a) {
        error_memory(err, "a layer's activations", sizeof *a);
        return NULL;
    }
    int status = head_loss_open(&a->loss, &n->loss, n->layer.C, n->info.V, err);
    if (!status) status = unroll_open(&a->layer, &n->layer, max_length, err);
    if (!status) status = info_open(&a->info, &n->info, err);
    if (!status) status = gate_open(&a->gate, &n->gate, err);
    if (!status) return a;
    unroll_net_acts_close(a);
    return NULL;
}

/* Computes the loss of the steps `first` to `last`, counted from 0, at the current positions. */
static void learn_positions(const UnrollNet *n, real *const *w, real *const *dw, UnrollNetActs *a,
                            const TrainSequence *seq, int32_t first, int32_t last_step, double weight,
                            TrainSums *sums) {
    bool wants_info = last_step > 0 || !n->info_skips_first;
    int32_t of_layer = unroll_n_tensors(&n->layer), before_gate = of_layer + info_n_tensors(&n->info);
    int32_t last = unroll_net_n_tensors(n) - 1;
    real *const *gate_w = w + before_gate, *const *gate_dw = dw ? dw + before_gate : NULL;
    if (wants_info) info_forward(&a->info, &n->info, w + of_layer, &a->loss, seq);
    if (wants_info) gate_forward_tokens(&a->gate, &n->gate, gate_w, &a->loss, seq);
    for (int32_t i = first; i <= last_step; i++) {
        UnrollStep *step = &a->layer.steps[i];
        bool has_info = i > 0 || !n->info_skips_first, has_gate = n->gate.rank > 0 && has_info;
        real *info = has_info ? a->info.info : NULL, *dinfo = has_info ? a->info.dinfo : NULL;
        if (has_gate) {
            gate_forward_step(&a->gate, &n->gate, gate_w, &a->loss, i + 1, step->f, info);
            info = a->gate.info, dinfo = a->gate.dinfo;
        }
        head_loss_step(&a->loss, seq, i + 1, step->f, seq->head, info, dw ? step->df : NULL, NULL, dw ? dinfo : NULL,
                       weight, sums);
        if (n->confidence.exists)
            confidence_head_learn(&n->confidence, &a->loss, i + 1, step->f, w[last], dw ? dw[last] : NULL, weight,
                                  sums);
        if (dw && has_gate)
            gate_backward_step(&a->gate, &n->gate, gate_w, gate_dw, &a->loss, i + 1, step->df, a->info.dinfo);
    }
    if (!dw || !wants_info) return;
    info_backward(&a->info, &n->info, w + of_layer, dw + of_layer);
    gate_backward_tokens(&a->gate, &n->gate, gate_dw, &a->loss);
}

/* Computes the loss of the steps after the first at the drawn chains, as an estimate of that at all positions. */
static void learn_drawn(const UnrollNet *n, real *const *w, real *const *dw, UnrollNetActs *a, const TrainSequence *seq,
                        double weight, TrainSums *sums) {
    const UnrollActs *layer = &a->layer;
    TrainSums drawn = {0};
    if (layer->n_chains == 0) return;
    double ratio = (double)layer->n_candidates / layer->n_chains;
    for (int32_t i = 1; i < n->layer.n_steps; i++)
        for (int32_t from = 0; head_loss_next_drawn(&a->loss, seq, layer->chains, layer->n_chains, i + 1, &from);)
            learn_positions(n, w, dw, a, seq, i, i, ratio * weight, &drawn);
    anchors_add_sums(&drawn, ratio, sums);
}

static void unroll_net_learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq,
                             double weight, TrainSums *sums) {
    const UnrollNet *n = net;
    UnrollNetActs *a = acts;
    unroll_forward(&n->layer, w, &a->layer, seq);
    if (dw) unroll_zero(&n->layer, &a->layer, seq);
    int32_t last = n->layer.n_anchors ? 0 : n->layer.n_steps - 1;
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);)
        learn_positions(n, w, dw, a, seq, 0, last, weight, sums);
    if (n->layer.n_anchors) learn_drawn(n, w, dw, a, seq, weight, sums);
    if (dw) unroll_backward(&n->layer, w, dw, &a->layer);
}

/* EAGLE's layer as src/draft/learned/draft_eagle.c runs it, trained as in EAGLE (arXiv 2401.15077,
 * section 4.2) and, with more than one step, on its own predictions.
 *
 *     f^1_t = layer(fc [E(x_{t+1}) ; h_t])        f^s_t = layer(fc [E(x_{t+s}) ; f^{s-1}_t])
 *     loss of a step = token_weight * KL(target's distribution || softmax(W_head f)) + hidden_weight * SmoothL1(f, h)
 *
 * With one step this is EAGLE as published: the layer only reads the target's own states, and uniform noise on them
 * (TrainSequence.noise) makes it robust. More steps are the addition of HASS: the layer continues from its own f and
 * the true token, as it does when it drafts. With a rank, its logits have token info as Lyanna's have
 * (token_info_net.c), which EAGLE does not have. unroll_net.c has the network, and names the tests. */

const NetClass eagle_net_class = {"eagle",
                                  unroll_net_n_tensors,
                                  unroll_net_tensor,
                                  unroll_net_acts_open,
                                  unroll_net_acts_close,
                                  unroll_net_learn,
                                  unroll_net_set_keys,
                                  NULL,
                                  NULL,
                                  LAYOUT_OWN,
                                  NULL};

/* Lyanna's drafter (sections 4 and 5 of the paper; src/draft/learned/draft_lyanna.c runs it).
 *
 *     f^1_t = layer(fc [E(x_{t+1}) ; h_t])        f^s_t = layer(f^{s-1}_t)
 *     distribution of x_{t+s+1} = softmax(W_head f^s_t + info(x_{t+s}))
 *     loss of a step = token_weight * KL(target's distribution || that) + hidden_weight * SmoothL1(f, h)
 *
 * No token is fed back: the chain of hidden states is the same whatever tokens are sampled from it. So all its logits
 * are one matrix product, and after a rejection the rest of the chain can be sampled from again. The influence of a
 * token on the next one is added to the logits, as token info and, with a gate, as a bias that depends on the state as
 * well (both in token_info_net.c). Two ablations: rank 0 has no token info, and first_token "none" computes the first
 * input from nothing but h_t.
 *
 * These formulas are those of the paper. In the separate form the later steps have a layer of their own
 * (layer.n_ff_later), and there is no info at step 1, whose input has the token already:
 *
 *     f^s_t = later(fc' [E(x_{t+1}) ; f^{s-1}_t])      with later_fuses; else later(f^{s-1}_t)
 *
 * A parallel chain (layer.is_parallel) does not feed states back either: the input of step s is the first step's plus a
 * learned vector of s, so the drafter computes all states in one forward.
 *
 * The layer is in unroll_layer.c. */

static void set_later_keys(const UnrollNet *n, GgufWriter *w) {
    const char *input = n->layer.later_fuses ? "token" : "state";
    if (n->info_skips_first) gguf_set_u32(w, DRAFTER_KEY(LYANNA_KEY_INFO_STEP), 2);
    if (n->layer.n_ff_later == 0) return;
    gguf_set_u32(w, DRAFTER_KEY(LYANNA LAYER_LATER LAYER_KEY_FEED_FORWARD), (uint32_t)n->layer.n_ff_later);
    gguf_set_string(w, DRAFTER_KEY(LYANNA_KEY_LATER_INPUT), input, strlen(input));
}

static void set_keys(const void *net, GgufWriter *w) {
    const UnrollShape *layer = &((const UnrollNet *)net)->layer;
    const char *first = layer->fuses_token ? "fused" : "none";
    unroll_net_set_keys(net, w);
    gguf_set_string(w, DRAFTER_KEY(LYANNA_KEY_FIRST_TOKEN), first, strlen(first));
    set_later_keys(net, w);
    if (!layer->has_attn_norm) gguf_set_string(w, DRAFTER_KEY(LYANNA_KEY_ATTN_NORM), "none", strlen("none"));
    if (layer->is_parallel) {
        gguf_set_string(w, DRAFTER_KEY(LYANNA_KEY_CHAIN), "parallel", strlen("parallel"));
        gguf_set_u32(w, DRAFTER_KEY(LYANNA_KEY_CHAIN_INPUTS),
                     (uint32_t)unroll_tensor(layer, UNROLL_CHAIN_INPUTS).n_rows);
    }
}

const NetClass lyanna_net_class = {"lyanna",
                                   unroll_net_n_tensors,
                                   unroll_net_tensor,
                                   unroll_net_acts_open,
                                   unroll_net_acts_close,
                                   unroll_net_learn,
                                   set_keys,
                                   NULL,
                                   "eagle",
                                   LAYOUT_OWN,
                                   NULL};

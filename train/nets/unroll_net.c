/* unroll_net.c - the network of `eagle` and `lyanna`:
 *
 *     distribution of x_{t+s+1} = softmax(W_head f^s_t + info(x_{t+s}) + gate(f^s_t, x_{t+s}))
 *
 * with f from unroll_layer.c and, if their ranks are not 0, info from info_factors.c and gate from info_gate.c. The info at a position is the same
 * for all steps that predict there, so it is computed once, and its gradient is the sum over them. Test:
 * test_train_drafters.c, with both networks. */
#include "train/nets/unroll_net.h"

#include "base/mem.h"
#include "draft/learned/layer_names.h"

#include <stdio.h>

typedef struct UnrollNetActs {
    HeadLoss loss;
    UnrollActs layer;
    InfoActs info;
    GateActs gate;
} UnrollNetActs;

int32_t unroll_net_n_tensors(const void *net) {
    const UnrollNet *n = net;
    return unroll_n_tensors(&n->layer) + info_n_tensors(&n->info) + gate_n_tensors(&n->gate) +
           confidence_head_n_tensors(&n->confidence);
}

NetTensor unroll_net_tensor(const void *net, int32_t i) {
    const UnrollNet *n = net;
    int32_t of_layer = unroll_n_tensors(&n->layer), before_gate = of_layer + info_n_tensors(&n->info);
    if (i < of_layer) return unroll_tensor(&n->layer, i);
    if (i < before_gate) return info_tensor(&n->info, i - of_layer);
    return i < before_gate + gate_n_tensors(&n->gate) ? gate_tensor(&n->gate, i - before_gate)
                                                      : confidence_head_tensor(&n->confidence);
}

void unroll_net_set_keys(const void *net, GgufWriter *w) {
    const UnrollNet *n = net;
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s." LAYER_KEY_FEED_FORWARD), n->layer.method);
    gguf_set_u32(w, key, (uint32_t)n->layer.n_ff);
    info_set_keys(&n->info, w);
    gate_set_keys(&n->gate, w);
}

void unroll_net_acts_close(void *acts) {
    UnrollNetActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    unroll_close(&a->layer);
    info_close(&a->info);
    gate_close(&a->gate);
    mem_free(a);
}

void *unroll_net_acts_open(const void *net, int32_t max_length, fr_error *err) {
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

/* The loss of all steps at the current positions. */
static void learn_positions(const UnrollNet *n, real *const *w, real *const *dw, UnrollNetActs *a,
                            const TrainSequence *seq, double weight, TrainSums *sums) {
    int32_t of_layer = unroll_n_tensors(&n->layer), before_gate = of_layer + info_n_tensors(&n->info);
    int32_t last = unroll_net_n_tensors(n) - 1;
    bool has_gate = n->gate.rank > 0;
    real *const *gate_w = w + before_gate, *const *gate_dw = dw ? dw + before_gate : NULL;
    info_forward(&a->info, &n->info, w + of_layer, &a->loss, seq);
    gate_forward_tokens(&a->gate, &n->gate, gate_w, &a->loss, seq);
    for (int32_t i = 0; i < n->layer.n_steps; i++) {
        UnrollStep *step = &a->layer.steps[i];
        gate_forward_step(&a->gate, &n->gate, gate_w, &a->loss, i + 1, step->f, a->info.info);
        real *info = has_gate ? a->gate.info : a->info.info, *dinfo = has_gate ? a->gate.dinfo : a->info.dinfo;
        head_loss_step(&a->loss, seq, i + 1, step->f, seq->head, info, dw ? step->df : NULL, NULL, dw ? dinfo : NULL,
                       weight, sums);
        if (n->confidence.exists)
            confidence_head_learn(&n->confidence, &a->loss, i + 1, step->f, w[last], dw ? dw[last] : NULL, weight,
                                  sums);
        if (dw) gate_backward_step(&a->gate, &n->gate, gate_w, gate_dw, &a->loss, i + 1, step->df, a->info.dinfo);
    }
    if (!dw) return;
    info_backward(&a->info, &n->info, w + of_layer, dw + of_layer);
    gate_backward_tokens(&a->gate, &n->gate, gate_dw, &a->loss);
}

void unroll_net_learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq,
                      double weight, TrainSums *sums) {
    const UnrollNet *n = net;
    UnrollNetActs *a = acts;
    unroll_forward(&n->layer, w, &a->layer, seq);
    if (dw) unroll_zero(&n->layer, &a->layer, seq);
    for (int32_t from = 1; head_loss_next(&a->loss, seq, &from);) learn_positions(n, w, dw, a, seq, weight, sums);
    if (dw) unroll_backward(&n->layer, w, dw, &a->layer);
}

/* unroll_net.c - the network of `eagle` and `lyanna`:
 *
 *     distribution of x_{t+s+1} = softmax(W_head f^s_t + info(x_{t+s}))
 *
 * with f from unroll_layer.c and, if the rank is not 0, info from info_factors.c. The info at a position is the same
 * for all steps that predict there, so it is computed once, and its gradient is the sum over them. Test:
 * test_train_drafters.c, with both networks. */
#include "train/nets/unroll_net.h"

#include "base/mem.h"
#include "spec/drafters/learned/layer_names.h"

#include <stdio.h>

typedef struct UnrollNetActs {
    HeadLoss loss;
    UnrollActs layer;
    InfoActs info;
} UnrollNetActs;

int32_t unroll_net_n_tensors(const void *net) {
    const UnrollNet *n = net;
    return unroll_n_tensors(&n->layer) + info_n_tensors(&n->info);
}

NetTensor unroll_net_tensor(const void *net, int32_t i) {
    const UnrollNet *n = net;
    int32_t of_layer = unroll_n_tensors(&n->layer);
    return i < of_layer ? unroll_tensor(&n->layer, i) : info_tensor(&n->info, i - of_layer);
}

void unroll_net_set_keys(const void *net, GgufWriter *w) {
    const UnrollNet *n = net;
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s." LAYER_KEY_FEED_FORWARD), n->layer.method);
    gguf_set_u32(w, key, (uint32_t)n->layer.n_ff);
    info_set_keys(&n->info, w);
}

void unroll_net_acts_close(void *acts) {
    UnrollNetActs *a = acts;
    if (!a) return;
    head_loss_close(&a->loss);
    unroll_close(&a->layer);
    info_close(&a->info);
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
    if (!status) return a;
    unroll_net_acts_close(a);
    return NULL;
}

/* The loss of all steps at the current positions. */
static void learn_positions(const UnrollNet *n, real *const *w, real *const *dw, UnrollNetActs *a,
                            const TrainSequence *seq, double weight, TrainSums *sums) {
    int32_t of_layer = unroll_n_tensors(&n->layer);
    info_forward(&a->info, &n->info, w + of_layer, &a->loss, seq);
    for (int32_t i = 0; i < n->layer.n_steps; i++) {
        UnrollStep *step = &a->layer.steps[i];
        head_loss_step(&a->loss, seq, i + 1, step->f, seq->head, a->info.info, dw ? step->df : NULL, NULL,
                       dw ? a->info.dinfo : NULL, weight, sums);
    }
    if (dw) info_backward(&a->info, &n->info, w + of_layer, dw + of_layer);
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

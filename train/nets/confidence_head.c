/* confidence_head.c - trains the confidence head beside its layer.
 *
 *     z = w f + b + (1 + a) m       loss = log(1 + exp(z)) - y z        dloss / dz = sigmoid(z) - y
 *
 * with y whether the drafter's best token at that step is the target's, given the true tokens before it, and m the logit
 * of the drafter's own estimate (HeadLoss.margin). No gradient flows into f: the layer learns to predict tokens, not to be
 * predictable, and is the same with and without the head up to the clipping of the gradient's norm.
 *
 * Test: test_train_drafters.c. */
#include "train/nets/confidence_head.h"

#include "draft/learned/confidence.h"

#include <math.h>
#include <stdio.h>

int32_t confidence_head_n_tensors(const ConfidenceShape *s) { return s->exists; }

NetTensor confidence_head_tensor(const ConfidenceShape *s) {
    NetTensor t = {.n = s->C + CONFIDENCE_SCALARS, .start = NET_ZEROS, .is_addition = true};
    snprintf(t.name, sizeof t.name, "%s." CONFIDENCE, s->method);
    return t;
}

void confidence_head_learn(const ConfidenceShape *s, const HeadLoss *h, int32_t step, const real *f, const real *w,
                           real *dw, double weight, TrainSums *sums) {
    double share = head_loss_share(h, step);
    const real *scalars = w + s->C;
    for (int32_t i = head_loss_skipped(h, step); i < h->n; i++) {
        const real *row = f + (h->positions[i] - step) * (int64_t)s->C;
        double z = (double)(real_dot(w, row, s->C) + scalars[CONFIDENCE_BIAS] +
                            (1 + scalars[CONFIDENCE_SLOPE]) * h->margin[i]);
        double loss = (z > 0 ? z : 0) + log1p(exp(-fabs(z))) - (h->is_right[i] ? z : 0);
        sums->loss += share * loss;
        if (!dw) continue;
        real dz = (real)(weight * share * (1 / (1 + exp(-z)) - h->is_right[i]));
        for (int32_t k = 0; k < s->C; k++) dw[k] += dz * row[k];
        dw[s->C + CONFIDENCE_BIAS] += dz;
        dw[s->C + CONFIDENCE_SLOPE] += dz * h->margin[i];
    }
}

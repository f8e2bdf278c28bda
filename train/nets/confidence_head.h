/* confidence_head.h - the head of spec/drafters/learned/confidence.h in training. */
#ifndef NETS_CONFIDENCE_HEAD_H
#define NETS_CONFIDENCE_HEAD_H

#include "train/nets/head_loss.h"

typedef struct ConfidenceShape {
    const char *method; /* the name of the tensor begins with it */
    int32_t C;
    bool exists;
} ConfidenceShape;

int32_t confidence_head_n_tensors(const ConfidenceShape *s); /* 1, or 0 without a head */
NetTensor confidence_head_tensor(const ConfidenceShape *s);

/* Adds the loss of a step that head_loss_step has just finished, with the step's share: -log of the chance that the head
 * gives to what happened. f: [T][C] the step's rows by the position t they start from; w, dw: the tensor, dw may be
 * NULL. There is no gradient to f. */
void confidence_head_learn(const ConfidenceShape *s, const HeadLoss *h, int32_t step, const real *f, const real *w,
                           real *dw, double weight, TrainSums *sums);

#endif

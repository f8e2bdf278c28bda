/* op_softmax_loss.h - losses of logits against a token or a distribution over the vocabulary, and their derivatives. */
#ifndef OPS_OP_SOFTMAX_LOSS_H
#define OPS_OP_SOFTMAX_LOSS_H

#include "train/ops/real.h"

/* In all of these: logits, probs, dlogits, dist: [n_rows][n]. probs is written (it may be the array of logits) and is
 * read by the backward pass. loss: [n_rows]. dloss: [n_rows], the derivative with respect to each row's loss: 0 for a
 * row outside the loss mask. */

/* loss = -log softmax(logits)[target]; targets: [n_rows] */
void cross_entropy_forward(real *loss, real *probs, const real *logits, const int32_t *targets, int64_t n_rows,
                           int64_t n);
void cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const int32_t *targets, int64_t n_rows,
                            int64_t n);

/* loss = -sum_i dist_i log softmax(logits)_i; dist need not sum to 1 (it may be truncated) */
void soft_cross_entropy_forward(real *loss, real *probs, const real *logits, const real *dist, int64_t n_rows,
                                int64_t n);
/* For soft cross-entropy and for KL, whose difference does not depend on the logits. */
void soft_cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const real *dist, int64_t n_rows,
                                 int64_t n);

/* loss = sum_i dist_i log(dist_i / softmax(logits)_i), where dist_i = 0 adds nothing */
void kl_forward(real *loss, real *probs, const real *logits, const real *dist, int64_t n_rows, int64_t n);

/* loss = sum_i |softmax(logits)_i - dist_i|: twice the total variation, which is 2 (1 - acceptance rate) of a draft */
void softmax_l1_forward(real *loss, real *probs, const real *logits, const real *dist, int64_t n_rows, int64_t n);
void softmax_l1_backward(real *dlogits, const real *dloss, const real *probs, const real *dist, int64_t n_rows,
                         int64_t n);

#endif

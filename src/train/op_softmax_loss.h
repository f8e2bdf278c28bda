/* op_softmax_loss.h - losses of logits against a token or a law over the vocabulary, and their derivatives. */
#ifndef TRAIN_OP_SOFTMAX_LOSS_H
#define TRAIN_OP_SOFTMAX_LOSS_H

#include "train/real.h"

/* In all of these: logits, probs, dlogits, law: [n_rows][n]. probs is written (it may be logits) and is what the way
 * back needs. loss: [n_rows]. dloss: [n_rows], the derivative by each row's loss: 0 for a row that does not count. */

/* loss = -log softmax(logits)[target]; targets: [n_rows] */
void cross_entropy_forward(real *loss, real *probs, const real *logits, const int32_t *targets, int64_t n_rows,
                           int64_t n);
void cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const int32_t *targets,
                            int64_t n_rows, int64_t n);

/* loss = -sum_i law_i log softmax(logits)_i; a law need not sum to 1 (it may be cut off) */
void soft_cross_entropy_forward(real *loss, real *probs, const real *logits, const real *law, int64_t n_rows,
                                int64_t n);
/* Of soft cross-entropy and of KL, which differ by what no logit changes. */
void soft_cross_entropy_backward(real *dlogits, const real *dloss, const real *probs, const real *law,
                                 int64_t n_rows, int64_t n);

/* loss = sum_i law_i log(law_i / softmax(logits)_i), where law_i = 0 adds nothing */
void kl_forward(real *loss, real *probs, const real *logits, const real *law, int64_t n_rows, int64_t n);

/* loss = sum_i |softmax(logits)_i - law_i|: twice the total variation, which is 2 (1 - acceptance rate) of a draft */
void softmax_l1_forward(real *loss, real *probs, const real *logits, const real *law, int64_t n_rows, int64_t n);
void softmax_l1_backward(real *dlogits, const real *dloss, const real *probs, const real *law, int64_t n_rows,
                         int64_t n);

#endif

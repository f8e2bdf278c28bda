/* net_check.h - checks the derivatives of a drafter's network (train/net.h) in double. The calling test
 * compiles the network and the ops with TRAIN_DOUBLE (double_nets.h). */
#ifndef TESTS_NET_CHECK_H
#define TESTS_NET_CHECK_H

#include <stdint.h>

enum { NET_CHECK_STREAMS = 3 }; /* TrainSequence.streams */

typedef struct NetCase {
    const char *what;
    const struct NetClass *class; /* compiled in double */
    const void *net;
    int32_t C, V; /* sizes of the target */
} NetCase;

/* Compares every tensor with finite differences, to 1e-6: on a short sequence with gaps in the loss mask, and on one
 * with more positions than HEAD_LOSS_ROWS and more rows than a block of attention. */
void net_check_gradients(const NetCase *c);
/* Negative control: a flipped sign in any tensor's gradient is detected, and that tensor is named. */
void net_check_wrong_signs(const NetCase *c);
/* Checks that positions outside the loss mask change neither the gradient nor the sums. */
void net_check_mask(const NetCase *c);

/* For a network that ends with n_added tensors whose loss has no gradient to the others: compares these tensors with
 * finite differences, and checks that all other gradients equal those of `without`, the same network without them. */
void net_check_addition(const NetCase *c, const NetCase *without, int32_t n_added);

/* For a layer that reads noise: checks that the noise changes its inputs, but neither the positions nor the targets of
 * the loss. */
void net_check_noise(const NetCase *c);

#endif

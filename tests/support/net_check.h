/* net_check.h - proves the derivatives of a drafter's network (src/train/net.h) in double. The network's own file and the
 * ops are compiled with TRAIN_DOUBLE by the test that calls. */
#ifndef TESTS_NET_CHECK_H
#define TESTS_NET_CHECK_H

#include <stdint.h>

typedef struct NetCase {
    const char *what;
    const struct NetClass *class; /* of double */
    const void *net;
    int32_t C, V; /* of the target */
} NetCase;

/* Every tensor against finite differences, to 1e-6: on a short lesson with places that do not count, and on one with more places than
 * HEAD_LOSS_ROWS and more rows than a block of attention. */
void net_check_gradients(const NetCase *c);
/* Negative control: each tensor's gradient with its sign turned is seen, and named. */
void net_check_turned_signs(const NetCase *c);
/* Places that do not count change neither the gradient nor the sums. */
void net_check_uncounted(const NetCase *c);

/* Of a layer that hears noise: it changes what is read, and neither what is asked nor what is judged. */
void net_check_noise(const NetCase *c);

#endif

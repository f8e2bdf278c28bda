/* unroll_net.h - the network that `eagle` and `lyanna` share: a layer that continues from its own predictions, and
 * token info on the logits of each step. They differ in their shapes alone; the functions are those of NetClass. */
#ifndef NETS_UNROLL_NET_H
#define NETS_UNROLL_NET_H

#include "train/nets/confidence_head.h"
#include "train/nets/info_factors.h"
#include "train/nets/info_gate.h"
#include "train/nets/unroll_layer.h"

typedef struct UnrollNet {
    UnrollShape layer;
    InfoShape info;             /* of the same method; rank 0: no token info */
    HeadLossOptions loss;       /* its n_steps is the layer's */
    GateShape gate;             /* of the same method; rank 0: token info does not depend on the state */
    ConfidenceShape confidence; /* of the same method; the loss then has margins */
} UnrollNet;

int32_t unroll_net_n_tensors(const void *net);
NetTensor unroll_net_tensor(const void *net, int32_t i);
void *unroll_net_acts_open(const void *net, int32_t max_length, fr_error *err);
void unroll_net_acts_close(void *acts);
void unroll_net_learn(const void *net, real *const *w, real *const *dw, void *acts, const TrainSequence *seq,
                      double weight, TrainSums *sums);
/* Sets the width of the feed-forward, and the keys of token info. */
void unroll_net_set_keys(const void *net, GgufWriter *w);

#endif

/* net_hydra.h - Hydra's heads as a trainable network. */
#ifndef NETS_NET_HYDRA_H
#define NETS_NET_HYDRA_H

#include "train/nets/head_loss.h"

typedef struct HydraNet {
    int32_t C, V, n_heads, n_blocks; /* at most 8 heads; at least 1 block */
    bool has_own_output;  /* each head has its own [V][C], initially the target's; else all use the target's */
    double token_std;     /* initial deviation of the columns that read E: see start_token_std */
    HeadLossOptions loss; /* its n_steps is n_heads */
} HydraNet;

extern const NetClass hydra_net_class;

#endif

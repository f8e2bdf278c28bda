/* net_medusa.h - Medusa's heads (spec/draft_medusa.c) as a network that learns. */
#ifndef NETS_NET_MEDUSA_H
#define NETS_NET_MEDUSA_H

#include "train/nets/head_loss.h"

typedef struct MedusaNet {
    int32_t C, V, n_heads, n_blocks; /* at most 8 heads */
    bool has_own_output;             /* each head its own [V][C], which starts as the target's; else the target's */
    HeadLossOptions loss;            /* its n_steps is n_heads */
} MedusaNet;

extern const NetClass medusa_net_class;

#endif

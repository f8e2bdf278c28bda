/* net_medusa.h - Medusa's heads (spec/drafters/learned/draft_medusa.c) as a trainable network. */
#ifndef NETS_NET_MEDUSA_H
#define NETS_NET_MEDUSA_H

#include "train/nets/head_loss.h"

typedef struct MedusaNet {
    int32_t C, V, n_heads, n_blocks; /* at most 8 heads */
    bool has_own_output;  /* each head has its own [V][C], initially the target's; else all use the target's */
    HeadLossOptions loss; /* its n_steps is n_heads */
} MedusaNet;

extern const NetClass medusa_net_class;

#endif

/* net_space.h - the masks of SPACE (spec/drafters/learned/draft_space.c) as a trainable network. */
#ifndef NETS_NET_SPACE_H
#define NETS_NET_SPACE_H

#include "train/nets/head_loss.h"
#include "train/nets/mask_rows.h"

typedef struct SpaceNet {
    MaskTarget target;
    int32_t V, n_blocks;
    double mask_std;      /* initial deviation of the masks */
    HeadLossOptions loss; /* its n_steps: masks of a group, at most MASK_MAX_STEPS */
} SpaceNet;

extern const NetClass space_net_class;

#endif

/* net_redrafter.h - the recurrent head of ReDrafter (spec/drafters/learned/draft_redrafter.c) as a trainable network.
 * */
#ifndef NETS_NET_REDRAFTER_H
#define NETS_NET_REDRAFTER_H

#include "train/nets/info_factors.h"

typedef struct RedrafterNet {
    int32_t C, V, n_blocks;
    InfoShape info;           /* token info added to the logits of each step; rank 0: none */
    bool starts_at_embedding; /* s_1 = E(x_1), as in the paper; else s_0 = 0, as in the released code */
    double token_std;         /* initial deviation of W: see start_token_std */
    HeadLossOptions loss;
} RedrafterNet;

extern const NetClass redrafter_net_class;

#endif

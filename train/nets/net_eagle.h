/* net_eagle.h - EAGLE's layer (spec/drafters/learned/draft_eagle.c) as a trainable network. */
#ifndef NETS_NET_EAGLE_H
#define NETS_NET_EAGLE_H

#include "train/nets/unroll_net.h"

/* For an UnrollNet with the method "eagle", no norm before attention, and a token fused at each step. */
extern const NetClass eagle_net_class;

#endif

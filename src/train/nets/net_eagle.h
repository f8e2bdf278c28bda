/* net_eagle.h - EAGLE's layer (spec/draft_eagle.c) as a network that learns. */
#ifndef NETS_NET_EAGLE_H
#define NETS_NET_EAGLE_H

#include "train/nets/unroll_net.h"

/* Of an UnrollNet whose layer has the method "eagle", no norm before attention, a token fused at each step. */
extern const NetClass eagle_net_class;

#endif

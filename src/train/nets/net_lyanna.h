/* net_lyanna.h - Lyanna's layer and token info (spec/draft_lyanna.c) as a network that learns. */
#ifndef NETS_NET_LYANNA_H
#define NETS_NET_LYANNA_H

#include "train/nets/unroll_net.h"

/* Of an UnrollNet whose layer has the method "lyanna" and a norm before attention; its later steps go on from the last output
 * alone. */
extern const NetClass lyanna_net_class;

#endif

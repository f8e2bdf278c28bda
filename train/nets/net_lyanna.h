/* net_lyanna.h - Lyanna's layer and token info (spec/drafters/learned/draft_lyanna.c) as a trainable network. */
#ifndef NETS_NET_LYANNA_H
#define NETS_NET_LYANNA_H

#include "train/nets/unroll_net.h"

/* For an UnrollNet with the method "lyanna" and a norm before attention, whose later steps read the last output
 * alone. */
extern const NetClass lyanna_net_class;

#endif

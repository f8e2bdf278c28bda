/* net_eagle.c - EAGLE's layer as spec/draft_eagle.c runs it, learned as EAGLE (arXiv 2401.15077, section 4.2) learns it, from
 * its own guesses too.
 *
 *     f^1_t = layer(fc [E(x_{t+1}) ; h_t])        f^s_t = layer(fc [E(x_{t+s}) ; f^{s-1}_t])
 *     loss of a step = token_weight * KL(target's distribution || softmax(W_head f)) + hidden_weight * SmoothL1(f, h)
 *
 * With one step that is EAGLE as published: it only ever reads the target's own states, and is made robust by uniform noise
 * on them (TrainSequence.noise). What more than one step adds is HASS's: the layer goes on from its own f, told of the true token,
 * as it will when it drafts. With a rank its logits have token info too, as Lyanna's have (info_factors.c); that is not
 * EAGLE's. unroll_net.c has the network, and the proofs are named there. */
#include "train/nets/net_eagle.h"

const NetClass eagle_net_class = {"eagle", unroll_net_n_tensors, unroll_net_tensor, unroll_net_acts_open, unroll_net_acts_close,
                                  unroll_net_learn, unroll_net_set_keys, NULL};

/* net_eagle.c - EAGLE's layer as spec/drafters/learned/draft_eagle.c runs it, trained as in EAGLE (arXiv 2401.15077,
 * section 4.2) and, with more than one step, on its own predictions.
 *
 *     f^1_t = layer(fc [E(x_{t+1}) ; h_t])        f^s_t = layer(fc [E(x_{t+s}) ; f^{s-1}_t])
 *     loss of a step = token_weight * KL(target's distribution || softmax(W_head f)) + hidden_weight * SmoothL1(f, h)
 *
 * With one step this is EAGLE as published: the layer only reads the target's own states, and uniform noise on them
 * (TrainSequence.noise) makes it robust. More steps are the addition of HASS: the layer continues from its own f and
 * the true token, as it does when it drafts. With a rank, its logits have token info as Lyanna's have (info_factors.c),
 * which EAGLE does not have. unroll_net.c has the network, and names the tests. */
#include "train/nets/net_eagle.h"

const NetClass eagle_net_class = {"eagle",
                                  unroll_net_n_tensors,
                                  unroll_net_tensor,
                                  unroll_net_acts_open,
                                  unroll_net_acts_close,
                                  unroll_net_learn,
                                  unroll_net_set_keys,
                                  NULL};

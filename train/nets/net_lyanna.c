/* net_lyanna.c - Lyanna's drafter (sections 4 and 5 of the paper; spec/drafters/learned/draft_lyanna.c runs it).
 *
 *     f^1_t = layer(fc [E(x_{t+1}) ; h_t])        f^s_t = layer(f^{s-1}_t)
 *     distribution of x_{t+s+1} = softmax(W_head f^s_t + info(x_{t+s}))
 *     loss of a step = token_weight * KL(target's distribution || that) + hidden_weight * SmoothL1(f, h)
 *
 * No token is fed back: the chain of hidden states is the same whatever tokens are sampled from it. So all its logits
 * are one matrix product, and after a rejection the rest of the chain can be sampled from again. The influence of a
 * token on the next one is added to the logits, as token info (info_factors.c) and, with a gate, as a bias that depends on
 * the state as well (info_gate.c). Two ablations: rank 0 has no token info, and first_token "none" computes the first input
 * from h_t alone.
 *
 * A parallel chain (layer.is_parallel) does not feed states back either: the input of step s is the first step's plus a
 * learned vector of s, so the drafter computes all states in one forward.
 *
 * unroll_net.c has the network and unroll_layer.c the layer; they name the tests. */
#include "train/nets/net_lyanna.h"

#include "draft/learned/lyanna.h"

#include <string.h>

static void set_keys(const void *net, GgufWriter *w) {
    const UnrollShape *layer = &((const UnrollNet *)net)->layer;
    const char *first = layer->fuses_token ? "fused" : "none";
    unroll_net_set_keys(net, w);
    gguf_set_string(w, DRAFTER_KEY(LYANNA_KEY_FIRST_TOKEN), first, strlen(first));
    if (layer->is_parallel) {
        gguf_set_string(w, DRAFTER_KEY(LYANNA_KEY_CHAIN), "parallel", strlen("parallel"));
        gguf_set_u32(w, DRAFTER_KEY(LYANNA_KEY_CHAIN_INPUTS),
                     (uint32_t)unroll_tensor(layer, UNROLL_CHAIN_INPUTS).n_rows);
    }
}

const NetClass lyanna_net_class = {"lyanna",
                                   unroll_net_n_tensors,
                                   unroll_net_tensor,
                                   unroll_net_acts_open,
                                   unroll_net_acts_close,
                                   unroll_net_learn,
                                   set_keys,
                                   NULL};

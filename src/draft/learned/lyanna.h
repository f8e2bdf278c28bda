/* lyanna.h - the contents of a file of the drafter `lyanna` (drafter_file.h): names shared by training and drafting.
 *
 *   H hidden size
 *
 * Keys, after "forerun-drafter.":
 *   lyanna.feed_forward_length
 *   lyanna.first_token           "fused": the input of an entry is fc [E(x_{t+1}) ; h_t], embedding first, fc [H][2H]
 *                                "none": fc h_t, fc [H][H]: an ablation that measures what the token contributes
 *   lyanna.chain                 optional; "serial" (also without the key): the input of step s + 1 is the output of step s;
 *                                "parallel": it is the first step's input plus row s of chain.inputs, or plus the last row if
 *                                there are fewer
 *   lyanna.chain.n_inputs        with "parallel": the number of those rows
 * Tensors:
 *   lyanna.fc.weight, .bias [H]
 *   lyanna.attn_norm.weight [H], lyanna.attn_q, _k, _v, _output.weight, with the target's heads and rope
 *   lyanna.ffn_norm.weight [H], lyanna.ffn_gate, _up, _down.weight
 *   lyanna.chain.inputs.weight [n_inputs][H] with "parallel"
 * and the keys and tensors of its token info: token_info.h; of the gate: lyanna_gate.h; of the confidence head: confidence.h.
 */
#ifndef LEARNED_LYANNA_H
#define LEARNED_LYANNA_H

#include "draft/learned/layer_names.h"

#define LYANNA "lyanna."

#define LYANNA_KEY_FEED_FORWARD LYANNA LAYER_KEY_FEED_FORWARD
#define LYANNA_KEY_FIRST_TOKEN LYANNA "first_token"

#define LYANNA_KEY_CHAIN LYANNA CHAIN_KEY
#define LYANNA_KEY_CHAIN_INPUTS LYANNA CHAIN_KEY_INPUTS

#define LYANNA_CHAIN_INPUTS LYANNA CHAIN_INPUTS
#define LYANNA_GATE_STATE LYANNA GATE_STATE_FACTOR
#define LYANNA_GATE_TOKEN LYANNA GATE_TOKEN_FACTOR
#define LYANNA_GATE_UP LYANNA GATE_OUTPUT
#define LYANNA_KEY_GATE_RANK LYANNA GATE_KEY_RANK
#define LYANNA_FC LYANNA LAYER_FC /* .weight and .bias */
#define LYANNA_ATTN_NORM LYANNA LAYER_ATTN_NORM
#define LYANNA_ATTN_Q LYANNA LAYER_ATTN_Q
#define LYANNA_ATTN_K LYANNA LAYER_ATTN_K
#define LYANNA_ATTN_V LYANNA LAYER_ATTN_V
#define LYANNA_ATTN_OUTPUT LYANNA LAYER_ATTN_OUTPUT
#define LYANNA_FFN_NORM LYANNA LAYER_FFN_NORM
#define LYANNA_FFN_GATE LYANNA LAYER_FFN_GATE
#define LYANNA_FFN_UP LYANNA LAYER_FFN_UP
#define LYANNA_FFN_DOWN LYANNA LAYER_FFN_DOWN

#endif

/* lyanna.h - what stands in a file of the drafter `lyanna` (drafter_file.h): shared by who trains and who drafts.
 *
 *   H hidden size
 *
 * Keys, behind "forerun-drafter.":
 *   lyanna.feed_forward_length
 *   lyanna.first_token           "fused": the input of an entry is fc [E(x_{t+1}) ; h_t], embedding first, fc [H][2H]
 *                                "none": fc h_t, fc [H][H]; what is lost without the token, for the ablation
 * Tensors:
 *   lyanna.fc.weight, .bias [H]
 *   lyanna.attn_norm.weight [H], lyanna.attn_q, _k, _v, _output.weight, with the target's heads and rope
 *   lyanna.ffn_norm.weight [H], lyanna.ffn_gate, _up, _down.weight
 * and keys and tensors of its token info: token_info.h.
 */
#ifndef LEARNED_LYANNA_H
#define LEARNED_LYANNA_H

#define LYANNA_KEY_FEED_FORWARD "lyanna.feed_forward_length"
#define LYANNA_KEY_FIRST_TOKEN "lyanna.first_token"

#define LYANNA_FC "lyanna.fc" /* .weight and .bias */
#define LYANNA_ATTN_NORM "lyanna.attn_norm.weight"
#define LYANNA_ATTN_Q "lyanna.attn_q.weight"
#define LYANNA_ATTN_K "lyanna.attn_k.weight"
#define LYANNA_ATTN_V "lyanna.attn_v.weight"
#define LYANNA_ATTN_OUTPUT "lyanna.attn_output.weight"
#define LYANNA_FFN_NORM "lyanna.ffn_norm.weight"
#define LYANNA_FFN_GATE "lyanna.ffn_gate.weight"
#define LYANNA_FFN_UP "lyanna.ffn_up.weight"
#define LYANNA_FFN_DOWN "lyanna.ffn_down.weight"

#endif

/* layer_names.h - names that files of several learned drafters share; the method's name and a dot come before each.
 *
 *   H hidden size, F feed-forward size, d rank of the token info, n number of tokens that have info
 */
#ifndef LEARNED_LAYER_NAMES_H
#define LEARNED_LAYER_NAMES_H

/* A transformer layer with the target's heads and rope (`eagle`, `lyanna`): a key, then tensors. */
#define LAYER_KEY_FEED_FORWARD "feed_forward_length"
#define LAYER_FC "fc" /* computes the layer's input */
#define LAYER_FC_WEIGHT "fc.weight"
#define LAYER_FC_BIAS "fc.bias" /* [H] */
#define LAYER_ATTN_NORM "attn_norm.weight"
#define LAYER_ATTN_Q "attn_q.weight"
#define LAYER_ATTN_K "attn_k.weight"
#define LAYER_ATTN_V "attn_v.weight"
#define LAYER_ATTN_OUTPUT "attn_output.weight"
#define LAYER_FFN_NORM "ffn_norm.weight"
#define LAYER_FFN_GATE "ffn_gate.weight"
#define LAYER_FFN_UP "ffn_up.weight"
#define LAYER_FFN_DOWN "ffn_down.weight"

/* Token info (token_info.h): keys, then tensors. */
#define TOKEN_INFO_KEY_RANK "token_info.rank"
#define TOKEN_INFO_KEY_HOT_TOKENS "hot_tokens"
#define TOKEN_INFO_DOWN "token_info.down" /* .weight [d][H] */
#define TOKEN_INFO_UP "token_info.up"     /* .weight [n][d] */
#define TOKEN_INFO_GAIN "token_info.gain" /* [n] */

/* Token info gated by the state (lyanna_gate.h): a key, then tensors; r is the gate's rank. */
#define GATE_KEY_RANK "gate.rank"
#define GATE_STATE_FACTOR "gate.state" /* .weight [r][H] */
#define GATE_TOKEN_FACTOR "gate.token" /* .weight [r][H] */
#define GATE_OUTPUT "gate.up"          /* .weight [V][r] */

/* The chain of `lyanna` (lyanna.h). */
#define CHAIN_KEY "chain"
#define CHAIN_KEY_INPUTS "chain.n_inputs"
#define CHAIN_INPUTS "chain.inputs.weight" /* [n_inputs][H] */

#endif

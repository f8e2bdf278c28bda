/* eagle.h - what stands in a file of the drafter `eagle` (drafter_file.h): shared by training, import and drafting.
 *
 *   H hidden size
 *
 * Keys, behind "forerun-drafter.":
 *   eagle.feed_forward_length
 * Tensors:
 *   eagle.fc.weight [H][2H], embedding first, eagle.fc.bias [H]
 *   eagle.attn_q, _k, _v, _output.weight, eagle.ffn_norm.weight [H], eagle.ffn_gate, _up, _down.weight: a layer with the target's heads
 *   and rope, and without a norm before its attention
 * and keys and tensors of its token info, where it was trained with it: token_info.h.
 */
#ifndef LEARNED_EAGLE_H
#define LEARNED_EAGLE_H

#define EAGLE_KEY_FEED_FORWARD "eagle.feed_forward_length"

#define EAGLE_FC "eagle.fc" /* .weight and .bias */
#define EAGLE_ATTN_Q "eagle.attn_q.weight"
#define EAGLE_ATTN_K "eagle.attn_k.weight"
#define EAGLE_ATTN_V "eagle.attn_v.weight"
#define EAGLE_ATTN_OUTPUT "eagle.attn_output.weight"
#define EAGLE_FFN_NORM "eagle.ffn_norm.weight"
#define EAGLE_FFN_GATE "eagle.ffn_gate.weight"
#define EAGLE_FFN_UP "eagle.ffn_up.weight"
#define EAGLE_FFN_DOWN "eagle.ffn_down.weight"

#endif

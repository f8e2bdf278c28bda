/* eagle.h - the contents of a file of the drafter `eagle` (drafter_file.h): names shared by training, import and
 * drafting.
 *
 *   H hidden size
 *
 * Key, after "forerun-drafter.":
 *   eagle.feed_forward_length
 * Tensors:
 *   eagle.fc.weight [H][2H] (embedding first), eagle.fc.bias [H]
 *   eagle.attn_q, _k, _v, _output.weight, eagle.ffn_norm.weight [H], eagle.ffn_gate, _up, _down.weight: a layer with the target's heads
 *   and rope, and without a norm before its attention
 * and, if it was trained with token info, the keys and tensors of token_info.h; with a confidence head, the tensor of confidence.h.
 */
#ifndef LEARNED_EAGLE_H
#define LEARNED_EAGLE_H

#include "draft/learned/layer_names.h"

#define EAGLE "eagle."

#define EAGLE_KEY_FEED_FORWARD EAGLE LAYER_KEY_FEED_FORWARD

#define EAGLE_FC EAGLE LAYER_FC /* .weight and .bias */
#define EAGLE_ATTN_Q EAGLE LAYER_ATTN_Q
#define EAGLE_ATTN_K EAGLE LAYER_ATTN_K
#define EAGLE_ATTN_V EAGLE LAYER_ATTN_V
#define EAGLE_ATTN_OUTPUT EAGLE LAYER_ATTN_OUTPUT
#define EAGLE_FFN_NORM EAGLE LAYER_FFN_NORM
#define EAGLE_FFN_GATE EAGLE LAYER_FFN_GATE
#define EAGLE_FFN_UP EAGLE LAYER_FFN_UP
#define EAGLE_FFN_DOWN EAGLE LAYER_FFN_DOWN

#endif

/* double_nets.h - the networks of the drafters, compiled in double into the test that includes this header first.
 *
 * Finite differences prove a gradient only in double, so the sources are included with TRAIN_DOUBLE (train/ops.h).
 * Network files have static functions of the same names; here they share one translation unit, so while they are
 * included each such name is replaced by NET_name, and NET is defined again before each file. */
#ifndef TESTS_DOUBLE_NETS_H
#define TESTS_DOUBLE_NETS_H

#define TRAIN_DOUBLE
/* Each operation comes before those that use it: clang cannot clone a function for several instruction sets once it has
 * been used. */
#include "train/ops.c"
#include "train/attention_ops.c"
#include "train/head_loss.c"
#include "train/token_info_net.c"
#include "train/unroll_heads.c"
#include "train/unroll_layer.c"
#include "train/unroll_net.c"
#include "train/mask_rows.c"

#define NET_NAME_2(net, name) net##_##name
#define NET_NAME_1(net, name) NET_NAME_2(net, name)
#define NET_NAME(name) NET_NAME_1(NET, name)
#define HIDDEN_NORM NET_NAME(HIDDEN_NORM)
#define N_SLOTS NET_NAME(N_SLOTS)
#define OUTPUT_NORM NET_NAME(OUTPUT_NORM)
#define TOKEN_NORM NET_NAME(TOKEN_NORM)
#define acts_close NET_NAME(acts_close)
#define acts_open NET_NAME(acts_open)
#define learn NET_NAME(learn)
#define learn_head NET_NAME(learn_head)
#define learn_positions NET_NAME(learn_positions)
#define n_tensors NET_NAME(n_tensors)
#define open_arrays NET_NAME(open_arrays)
#define set_keys NET_NAME(set_keys)
#define tensor NET_NAME(tensor)
#define tensors_of_head NET_NAME(tensors_of_head)
#define acts_name NET_NAME(acts_name)
#define add_to NET_NAME(add_to)
#define embedding_of NET_NAME(embedding_of)
#define has_slot NET_NAME(has_slot)
#define keeps NET_NAME(keeps)
#define n_of_layer NET_NAME(n_of_layer)
#define run_step NET_NAME(run_step)
#define tensor_of_slot NET_NAME(tensor_of_slot)
#define attention_back NET_NAME(attention_back)
#define attention_block NET_NAME(attention_block)
#define attention_of NET_NAME(attention_of)
#define backward NET_NAME(backward)
#define feed_forward_back NET_NAME(feed_forward_back)
#define feed_forward_block NET_NAME(feed_forward_block)
#define forward NET_NAME(forward)
#define kv_dim NET_NAME(kv_dim)
#define open_layer NET_NAME(open_layer)
#define q_dim NET_NAME(q_dim)
#define streams_width NET_NAME(streams_width)
#define tensor_of_layer NET_NAME(tensor_of_layer)
#define zero NET_NAME(zero)
#define NET medusa
#include "train/medusa_net.c"
#undef NET
#define NET hydra
#include "train/hydra_net.c"
#undef NET
#define NET redrafter
#include "train/redrafter_net.c"
#undef NET
#define NET space
#include "train/space_net.c"
#undef NET
#define NET eagle3
#include "train/eagle3_layers.c"
#include "train/eagle3_net.c"
#undef NET
#define NET dflash
#include "train/dflash_conv.c"
#include "train/dflash_selector.c"
#include "train/dflash_markov.c"
#include "train/dflash_layers.c"
#include "train/dflash_net.c"
#undef NET
#define NET mtp
#include "train/mtp_net.c"
#undef NET
#undef acts_close
#undef acts_open
#undef learn
#undef learn_head
#undef learn_positions
#undef n_tensors
#undef open_arrays
#undef set_keys
#undef tensor
#undef tensors_of_head
#undef HIDDEN_NORM
#undef N_SLOTS
#undef OUTPUT_NORM
#undef TOKEN_NORM
#undef acts_name
#undef add_to
#undef embedding_of
#undef has_slot
#undef keeps
#undef n_of_layer
#undef run_step
#undef tensor_of_slot
#undef attention_back
#undef attention_block
#undef attention_of
#undef backward
#undef feed_forward_back
#undef feed_forward_block
#undef forward
#undef kv_dim
#undef open_layer
#undef q_dim
#undef streams_width
#undef tensor_of_layer
#undef zero

#endif

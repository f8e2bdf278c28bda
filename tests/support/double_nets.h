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
#include "train/unroll_layer.c"
#include "train/unroll_net.c"
#include "train/mask_rows.c"

#define NET_NAME_2(net, name) net##_##name
#define NET_NAME_1(net, name) NET_NAME_2(net, name)
#define NET_NAME(name) NET_NAME_1(NET, name)
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
#include "train/eagle3_net.c"
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

#endif

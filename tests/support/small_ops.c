/* small_ops.c - the ops without REAL_CLONES, under other names, so that a test can compare their bits with those of the
 * versions that the program chooses on this CPU. */
#include "small_ops.h"

#undef REAL_CLONES
#define REAL_CLONES
#define attention_forward small_attention_forward
#define attention_backward small_attention_backward
#define rmsnorm_forward small_rmsnorm_forward
#define rmsnorm_backward small_rmsnorm_backward
#define rope_forward small_rope_forward
#define rope_backward small_rope_backward
#define silu_forward small_silu_forward
#define silu_backward small_silu_backward
#define swiglu_forward small_swiglu_forward
#define swiglu_backward small_swiglu_backward
#define cross_entropy_forward small_cross_entropy_forward
#define cross_entropy_backward small_cross_entropy_backward
#define soft_cross_entropy_forward small_soft_cross_entropy_forward
#define soft_cross_entropy_backward small_soft_cross_entropy_backward
#include "train/attention_ops.c"
#include "train/ops.c"

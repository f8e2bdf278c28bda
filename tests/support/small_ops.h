/* small_ops.h - the operations of train/ops.h, compiled only for the baseline instruction set (see REAL_CLONES
 * there). */
#ifndef TESTS_SMALL_OPS_H
#define TESTS_SMALL_OPS_H

#include "train/ops.h"

extern __typeof__(attention_forward) small_attention_forward;
extern __typeof__(attention_backward) small_attention_backward;
extern __typeof__(rmsnorm_forward) small_rmsnorm_forward;
extern __typeof__(rmsnorm_backward) small_rmsnorm_backward;
extern __typeof__(rope_forward) small_rope_forward;
extern __typeof__(rope_backward) small_rope_backward;
extern __typeof__(silu_forward) small_silu_forward;
extern __typeof__(silu_backward) small_silu_backward;
extern __typeof__(geglu_forward) small_geglu_forward;
extern __typeof__(geglu_backward) small_geglu_backward;
extern __typeof__(swiglu_forward) small_swiglu_forward;
extern __typeof__(swiglu_backward) small_swiglu_backward;
extern __typeof__(cross_entropy_forward) small_cross_entropy_forward;
extern __typeof__(cross_entropy_backward) small_cross_entropy_backward;
extern __typeof__(soft_cross_entropy_forward) small_soft_cross_entropy_forward;
extern __typeof__(soft_cross_entropy_backward) small_soft_cross_entropy_backward;
extern __typeof__(total_variation_forward) small_total_variation_forward;
extern __typeof__(total_variation_backward) small_total_variation_backward;

#endif

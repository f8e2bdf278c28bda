/* small_ops.c - the operations of train/ops.h without REAL_CLONES, under other names, so that a test can compare their
 * bits with those of the versions that the program chooses on this CPU. */
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
#define geglu_forward small_geglu_forward
#define geglu_backward small_geglu_backward
#define swiglu_forward small_swiglu_forward
#define swiglu_backward small_swiglu_backward
#define cross_entropy_forward small_cross_entropy_forward
#define cross_entropy_backward small_cross_entropy_backward
#define soft_cross_entropy_forward small_soft_cross_entropy_forward
#define soft_cross_entropy_backward small_soft_cross_entropy_backward
#define total_variation_forward small_total_variation_forward
#define total_variation_backward small_total_variation_backward
#define embedding_backward small_embedding_backward
#define embedding_forward small_embedding_forward
#define linear_backward small_linear_backward
#define linear_forward small_linear_forward
#define logistic_loss small_logistic_loss
#define regression_backward small_regression_backward
#define regression_forward small_regression_forward
#define residual_backward small_residual_backward
#define residual_chain_back small_residual_chain_back
#define residual_chain_close small_residual_chain_close
#define residual_chain_forward small_residual_chain_forward
#define residual_chain_open small_residual_chain_open
#define residual_chain_out small_residual_chain_out
#define residual_forward small_residual_forward
#define unroll_attention_backward small_unroll_attention_backward
#define unroll_attention_forward small_unroll_attention_forward
#include "train/attention_ops.c"
#include "train/ops.c"

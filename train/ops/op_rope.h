/* op_rope.h - rotary position embedding (arXiv 2104.09864) in place, and its derivative in place. */
#ifndef OPS_OP_ROPE_H
#define OPS_OP_ROPE_H

#include "gguf/tensor_type.h"
#include "train/ops/real.h"

/* x: [n_rows][n_heads][head_dim]; the first n_rot components of each head are rotated, paired as `style` says. cos_sin:
 * [n_rows][n_rot/2][2], the angles of each row's position (model/rope.h). */
void rope_forward(RopeStyle style, real *x, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                  int64_t n_rot);
/* dx: as x; turns the derivative with respect to the rotated x into that with respect to x */
void rope_backward(RopeStyle style, real *dx, const real *cos_sin, int64_t n_rows, int64_t n_heads, int64_t head_dim,
                   int64_t n_rot);

#endif

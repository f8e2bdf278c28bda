/* op_silu.h - SiLU, SwiGLU's product of it, and their derivatives. */
#ifndef OPS_OP_SILU_H
#define OPS_OP_SILU_H

#include "train/ops/real.h"

/* y = silu(x), all [n]; y may be x where no backward pass follows */
void silu_forward(real *y, const real *x, int64_t n);
void silu_backward(real *dx, const real *dy, const real *x, int64_t n);

/* h = silu(gate) * up, all [n] */
void swiglu_forward(real *h, const real *gate, const real *up, int64_t n);
void swiglu_backward(real *dgate, real *dup, const real *dh, const real *gate, const real *up, int64_t n);

#endif

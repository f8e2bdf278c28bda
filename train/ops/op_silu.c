/* op_silu.c - with s = 1 / (1 + exp(-x)):
 *
 *     silu(x)  = x s
 *     silu'(x) = s + x s (1 - s)
 *     h        = silu(gate) up                 SwiGLU (arXiv 2002.05202) between its three matrices
 *     dgate    = dh up silu'(gate)
 *     dup      = dh silu(gate)
 */
#include "train/ops/op_silu.h"

static inline real sigmoid(real x) { return 1 / (1 + real_exp(-x)); }

REAL_CLONES void silu_forward(real *y, const real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * sigmoid(x[i]);
}

REAL_CLONES void silu_backward(real *dx, const real *dy, const real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        real s = sigmoid(x[i]);
        dx[i] += dy[i] * s * (1 + x[i] * (1 - s));
    }
}

REAL_CLONES void swiglu_forward(real *restrict h, const real *gate, const real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) h[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

REAL_CLONES void swiglu_backward(real *restrict dgate, real *restrict dup, const real *dh, const real *gate,
                                 const real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        real s = sigmoid(gate[i]);
        dup[i] += dh[i] * gate[i] * s;
        dgate[i] += dh[i] * up[i] * s * (1 + gate[i] * (1 - s));
    }
}

/* residual_chain.h - a stack of blocks x + SiLU(A x + a) over some rows, and the backward pass through it. */
#ifndef OPS_RESIDUAL_CHAIN_H
#define OPS_RESIDUAL_CHAIN_H

#include "base/mem.h"
#include "train/ops/real.h"

typedef struct ResidualChain {
    int32_t n_blocks, max_rows; /* n_blocks may be 0 */
    int64_t width;
    Arena arena;
    real *x;   /* [n_blocks + 1][max_rows][width]: the input, which the caller writes, and the output of each block */
    real *sum; /* [n_blocks][max_rows][width]: A x + a */
    real *dx;  /* [max_rows][width]: the derivative with respect to the output, which the caller writes */
    real *dbelow, *scratch;
} ResidualChain;

int residual_chain_open(ResidualChain *c, int64_t width, int32_t n_blocks, int32_t max_rows, fr_error *err);
void residual_chain_close(ResidualChain *c); /* a zeroed one is fine */

/* The output, [n_rows][width]. */
real *residual_chain_out(const ResidualChain *c);

/* On the first n_rows rows. w, dw: A and a of the first block, then those of the second, ... */
void residual_chain_forward(ResidualChain *c, real *const *w, int64_t n_rows);
/* c->dx becomes the derivative with respect to the input; without wants_input it is left undefined, which saves a
 * product. */
void residual_chain_back(ResidualChain *c, real *const *w, real *const *dw, int64_t n_rows, bool wants_input);

#endif

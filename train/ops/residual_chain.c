/* residual_chain.c - the blocks of Medusa's, Hydra's and ReDrafter's heads (op_residual.h), one after the other. Every
 * block keeps its input and A x + a for the backward pass. */
#include "train/ops/residual_chain.h"

#include "train/ops/op_residual.h"

#include <string.h>

int residual_chain_open(ResidualChain *c, int64_t width, int32_t n_blocks, int32_t max_rows, fr_error *err) {
    *c = (ResidualChain){.n_blocks = n_blocks, .max_rows = max_rows, .width = width};
    int64_t n = max_rows * width;
    const ArenaItem items[] = {ARENA_ITEM(&c->x, (n_blocks + 1) * n), ARENA_ITEM(&c->sum, n_blocks * n),
                               ARENA_ITEM(&c->dx, n), ARENA_ITEM(&c->dbelow, n), ARENA_ITEM(&c->scratch, n)};
    return arena_take(&c->arena, items, ARENA_COUNT(items), "the activations of a head's blocks", err);
}

void residual_chain_close(ResidualChain *c) { arena_free(&c->arena); }

/* The input of block k. */
static real *x_of(const ResidualChain *c, int32_t k) { return c->x + (int64_t)k * c->max_rows * c->width; }
static real *sum_of(const ResidualChain *c, int32_t k) { return c->sum + (int64_t)k * c->max_rows * c->width; }

real *residual_chain_out(const ResidualChain *c) { return x_of(c, c->n_blocks); }

void residual_chain_forward(ResidualChain *c, real *const *w, int64_t n_rows) {
    for (int32_t k = 0; k < c->n_blocks; k++)
        residual_forward(x_of(c, k + 1), sum_of(c, k), x_of(c, k), w[2 * k], w[2 * k + 1], n_rows, c->width);
}

void residual_chain_back(ResidualChain *c, real *const *w, real *const *dw, int64_t n_rows, bool wants_input) {
    size_t bytes = (size_t)(n_rows * c->width) * sizeof(real);
    for (int32_t k = c->n_blocks - 1; k >= 0; k--) {
        real *below = k || wants_input ? c->dbelow : NULL;
        if (below) memset(below, 0, bytes);
        residual_backward(below, dw[2 * k], dw[2 * k + 1], c->dx, x_of(c, k), sum_of(c, k), w[2 * k], c->scratch,
                          n_rows, c->width);
        if (below) memcpy(c->dx, below, bytes);
    }
}

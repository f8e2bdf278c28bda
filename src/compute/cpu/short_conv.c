/* short_conv.c - the short convolution of LFM2 (MIXER_SHORT_CONV in model.h) for one position of some channels.
 *
 *     z = c * convolution of (b * x)       b, c, x: products of the normed input
 *
 * The last inputs of the convolution are all of the state: there is no matrix, and what the walk of recurrent.c passes from row
 * to row is empty. A "head" is a block of channels. b and x have the same channels in the same tiles, so that one thread
 * computes both and multiplies them while they are in its cache.
 *
 * Proof: as of recurrent.c. */
#include "compute/cpu/cpu.h"

/* Tiles [begin, end) of each of the products. */
static void products(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    int64_t width = op->c->states.shape.n_channels, from = begin * TILE_ROWS,
            to = end * TILE_ROWS < width ? end * TILE_ROWS : width;
    float *inputs = NULL;
    const float *factor = NULL;
    for (int k = 0; k < op->n_products; k++) {
        state_product_tiles(op, k, begin, end);
        if (op->products[k].m == op->l->matrices[MATRIX_STATE_INPUTS]) inputs = op->products[k].y;
        if (op->products[k].m == op->l->matrices[MATRIX_STATE_FACTOR]) factor = op->products[k].y;
    }
    fr_assert(inputs && factor);
    for (int64_t row = 0; row < op->n_rows; row++)
        for (int64_t i = row * width + from; i < row * width + to; i++) inputs[i] *= factor[i];
}

static void step(const CpuContext *c, const CpuLayer *l, int32_t h, const StateWindow *w, const float *gates,
                 const float *from, float *to, float *out) {
    const StateShape *s = &c->states.shape;
    (void)gates, (void)from, (void)to;
    if (out) state_convolve(c, l, w, h * s->head_dim, state_head_values(s, h), out);
}

static void finish(const CpuContext *c, const CpuLayer *l, float *read, int64_t n, float *z) {
    (void)c, (void)l;
    for (int64_t i = 0; i < n; i++) z[i] *= read[i];
}

const StateCell short_conv_cell = {.step = step, .finish = finish, .products = products};

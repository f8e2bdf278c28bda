/* block_conv.c - the convolutions over the rows of a block that the layers of some block drafters have around attention
 * and around their feed-forward part (BlockConv in model.h).
 *
 * The problem. The rows of a block differ only in their positions, and attention lets each of them see all others, but
 * not simply "the one before me". So predictions near the end of a block are poor.
 *
 * The idea of DFlash 2. Each row adds up its own channels and those of the rows before it, with kernels that it makes
 * itself:
 *
 *     stage       items                     fused with it
 *     norm        rows                      conversion for the kernels
 *     kernels     tiles of 16 outputs
 *     convolve    rows                      conversion for q, k and v, or for gate and up
 *     ...                                   the part, whose last product leaves its outputs in c->delta
 *     convolve    rows                      what the layer does with it before and after x +=
 *
 * Invariants. A row reads only rows of its own block, so no bit depends on other blocks in the forward. A row reads
 * what the rows before it were before the convolution; so results go to arrays of their own. Each sum is taken in the
 * order of the taps.
 *
 * Cost. Four stages for each part, and a product with 2 n_taps n_embd / group outputs. Proof:
 * tests/draft/test_draft_dflash.c, against the layers in double precision. */
#include "compute/cpu/cpu_ops.h"

#include <string.h>

/* Returns the row that is t rows before row i in its block; -1: there is none. */
static int64_t row_before(const CpuContext *c, int64_t i, int32_t t) {
    for (; t > 0; t--, i--)
        if (i == 0 || c->rows[i].parent != c->rows[i - 1].row) return -1;
    return i;
}

/* Convolves row i of x [n_rows][n_embd] with kernels number s into out [n_embd]. */
static void convolve_row(const CpuContext *c, const BlockConv *conv, int s, const float *x, int64_t i, float *out) {
    int64_t n = c->model->hparams.n_embd, n_groups = n / conv->group;
    const float *own = c->conv_kernels + row_at(i, block_conv_kernels(conv, n)) + s * conv->n_taps * n_groups,
                *base = conv->base + s * conv->n_taps * n;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int32_t t = 0; t < conv->n_taps; t++, own += n_groups, base += n) {
        int64_t at = row_before(c, i, t);
        if (at < 0) return;
        const float *from = x + row_at(at, n);
        for (int64_t g = 0; g < n_groups; g++)
            for (int64_t k = g * conv->group; k < (g + 1) * conv->group; k++) out[k] += (base[k] + own[g]) * from[k];
    }
}

static void kernel_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const Product *p = &op->products[0];
    cpu_multiply(op->c, p->m, op->c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, begin, end);
}

static void convolve_inputs(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    for (int64_t i = begin; i < end; i++) {
        float *out = c->convolved + row_at(i, c->model->hparams.n_embd);
        convolve_row(c, op->conv, 0, c->normed, i, out);
        convert_row(op, out, i);
    }
}

static void convolve_outputs(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    int64_t n = c->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++) {
        float *out = c->convolved + row_at(i, n);
        convolve_row(c, op->conv, 1, c->delta, i, out);
        add_finished(op, i, out);
    }
}

Op *put_conv_inputs(Op *at, Op op, const BlockConv *conv, LayerMatrix kernels, ForwardKind kind) {
    CpuContext *c = op.c;
    const PackedMatrix *m = op.l->matrices[kernels];
    Op make =
        {.c = c, .layer = op.layer, .l = op.l, .norm = op.norm, .n_products = 1, .products = {{m, c->conv_kernels}}};
    at = put_op(at, make, FORWARD_NORM, norm_rows, c->n_rows, 0);
    at = put_op(at, make, kind, kernel_tiles, packed_n_tiles(m), c->n_rows);
    op.conv = conv;
    return put_op(at, op, FORWARD_NORM, convolve_inputs, c->n_rows, 0);
}

Op *put_convolved(Op *at, Op op, const BlockConv *conv) {
    op.conv = conv;
    return put_op(at, op, FORWARD_NORM, convolve_outputs, op.c->n_rows, 0);
}

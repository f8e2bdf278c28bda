/* input_squares.c - sums the squares of what the matrices of each layer read, for importance matrices.
 *
 * The sums are operations of the forward like others, which exist only while somebody wants them. Columns are divided
 * among threads and each is summed over the rows in their order, in double, so the sums do not depend on the threads. */
#include "backend/cpu/cpu.h"

void cpu_sum_inputs(Context *context, InputSquares *to) { ((CpuContext *)context)->squares = to; }

/* Columns [begin, end) of n_items. */
static void add_columns(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    double *sums = op->c->squares->sums[op->inputs] + op->layer * op->n_items;
    for (int64_t row = 0; row < op->c->n_rows; row++) {
        const float *x = op->x + row_at(row, op->n_items);
        for (int64_t i = begin; i < end; i++) sums[i] += (double)x[i] * (double)x[i];
    }
}

Op *input_squares_op(CpuContext *c, int32_t layer, InputKind kind, const float *x, int64_t n, Op *at) {
    if (!c->squares) return at;
    Op base = {.c = c, .layer = layer, .l = &c->weights->layers[layer], .x = x, .inputs = kind};
    return put_op(at, base, FORWARD_NORM, add_columns, n, 0);
}

/* input_squares.c - sums the squares of what the matrices of each layer read, for importance matrices.
 *
 * The sums are operations of the forward like others, which exist only while somebody wants them. Columns are divided
 * among threads and each is summed over the rows in their order, in double, so the sums do not depend on the threads.
 * An expert's rows are those of its places (experts.c), which lie in the order of the rows, so its sums do not depend on
 * the rows that other experts read either. */
#include "compute/cpu/cpu.h"

void cpu_sum_inputs(Context *context, InputSquares *to) { ((CpuContext *)context)->squares = to; }

static void add_squares(double *sums, const float *x, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) sums[i] += (double)x[i] * (double)x[i];
}

/* Columns [begin, end) of n_items. */
static void add_columns(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    double *sums = op->c->squares->sums[op->inputs] + op->layer * op->n_items;
    for (int64_t row = 0; row < op->c->n_rows; row++) add_squares(sums, op->x + row_at(row, op->n_items), begin, end);
}

Op *input_squares_op(CpuContext *c, int32_t layer, InputKind kind, const float *x, int64_t n, Op *at) {
    if (!c->squares) return at;
    Op base = {.c = c, .layer = layer, .l = &c->weights->layers[layer], .x = x, .inputs = kind};
    return put_op(at, base, FORWARD_NORM, add_columns, n, 0);
}

/* ---- experts --------------------------------------------------------------------------------------- */

static double *sums_of_expert(const Op *op, int32_t expert) {
    int64_t n_expert = layer_n_experts(op->l->spec);
    return op->c->squares->sums[op->inputs] + row_at(op->layer * n_expert + expert, op->n_items);
}

/* Columns [begin, end) of n_items, of the rows that chose each expert. The part with the first column counts the rows. */
static void add_gate_up_columns(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    for (int32_t k = 0; k < c->n_groups && begin < end; k++) {
        const ExpertGroup *g = &c->groups[k];
        double *sums = sums_of_expert(op, g->expert);
        for (int32_t i = g->first; i < g->first + g->n; i++)
            add_squares(sums, c->normed + row_at(c->place_rows[i], op->n_items), begin, end);
        if (begin == 0) c->squares->expert_rows[op->layer * layer_n_experts(op->l->spec) + g->expert] += g->n;
    }
}

static void add_down_columns(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    for (int32_t k = 0; k < c->n_groups; k++) {
        const ExpertGroup *g = &c->groups[k];
        double *sums = sums_of_expert(op, g->expert);
        for (int32_t i = g->first; i < g->first + g->n; i++)
            add_squares(sums, c->gate + row_at(i, op->n_items), begin, end);
    }
}

Op *expert_squares_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    if (!c->squares) return at;
    Op base = {.c = c, .layer = layer, .l = l, .inputs = INPUT_EXPERT_GATE_UP};
    at = put_op(at, base, FORWARD_NORM, add_gate_up_columns, l->matrices[MATRIX_EXPERT_GATE]->n_in, 0);
    base.inputs = INPUT_EXPERT_DOWN;
    return put_op(at, base, FORWARD_NORM, add_down_columns, l->matrices[MATRIX_EXPERT_DOWN]->n_in, 0);
}

/* layer_parts.c - what the operations of layers share: products with the scale of their matrix, norms, conversion of
 * activations, the residual stream, the gated feed-forward part, and the sums for importance matrices. layer.c,
 * experts.c, latent_attention.c and recurrent.c are built on these functions; this file calls none of theirs. */
#include "compute/cpu/cpu_ops.h"

#include "base/mem.h"

#include <string.h>

/* ---- products, norms and conversion ------------------------------------------------------------------------- */

void cpu_multiply(const CpuContext *c, const PackedMatrix *m, const void *acts, int64_t n_rows, float *y,
                  int64_t stride, int64_t first, int64_t last) {
    c->kernels->matmul(m, acts, n_rows, y, stride, first, last);
    if (m->scale == 1) return;
    int64_t from = first * TILE_ROWS, to = last * TILE_ROWS < m->n_out ? last * TILE_ROWS : m->n_out;
    for (int64_t i = 0; i < n_rows; i++) {
        float *row = y + row_at(i, stride);
        for (int64_t o = from; o < to; o++) row[o] *= m->scale;
    }
}

void convert_row(const Op *op, const float *x, int64_t i) {
    bool done[ACT_FORM_COUNT] = {false};
    for (int k = 0; k < op->n_products; k++) {
        const PackedMatrix *m = op->products[k].m;
        ActForm form = m->act;
        if (done[form]) continue;
        done[form] = true;
        char *out = (char *)op->c->acts[form] + row_at(i, (int64_t)act_row_bytes(form, m->n_in));
        op->c->kernels->act_convert(form, x, m->n_in, out);
    }
}

void convert_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    for (int64_t i = begin; i < end; i++) convert_row(op, op->x + row_at(i, op->products[0].m->n_in), i);
}

/* A layer of a drafter may have no norm here. */
void norm_row(const CpuContext *c, float *out, const float *x, const float *norm) {
    const Hparams *h = &c->model->hparams;
    if (norm) c->kernels->rmsnorm(out, x, norm, h->n_embd, h->rms_eps);
    else memcpy(out, x, (size_t)h->n_embd * sizeof *out);
}

void norm_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    int64_t n = op->c->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++) {
        float *normed = op->c->normed + row_at(i, n);
        norm_row(op->c, normed, op->c->x + row_at(i, n), op->norm);
        convert_row(op, normed, i);
    }
}

void cpu_finish_logits(const Hparams *h, const Kernels *kernels, float *logits, int64_t n) {
    for (int64_t i = 0; h->logit_scale != 1 && i < n; i++) logits[i] *= h->logit_scale;
    if (h->logit_cap > 0) kernels->soft_cap(logits, n, h->logit_cap);
}

/* ---- the residual stream ------------------------------------------------------------------------------------ */

bool op_finishes(const Op *op) {
    float scale = op->l->spec->residual_scale;
    return op->post_norm || (scale != 0 && scale != 1) || op->out_scale != 0;
}

void add_finished(const Op *op, int64_t i, float *delta) {
    const CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    int64_t n = h->n_embd;
    float scale = op->l->spec->residual_scale, *x = c->x + row_at(i, n);
    if (op->post_norm) c->kernels->rmsnorm(delta, delta, op->post_norm, n, h->rms_eps);
    for (int64_t k = 0; scale != 0 && k < n; k++) delta[k] *= scale;
    c->kernels->add(x, delta, n);
    for (int64_t k = 0; op->out_scale != 0 && k < n; k++) x[k] *= op->out_scale;
}

static void residual_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    int64_t n = op->c->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++) {
        float *delta = op->c->delta + row_at(i, n);
        if (op->bias) op->c->kernels->add(delta, op->bias, n);
        add_finished(op, i, delta);
    }
}

/* Computes tiles of the only product of an operation, and leaves them in its y; with the bias if a convolution reads
 * them. */
static void keep_tiles(const Op *op, const void *acts, int64_t begin, int64_t end) {
    const Product *p = &op->products[0];
    int64_t from = begin * TILE_ROWS, n = min_i64(end * TILE_ROWS, p->m->n_out) - from;
    cpu_multiply(op->c, p->m, acts, op->n_rows, p->y, p->m->n_out, begin, end);
    for (int64_t i = 0; op->conv && op->bias && i < op->n_rows; i++)
        op->c->kernels->add(p->y + row_at(i, p->m->n_out) + from, op->bias + from, n);
}

static void o_tiles_only(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    keep_tiles(op, op->c->acts[op->products[0].m->act], begin, end);
}

static void down_tiles_only(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    keep_tiles(op, op->c->ff_acts, begin, end);
}

/* Computes tiles of the only product of an operation, and adds them to the residual stream. */
static void add_tiles(const Op *op, const void *acts, int64_t begin, int64_t end) {
    CpuContext *c = op->c;
    const PackedMatrix *m = op->products[0].m;
    cpu_multiply(c, m, acts, op->n_rows, c->delta, m->n_out, begin, end);
    int64_t from = begin * TILE_ROWS, n = min_i64(end * TILE_ROWS, m->n_out) - from;
    for (int64_t i = 0; i < op->n_rows; i++) {
        float *delta = c->delta + row_at(i, m->n_out) + from;
        if (op->bias) c->kernels->add(delta, op->bias + from, n);
        c->kernels->add(c->x + row_at(i, m->n_out) + from, delta, n);
    }
}

static void o_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    add_tiles(op, op->c->acts[op->products[0].m->act], begin, end);
}

static void down_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    add_tiles(op, op->c->ff_acts, begin, end);
}

/* Returns what ranks exchange of a part whose outputs are added to the residual stream. */
static Exchange added_tiles(const Op *op) {
    CpuContext *c = op->c;
    return (Exchange){.rows = op_finishes(op) ? c->delta : c->x,
                      .n_rows = c->n_rows,
                      .n = c->model->hparams.n_embd,
                      .cut = CUT_TILES};
}

/* Puts a product whose outputs are added to the residual stream, either at once or by a further stage that finishes
 * them first. */
static Op *put_adding(Op *at, Op op, ForwardKind kind, OpFn add, OpFn keep, const float *post_norm) {
    const PackedMatrix *m = op.products[0].m;
    op.n_products = 1, op.post_norm = post_norm;
    bool finishes = op_finishes(&op);
    if (op.conv) return put_convolved(put_split(at, op, kind, keep, packed_n_tiles(m), op.c->n_rows), op, op.conv);
    at = put_split_exchange(at, op, kind, finishes ? keep : add, packed_n_tiles(m), op.c->n_rows, added_tiles(&op));
    return finishes ? put_finish(at, op) : at;
}

Op *put_added(Op *at, Op op) {
    at = put_exchange(at, op, FORWARD_NORM, added_tiles(&op));
    return op_finishes(&op) ? put_finish(at, op) : at;
}

Op *put_finish(Op *at, Op op) { return put_op(at, op, FORWARD_NORM, residual_rows, op.c->n_rows, 0); }

Op *put_o(Op *at, Op o) { return put_adding(at, o, FORWARD_O, o_tiles, o_tiles_only, o.l->spec->post_attn_norm); }

Op *put_down(Op *at, Op down, const float *post_norm) {
    return put_adding(at, down, FORWARD_DOWN, down_tiles, down_tiles_only, post_norm);
}

/* ---- gated feed-forward ------------------------------------------------------------------------------------- */

enum { FF_UNIT_TILES = ACT_BLOCK / TILE_ROWS };

/* Prepares the clamped SwiGLU for the kernel silu_mul, which computes g u / (1 + exp(-g)). With g = alpha x and u =
 * (y + 1) / alpha that is x (y + 1) / (1 + exp(-alpha x)). The comparisons keep NaN. */
static void clamp_swiglu(float *gate, float *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i] > SWIGLU_LIMIT ? SWIGLU_LIMIT : gate[i];
        float u = up[i] > SWIGLU_LIMIT ? SWIGLU_LIMIT : up[i] < -SWIGLU_LIMIT ? -SWIGLU_LIMIT : up[i];
        gate[i] = SWIGLU_ALPHA * g;
        up[i] = (u + 1) / SWIGLU_ALPHA;
    }
}

void activate(const Op *op, const PackedMatrix *down, int64_t i, int64_t from, int64_t n) {
    const CpuContext *c = op->c;
    size_t row_bytes = act_row_bytes(down->act, down->n_in);
    float *gate = c->gate + row_at(i, down->n_in) + from;
    float *up = c->up + row_at(i, down->n_in) + from;
    if (op->l->spec->activation == ACTIVATION_CLAMPED_SWIGLU) clamp_swiglu(gate, up, n);
    if (op->l->spec->activation == ACTIVATION_GELU) c->kernels->gelu_mul(gate, up, n);
    else c->kernels->silu_mul(gate, up, n);
    c->kernels->act_convert(down->act, gate, n,
                            (char *)c->ff_acts + (size_t)i * row_bytes + act_offset(down->act, from));
}

/* Returns the matrix that reads what gate_up_units computes: that of the dense part, or of the shared expert. */
static const PackedMatrix *down_of(const CpuLayer *l) {
    return l->matrices[l->spec->ffn == FFN_EXPERTS ? MATRIX_SHARED_DOWN : MATRIX_DOWN];
}

static void gate_up_units(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    int64_t n_ff = op->products[0].m->n_out, n_tiles = packed_n_tiles(op->products[0].m);
    for (int k = 0; k < 2; k++)
        cpu_multiply(c, op->products[k].m, c->acts[op->products[k].m->act], op->n_rows, op->products[k].y, n_ff,
                     begin * FF_UNIT_TILES, min_i64(end * FF_UNIT_TILES, n_tiles));
    int64_t from = begin * ACT_BLOCK, n = min_i64(end * ACT_BLOCK, n_ff) - from;
    bool is_shared = op->l->spec->ffn == FFN_EXPERTS; /* the shared expert, which has no biases */
    const float *biases[] = {is_shared ? NULL : op->l->spec->gate_bias, is_shared ? NULL : op->l->spec->up_bias};
    for (int64_t i = 0; i < op->n_rows; i++) {
        for (int k = 0; k < 2; k++)
            if (biases[k]) c->kernels->add(op->products[k].y + row_at(i, n_ff) + from, biases[k] + from, n);
        activate(op, down_of(op->l), i, from, n);
    }
}

Op gate_up_op(CpuContext *c, int32_t layer, const PackedMatrix *gate, const PackedMatrix *up) {
    const CpuLayer *l = &c->weights->layers[layer];
    return (Op){.c = c,
                .layer = layer,
                .l = l,
                .norm = l->spec->ffn_norm,
                .n_products = 2,
                .products = {{gate, c->gate}, {up, c->up}}};
}

/* Returns what ranks exchange of the inputs of `down`. */
static Exchange activated_blocks(CpuContext *c, const PackedMatrix *down, int64_t n_rows) {
    return (Exchange){.rows = c->ff_acts,
                      .n_rows = n_rows,
                      .n = down->n_in,
                      .cut = CUT_BLOCKS,
                      .is_acts = true,
                      .form = down->act};
}

Op *put_gate_up(Op *at, Op gate_up) {
    int64_t n_units = (gate_up.products[0].m->n_out + ACT_BLOCK - 1) / ACT_BLOCK;
    return put_split_exchange(at, gate_up, FORWARD_GATE_UP, gate_up_units, n_units, gate_up.c->n_rows,
                              activated_blocks(gate_up.c, down_of(gate_up.l), gate_up.c->n_rows));
}

Op *put_activated(Op *at, Op op, const PackedMatrix *down, int64_t n_rows) {
    return put_exchange(at, op, FORWARD_GATE_UP, activated_blocks(op.c, down, n_rows));
}

Op *shared_expert_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    const PackedMatrix *gate = l->matrices[MATRIX_SHARED_GATE], *down = l->matrices[MATRIX_SHARED_DOWN];
    Op gate_up = gate_up_op(c, layer, gate, l->matrices[MATRIX_SHARED_UP]);
    Op add = {.c = c, .layer = layer, .l = l, .n_products = 1, .products = {{down, c->shared_out}}};
    at = put_gate_up(at, gate_up);
    at = input_squares_op(c, layer, INPUT_SHARED_DOWN, c->gate, down->n_in, at);
    return put_split(at, add, FORWARD_DOWN, down_tiles_only, packed_n_tiles(down), c->n_rows);
}

/* ---- squares of inputs, for importance matrices ---------------------------------------------------------------
 *
 * The sums are operations of the forward, which exist only while they are wanted. Columns are divided among threads
 * and each is summed over the rows in their order, in double precision, so that the sums do not depend on the
 * threads. The rows of an expert are those of its places (experts.c), which are in the order of the rows, so that
 * its sums do not depend on the rows that other experts read. */

void cpu_sum_inputs(Context *context, InputSquares *to) { ((CpuContext *)context)->squares = to; }

static void add_squares(double *sums, const float *x, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) sums[i] += (double)x[i] * (double)x[i];
}

/* Adds the squares of columns [begin, end) of all rows. */
static void add_columns(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    double *sums = op->c->squares->sums[op->inputs] + op->layer * input_width(&op->c->model->hparams, op->inputs);
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

/* Adds the squares of columns [begin, end) of the rows that chose each expert. The part with the first column counts
 * the rows. */
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

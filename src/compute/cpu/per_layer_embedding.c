/* per_layer_embedding.c - the per-layer embeddings of Gemma 3n and 4 ("PLE", LayerSpec in model.h), as operations of
 * the parallel region.
 *
 *     e   = (norm(Winput x0 / sqrt(n_embd)) + sqrt(n_ple) table[token][layer]) / sqrt(2)
 *     x  += norm(Wout (gelu(Wgate x) * e))
 *
 * Before the first layer, the rows of the table are read for all layers at once, and x0 is converted into the form that
 * the matrices Winput of all layers read. With several ranks, each has the rows of its own tokens, as of the embedding.
 * Then each layer has these stages after its feed-forward part:
 *
 *     stage          items                         fused with it
 *     convert        rows
 *     input, gate    tiles of 16 outputs of both
 *     combine        rows                          norm, e, gelu(gate) * e, conversion for out
 *     out            tiles of 16 outputs           the norm, x += and the factor of the layer are a stage more
 *
 * The matrices are small beside the others: with several ranks, each computes input and gate in full.
 * Proof: test_reference.c, test_forward.c, test_ranks.c. */
#include "compute/cpu/cpu_ops.h"

#include <math.h>
#include <string.h>

/* Reads the rows of the table that this rank has. A row with an input of its own has no token, and gets zeros. */
static void read_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    const Share own = cpu_share_tokens(c->weights, cpu_rank(c->weights));
    int64_t n = (int64_t)h->n_layer * h->n_ple;
    float scale = sqrtf((float)h->n_ple);
    for (int64_t i = begin; i < end; i++) {
        float *row = c->ple + row_at(i, n);
        if (c->tokens[i] < 0) memset(row, 0, (size_t)n * sizeof *row);
        if (c->tokens[i] < own.first || c->tokens[i] >= own.last) continue;
        embedding_row(&c->weights->ple_table, c->tokens[i], row);
        for (int64_t k = 0; k < n; k++) row[k] *= scale;
    }
}

static void exchange_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)begin, (void)end, (void)i_thread;
    const CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    cpu_exchange_embeddings(c->weights, c->tokens, c->n_rows, (int64_t)h->n_layer * h->n_ple, c->ple);
}

static void convert_inputs(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const PackedMatrix *m = op->products[0].m;
    size_t row_bytes = act_row_bytes(m->act, m->n_in);
    for (int64_t i = begin; i < end; i++)
        op->c->kernels->act_convert(m->act, op->c->x + row_at(i, m->n_in), m->n_in,
                                    (char *)op->c->ple_acts + (size_t)i * row_bytes);
}

Op *ple_input_ops(CpuContext *c, Op *at) {
    Op base = {.c = c, .n_products = 1, .products = {{c->weights->layers[0].matrices[MATRIX_PLE_INPUT], NULL}}};
    at = put_op(at, base, FORWARD_EMBED, read_rows, c->n_rows, 0);
    if (cpu_comm(c->weights)) at = put_op(at, base, FORWARD_EMBED, exchange_rows, 1, 0);
    for (int32_t i = 0; i < c->model->hparams.n_layer; i++)
        at = input_squares_op(c, i, INPUT_EMBEDDING, c->x, c->model->hparams.n_embd, at);
    return put_op(at, base, FORWARD_EMBED, convert_inputs, c->n_rows, 0);
}

/* Computes tiles of the gate into c->gate, and then tiles of the input into c->up. */
static void product_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    int64_t n = packed_n_tiles(op->products[0].m);
    for (int k = 0; k < 2; k++, begin -= n, end -= n) {
        const Product *p = &op->products[k];
        int64_t first = begin > 0 ? begin : 0, last = min_i64(end, n);
        if (first < last)
            cpu_multiply(c, p->m, k ? c->ple_acts : c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, first, last);
    }
}

static void combine_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    const LayerSpec *l = op->l->spec;
    const PackedMatrix *out = op->l->matrices[MATRIX_PLE_OUT];
    int64_t n = h->n_ple;
    float of_input = 1 / sqrtf((float)h->n_embd), of_sum = sqrtf(0.5f);
    for (int64_t i = begin; i < end; i++) {
        float *e = c->up + row_at(i, n);
        for (int64_t k = 0; k < n; k++) e[k] *= of_input;
        c->kernels->rmsnorm(e, e, l->ple_input_norm, n, h->rms_eps);
        c->kernels->add(e, c->ple + row_at(i * h->n_layer + op->layer, n), n);
        for (int64_t k = 0; k < n; k++) e[k] *= of_sum;
        activate(op, out, i, 0, n);
    }
}

Op *ple_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    const Hparams *h = &c->model->hparams;
    const PackedMatrix *gate = l->matrices[MATRIX_PLE_GATE];
    Op both = {.c = c,
               .layer = layer,
               .l = l,
               .x = c->x,
               .n_products = 1,
               .products = {{gate, c->gate}, {l->matrices[MATRIX_PLE_INPUT], c->up}}};
    at = put_op(at, both, FORWARD_NORM, convert_rows, c->n_rows, 0);
    at = input_squares_op(c, layer, INPUT_STREAM, c->x, h->n_embd, at);
    both.n_products = 2;
    at = put_op(at, both, FORWARD_GATE_UP, product_tiles, 2 * packed_n_tiles(gate), c->n_rows);
    at = put_op(at, both, FORWARD_NORM, combine_rows, c->n_rows, 0);
    at = input_squares_op(c, layer, INPUT_PLE, c->gate, h->n_ple, at);
    Op out = {.c = c,
              .layer = layer,
              .l = l,
              .out_scale = l->spec->out_scale,
              .products = {{l->matrices[MATRIX_PLE_OUT], c->delta}}};
    return put_down(at, out, l->spec->ple_norm);
}

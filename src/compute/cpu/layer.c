/* layer.c - one layer of the forward, as operations of the parallel region.
 *
 *     x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x)      grouped queries: n_head / n_head_kv
 *     x += Wdown (silu(Wgate m) * (Wup m)),             m = norm(x)      heads share one key-value head
 *
 * The problem. There are small operations between the matrix products: bias, head norm, rotation, writing to the cache,
 * SiLU, conversion into the form that the next product reads, the residual. Each by itself is a pass over memory and a
 * stage, at whose end all threads wait for the last one; with one row it occupies one thread while the others are idle.
 *
 * The idea. An operation that needs only some outputs of a product is done by the thread that computed them, while they
 * are in its cache:
 *
 *     stage       items                     fused with it
 *     norm        rows                      conversion for q, k, v
 *     qkv         heads of q, k, v          bias, head norm, rotation; keys and values into the cache
 *     attention   row x KV head             conversion for o             (attention.c)
 *     o           tiles of 16 outputs       x +=
 *     norm        rows                      conversion for gate and up
 *     gate, up    32 outputs of both        silu(gate) * up, conversion for down
 *     down        tiles of 16 outputs       x +=
 *
 * Layers with a recurrent state are in recurrent.c, latent attention is in latent_attention.c, experts are in
 * experts.c, per-layer embeddings in per_layer_embedding.c, and the convolutions of block drafters in block_conv.c.
 *
 * If what a part adds to x has a norm or a factor of its own, o and down only multiply, and a further stage adds.
 *
 * Only a norm needs a whole row, and therefore a stage of its own. Activations are quantised in blocks of 32, which are
 * two tiles of gate and up, or some heads of attention. Where heads are not whole blocks (only in tiny models), the
 * conversion is a stage of its own. A unit of qkv is the smallest number of heads that fills whole tiles; a head of 64
 * is four tiles.
 *
 * Invariants. Each output results from the same operations in the same order as if every line of the table were
 * several stages. The down projection has activations of its own, because other threads may still multiply with those
 * of gate and up.
 *
 * Cost. A layer has seven stages; the gain is measured in research/DIARY.md. Proof: test_forward.c, test_golden.c,
 * test_reference.c.
 */
#include "compute/cpu/cpu_ops.h"
#include "base/mem.h"

#include <string.h>

/* ---- queries, keys and values --------------------------------------------------------------------- */

/* Returns the smallest number of heads that fills whole tiles. */
static int64_t heads_of_unit(int64_t head_dim) {
    int64_t n = 1;
    while (n * head_dim % TILE_ROWS) n++;
    return n;
}
/* Returns the units of the queries (k = 0), keys (1) or values (2) that this rank computes. */
static Share units_of(const Hparams *h, const CpuLayer *l, int k) {
    int64_t unit = heads_of_unit(layer_head_dim(h, l->spec)),
            heads = k ? 1 : layer_n_head(h, l->spec) / layer_n_head_kv(h, l->spec);
    return (Share){l->units.first * heads / unit, (l->units.last * heads + unit - 1) / unit};
}

/* Applies bias, norm and rotation to heads of one row. If cos_sin is NULL, there is no rotation. */
static void finish_heads(const Op *op, float *x, int64_t n_heads, const float *bias, const float *norm,
                         const float *cos_sin) {
    const Kernels *kn = op->c->kernels;
    const Hparams *h = &op->c->model->hparams;
    int64_t n = layer_head_dim(h, op->l->spec);
    if (bias) kn->add(x, bias, n_heads * n);
    for (int64_t i = 0; norm && i < n_heads; i++) kn->rmsnorm(x + i * n, x + i * n, norm, n, h->rms_eps);
    if (!cos_sin) return;
    kn->rope(h->rope.style, x, n_heads, n, op->c->model->ropes[op->l->spec->i_rope].params.n_rot, cos_sin);
}

static void store_heads(const Op *op, const float *x, int64_t first, int64_t n_heads,
                        char *(*place)(const CpuKv *, int32_t, int32_t), size_t at) {
    const CpuKv *kv = &op->c->kv[kv_group_of(op->l->spec)];
    int64_t dim = kv->head_dim;
    for (int64_t i = 0; i < n_heads; i++)
        op->c->kernels->kv_store(kv->type, x + i * dim, dim,
                                 place(kv, op->l->place, (int32_t)(first + i - op->l->units.first)) + at);
}

/* Copies the queries of heads [first, last) out of c->q_gated, where gates of the output are between them. */
static void take_queries(const Op *op, int64_t first, int64_t last) {
    const CpuContext *c = op->c;
    const Hparams *model = &c->model->hparams;
    int64_t dim = layer_head_dim(model, op->l->spec), n_head = layer_n_head(model, op->l->spec);
    for (int64_t i = 0; i < op->n_rows; i++)
        for (int64_t h = i * n_head + first; h < i * n_head + last; h++)
            memcpy(c->q + h * dim, c->q_gated + 2 * h * dim, (size_t)dim * sizeof *c->q);
}

/* Returns the number of heads of the queries (k = 0), keys (1) or values (2). */
static int64_t n_heads_of(const Hparams *h, const LayerSpec *l, int k) {
    return k ? layer_n_head_kv(h, l) : layer_n_head(h, l);
}

/* Computes units [begin, end) of the queries (k = 0), keys (1) or values (2). */
static void heads_of(const Op *op, int k, int64_t begin, int64_t end) {
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    const Product *p = &op->products[k];
    KvGroup group = kv_group_of(op->l->spec);
    const float *biases[] = {op->l->spec->q_bias, op->l->spec->k_bias, op->l->spec->v_bias},
                *norms[] = {op->l->spec->q_norm, op->l->spec->k_norm, op->l->spec->v_norm};
    int64_t dim = layer_head_dim(h, op->l->spec), unit = heads_of_unit(dim), tiles = unit * dim / TILE_ROWS;
    int64_t n_heads = n_heads_of(h, op->l->spec, k);
    int64_t first = begin * unit, last = min_i64(end * unit, n_heads), from = first * dim;
    if (k == 0 && op->l->spec->gates_output) tiles *= 2;
    cpu_multiply(c, p->m, c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, begin * tiles,
                 min_i64(end * tiles, packed_n_tiles(p->m)));
    if (k == 0 && op->l->spec->gates_output) take_queries(op, first, last);
    float *const y[] = {c->q, c->k, c->v};
    int64_t width = n_heads * dim;
    for (int64_t i = 0; i < op->n_rows; i++) {
        float *x = y[k] + row_at(i, width) + from;
        finish_heads(op, x, last - first, biases[k] ? biases[k] + from : NULL, norms[k],
                     k < 2 && op->l->spec->i_rope >= 0 ? cpu_angles(c, op->l, i) : NULL);
        if (k == 0) attention_round_queries(c, width, dim, i, first, last - first);
        else
            store_heads(op, x, first, last - first, k == 1 ? cpu_kv_keys : cpu_kv_values,
                        (size_t)c->rows[i].slots[group].own * c->kv[group].slot_bytes);
    }
}

/* Computes units [begin, end) of the queries (from k = 0 on), keys and values together. */
static void units_from(const Op *op, int k, int64_t begin, int64_t end) {
    for (; k < 3; k++) {
        Share own = units_of(&op->c->model->hparams, op->l, k);
        int64_t n = share_size(own), first = begin > 0 ? begin : 0, last = min_i64(end, n);
        if (first < last) heads_of(op, k, own.first + first, own.first + last);
        begin -= n, end -= n;
    }
}

static void qkv_units(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    units_from(op, 0, begin, end);
}

static void kv_units(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    units_from(op, 1, begin, end);
}

/* Converts the pairs that rows bring along, as norm_rows converts their norms. */
static void pair_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    for (int64_t i = begin; i < end; i++) convert_row(op, op->c->rows[i].input + op->c->model->hparams.n_embd, i);
}

static Op *dense_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    const Hparams *h = &c->model->hparams;
    const PackedMatrix *gate = l->matrices[MATRIX_GATE];
    Op gate_up = gate_up_op(c, layer, gate, l->matrices[MATRIX_UP]);
    if (l->spec->ffn_conv.base) at = put_conv_inputs(at, gate_up, &l->spec->ffn_conv, MATRIX_FFN_CONV, FORWARD_GATE_UP);
    else at = put_op(at, gate_up, FORWARD_NORM, norm_rows, c->n_rows, 0);
    at = input_squares_op(c, layer, INPUT_GATE_UP, c->normed, h->n_embd, at);
    at = put_gate_up(at, gate_up);
    at = input_squares_op(c, layer, INPUT_DOWN, c->gate, gate->n_out, at);
    Op down = {.c = c,
               .layer = layer,
               .l = l,
               .bias = l->spec->down_bias,
               .conv = l->spec->ffn_conv.base ? &l->spec->ffn_conv : NULL,
               .products = {{l->matrices[MATRIX_DOWN], c->delta}}};
    if (!l->spec->ple_norm) down.out_scale = l->spec->out_scale;
    at = put_down(at, down, l->spec->post_ffn_norm);
    return l->spec->ple_norm ? ple_ops(c, layer, at) : at;
}

static Op qkv_op(CpuContext *c, int32_t layer) {
    const CpuLayer *l = &c->weights->layers[layer];
    return (Op){.c = c,
                .layer = layer,
                .l = l,
                .norm = l->spec->attn_norm,
                .n_products = l->spec->shares_kv ? 1 : 3,
                .products = {{l->matrices[MATRIX_Q], l->spec->gates_output ? c->q_gated : c->q},
                             {l->matrices[MATRIX_K], c->k},
                             {l->matrices[MATRIX_V], c->v}}};
}

Op *store_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    Op kv = qkv_op(c, layer);
    kv.norm = NULL;
    at = put_op(at, kv, FORWARD_NORM, norm_rows, c->n_rows, 0);
    return put_op(at, kv, FORWARD_QKV, kv_units, 2 * share_size(units_of(&c->model->hparams, l, 1)), c->n_rows);
}

/* Writes the operations of attention, from the norm to the inputs of the output projection. */
static Op *read_ops(CpuContext *c, int32_t layer, Op *at) {
    const Hparams *h = &c->model->hparams;
    const CpuLayer *l = &c->weights->layers[layer];
    int64_t rows = c->n_rows, n_qkv = share_size(units_of(h, l, 0));
    if (!l->spec->shares_kv) n_qkv += 2 * share_size(units_of(h, l, 1));
    Op qkv = qkv_op(c, layer);
    if (l->spec->attn_conv.base) at = put_conv_inputs(at, qkv, &l->spec->attn_conv, MATRIX_ATTN_CONV, FORWARD_QKV);
    else at = put_op(at, qkv, FORWARD_NORM, l->spec->reads_pairs ? pair_rows : norm_rows, rows, 0);
    at = input_squares_op(c, layer, INPUT_QKV, c->normed, h->n_embd, at);
    at = put_op(at, qkv, FORWARD_QKV, qkv_units, n_qkv, rows);
    at = attention_ops(c, layer, at);
    at = input_squares_op(c, layer, INPUT_O, c->attended, layer_q_dim(h, l->spec), at);
    Op o = {.c = c,
            .layer = layer,
            .l = l,
            .x = c->attended,
            .n_products = 1,
            .products = {{l->matrices[MATRIX_O], c->delta}}};
    const PackedMatrix *m = l->matrices[MATRIX_O];
    Exchange heads = {.rows = c->attended, .n_rows = rows, .n = m->n_in, .cut = CUT_HEADS};
    if (!attention_converts(c, l->spec))
        return put_op(put_exchange(at, o, FORWARD_ATTENTION, heads), o, FORWARD_ATTENTION, convert_rows, rows, 0);
    heads.rows = c->acts[m->act], heads.is_acts = true, heads.form = m->act;
    return put_exchange(at, o, FORWARD_ATTENTION, heads);
}

static Op *mixer_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    Op o = {.c = c,
            .layer = layer,
            .l = l,
            .bias = l->spec->o_bias,
            .conv = l->spec->attn_conv.base ? &l->spec->attn_conv : NULL,
            .n_products = 1,
            .products = {{l->matrices[MATRIX_O], c->delta}}};
    at = layer_has_state(l->spec)         ? recurrent_ops(c, layer, at)
         : l->spec->mixer == MIXER_LATENT ? latent_ops(c, layer, at)
                                          : read_ops(c, layer, at);
    return put_o(at, o);
}

Op *layer_ops(CpuContext *c, int32_t layer, Op *at) {
    at = mixer_ops(c, layer, at);
    if (c->weights->layers[layer].spec->ffn == FFN_NONE) return at;
    return c->weights->layers[layer].spec->ffn == FFN_EXPERTS ? expert_ops(c, layer, at) : dense_ops(c, layer, at);
}

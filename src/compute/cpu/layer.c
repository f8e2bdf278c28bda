/* layer.c - one layer of the forward, as operations of the parallel region.
 *
 *     x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x)      grouped queries: n_head / n_head_kv
 *     x += Wdown (silu(Wgate m) * (Wup m)),             m = norm(x)      heads share one key-value head
 *
 * The problem. Between the matrix products lie small operations: bias, head norm, rotation, writing to the cache,
 * SiLU, conversion into the form that the next product reads, the residual. Each by itself is a pass over memory and
 * ends a stage, at which all threads wait for the last; with one row it occupies one thread while the others are
 * idle.
 *
 * The idea. What needs only some outputs of a product is done by the thread that computed them, while they are in its
 * cache:
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
 * Layers with a recurrent state: recurrent.c; with attention by latents: latent_attention.c.
 *
 * Where what a part adds has a norm or a factor of its own, o and down only multiply, and one stage more adds. Experts:
 * experts.c.
 *
 * Only a norm needs a whole row, and so a stage of its own. Activations are quantised in blocks of 32: two tiles of
 * gate and up, or some heads of attention; where head sizes are not whole blocks (tiny models only) the conversion is
 * a stage of its own. A unit of qkv is the smallest number of heads that fills whole tiles: a head of 64 is four
 * tiles.
 *
 * Invariants. Each output results from the same operations in the same order as if every line of the table were
 * several stages. The down projection has activations of its own, because other threads may still multiply with those
 * of gate and up.
 *
 * Cost. Seven stages a layer; research/DIARY.md has the measured gain. Proof: test_forward.c, test_golden.c,
 * test_reference.c.
 */
#include "compute/cpu/cpu.h"
#include "base/mem.h"

#include <string.h>

void norm_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    int64_t n = op->c->model->hparams.n_embd;
    for (int64_t i = begin; i < end; i++) {
        float *normed = op->c->normed + row_at(i, n);
        norm_row(op->c, normed, op->c->x + row_at(i, n), op->norm);
        convert_row(op, normed, i);
    }
}

/* ---- queries, keys and values --------------------------------------------------------------------- */

/* The fewest heads that fill whole tiles. */
static int64_t heads_of_unit(const Hparams *h) {
    int64_t n = 1;
    while (n * h->head_dim % TILE_ROWS) n++;
    return n;
}
static int64_t n_units(const Hparams *h, int64_t n_heads) {
    return (n_heads + heads_of_unit(h) - 1) / heads_of_unit(h);
}

/* Bias, norm and rotation of heads of one row; without rotation: cos_sin NULL. */
static void finish_heads(const Op *op, float *x, int64_t n_heads, const float *bias, const float *norm,
                         const float *cos_sin) {
    const Kernels *kn = op->c->kernels;
    const Hparams *h = &op->c->model->hparams;
    int64_t n = h->head_dim;
    if (bias) kn->add(x, bias, n_heads * n);
    for (int64_t i = 0; norm && i < n_heads; i++) kn->rmsnorm(x + i * n, x + i * n, norm, n, h->rms_eps);
    if (cos_sin) kn->rope(h->rope.style, x, n_heads, n, h->rope.n_rot, cos_sin);
}

static void store_heads(const Op *op, const float *x, int64_t first, int64_t n_heads,
                        char *(*place)(const CpuKv *, int32_t, int32_t), size_t at) {
    const CpuKv *kv = &op->c->kv[kv_group_of(op->l->spec)];
    int64_t dim = op->c->model->hparams.head_dim;
    for (int64_t i = 0; i < n_heads; i++)
        op->c->kernels->kv_store(kv->type, x + i * dim, dim, place(kv, op->l->place, (int32_t)(first + i)) + at);
}

/* The queries of heads [first, last) from between the gates of the output. */
static void take_queries(const Op *op, int64_t first, int64_t last) {
    const CpuContext *c = op->c;
    int64_t dim = c->model->hparams.head_dim, n_head = c->model->hparams.n_head;
    for (int64_t i = 0; i < op->n_rows; i++)
        for (int64_t h = i * n_head + first; h < i * n_head + last; h++)
            memcpy(c->q + h * dim, c->q_gated + 2 * h * dim, (size_t)dim * sizeof *c->q);
}

/* Units [begin, end) of matrix k: 0 queries, 1 keys, 2 values. */
static void heads_of(const Op *op, int k, int64_t begin, int64_t end) {
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    const Product *p = &op->products[k];
    KvGroup group = kv_group_of(op->l->spec);
    const float *biases[] = {op->l->spec->q_bias, op->l->spec->k_bias, op->l->spec->v_bias},
                *norms[] = {op->l->spec->q_norm, op->l->spec->k_norm, NULL};
    int64_t unit = heads_of_unit(h), tiles = unit * h->head_dim / TILE_ROWS;
    int64_t first = begin * unit, last = min_i64(end * unit, k ? h->n_head_kv : h->n_head), from = first * h->head_dim;
    if (k == 0 && op->l->spec->gates_output) tiles *= 2;
    cpu_multiply(c, p->m, c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, begin * tiles,
                 min_i64(end * tiles, packed_n_tiles(p->m)));
    if (k == 0 && op->l->spec->gates_output) take_queries(op, first, last);
    float *const y[] = {c->q, c->k, c->v};
    int64_t width = (k ? h->n_head_kv : h->n_head) * (int64_t)h->head_dim;
    for (int64_t i = 0; i < op->n_rows; i++) {
        float *x = y[k] + row_at(i, width) + from;
        finish_heads(op, x, last - first, biases[k] ? biases[k] + from : NULL, norms[k],
                     k < 2 && op->l->spec->i_rope >= 0 ? cpu_angles(c, op->l, i) : NULL);
        if (k == 0) attention_round_queries(c, i, first, last - first);
        else
            store_heads(op, x, first, last - first, k == 1 ? cpu_kv_keys : cpu_kv_values,
                        (size_t)c->rows[i].slots[group].own * c->kv[group].slot_bytes);
    }
}

static void qkv_units(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const Hparams *h = &op->c->model->hparams;
    for (int k = 0; k < 3; k++) {
        int64_t n = n_units(h, k ? h->n_head_kv : h->n_head), first = begin > 0 ? begin : 0, last = min_i64(end, n);
        if (first < last) heads_of(op, k, first, last);
        begin -= n, end -= n;
    }
}

/* ---- the other operations ----------------------------------------------------------------------------------- */

void convert_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    for (int64_t i = begin; i < end; i++) convert_row(op, op->x + row_at(i, op->products[0].m->n_in), i);
}

/* Whether what attention or feed-forward adds must be finished first: a stage of its own then adds it. */
static bool finishes_rows(const LayerSpec *l, const float *post_norm) {
    return post_norm || (l->residual_scale != 0 && l->residual_scale != 1);
}

void add_to_residual(const Op *op, int64_t i) {
    const CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    int64_t n = h->n_embd;
    float *delta = c->delta + row_at(i, n), scale = op->l->spec->residual_scale;
    if (op->bias) c->kernels->add(delta, op->bias, n);
    if (op->post_norm) c->kernels->rmsnorm(delta, delta, op->post_norm, n, h->rms_eps);
    for (int64_t k = 0; scale != 0 && k < n; k++) delta[k] *= scale;
    c->kernels->add(c->x + row_at(i, n), delta, n);
}

static void residual_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    for (int64_t i = begin; i < end; i++) add_to_residual(op, i);
}

/* Tiles of the one product of the operation, left in its y. */
static void keep_tiles(const Op *op, const void *acts, int64_t begin, int64_t end) {
    const Product *p = &op->products[0];
    cpu_multiply(op->c, p->m, acts, op->n_rows, p->y, p->m->n_out, begin, end);
}

static void o_tiles_only(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    keep_tiles(op, op->c->acts[op->products[0].m->act], begin, end);
}

static void down_tiles_only(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    keep_tiles(op, op->c->ff_acts, begin, end);
}

/* Tiles of the one product of the operation, added to the residual stream. */
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

enum { FF_UNIT_TILES = ACT_BLOCK / TILE_ROWS };

/* The kernel has silu(g) u, which is g u / (1 + exp(-g)). With g = alpha x and u = (up x + 1) / alpha that is
 * x (up x + 1) / (1 + exp(-alpha x)). Comparisons keep NaN. */
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

static void gate_up_units(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    int64_t n_ff = op->products[0].m->n_out, n_tiles = packed_n_tiles(op->products[0].m);
    for (int k = 0; k < 2; k++)
        cpu_multiply(c, op->products[k].m, c->acts[op->products[k].m->act], op->n_rows, op->products[k].y, n_ff,
                     begin * FF_UNIT_TILES, min_i64(end * FF_UNIT_TILES, n_tiles));
    int64_t from = begin * ACT_BLOCK, n = min_i64(end * ACT_BLOCK, n_ff) - from;
    const PackedMatrix *down = op->l->matrices[op->l->spec->ffn == FFN_EXPERTS ? MATRIX_SHARED_DOWN : MATRIX_DOWN];
    for (int64_t i = 0; i < op->n_rows; i++) activate(op, down, i, from, n);
}

/* A product that adds to the residual stream: at once, or after a stage that finishes what is added. */
static Op *put_adding(Op *at, Op op, ForwardKind kind, OpFn add, OpFn keep, const float *post_norm) {
    int64_t rows = op.c->n_rows, n_tiles = packed_n_tiles(op.products[0].m);
    op.n_products = 1, op.post_norm = post_norm;
    if (!finishes_rows(op.l->spec, post_norm)) return put_op(at, op, kind, add, n_tiles, rows);
    at = put_op(at, op, kind, keep, n_tiles, rows);
    return put_op(at, op, FORWARD_NORM, residual_rows, rows, 0);
}

static Op gate_up_op(CpuContext *c, int32_t layer, const PackedMatrix *gate, const PackedMatrix *up) {
    const CpuLayer *l = &c->weights->layers[layer];
    return (Op){.c = c,
                .layer = layer,
                .l = l,
                .norm = l->spec->ffn_norm,
                .n_products = 2,
                .products = {{gate, c->gate}, {up, c->up}}};
}

static int64_t ff_units(const PackedMatrix *gate) { return (gate->n_out + ACT_BLOCK - 1) / ACT_BLOCK; }

Op *shared_expert_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    const PackedMatrix *gate = l->matrices[MATRIX_SHARED_GATE], *down = l->matrices[MATRIX_SHARED_DOWN];
    Op gate_up = gate_up_op(c, layer, gate, l->matrices[MATRIX_SHARED_UP]);
    Op add = {.c = c, .layer = layer, .l = l, .n_products = 1, .products = {{down, c->shared_out}}};
    at = put_op(at, gate_up, FORWARD_GATE_UP, gate_up_units, ff_units(gate), c->n_rows);
    at = input_squares_op(c, layer, INPUT_SHARED_DOWN, c->gate, down->n_in, at);
    return put_op(at, add, FORWARD_DOWN, down_tiles_only, packed_n_tiles(down), c->n_rows);
}

static Op *dense_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    const Hparams *h = &c->model->hparams;
    const PackedMatrix *gate = l->matrices[MATRIX_GATE];
    Op gate_up = gate_up_op(c, layer, gate, l->matrices[MATRIX_UP]);
    at = put_op(at, gate_up, FORWARD_NORM, norm_rows, c->n_rows, 0);
    at = input_squares_op(c, layer, INPUT_GATE_UP, c->normed, h->n_embd, at);
    at = put_op(at, gate_up, FORWARD_GATE_UP, gate_up_units, ff_units(gate), c->n_rows);
    at = input_squares_op(c, layer, INPUT_DOWN, c->gate, h->n_ff, at);
    Op down = {.c = c, .layer = layer, .l = l, .products = {{l->matrices[MATRIX_DOWN], c->delta}}};
    return put_adding(at, down, FORWARD_DOWN, down_tiles, down_tiles_only, l->spec->post_ffn_norm);
}

/* What reads earlier positions, up to the inputs of o. */
static Op *read_ops(CpuContext *c, int32_t layer, Op *at) {
    const Hparams *h = &c->model->hparams;
    const CpuLayer *l = &c->weights->layers[layer];
    int64_t rows = c->n_rows, n_qkv = n_units(h, h->n_head) + 2 * n_units(h, h->n_head_kv);
    Op qkv = {.c = c,
              .layer = layer,
              .l = l,
              .norm = l->spec->attn_norm,
              .n_products = 3,
              .products = {{l->matrices[MATRIX_Q], l->spec->gates_output ? c->q_gated : c->q},
                           {l->matrices[MATRIX_K], c->k},
                           {l->matrices[MATRIX_V], c->v}}};
    at = put_op(at, qkv, FORWARD_NORM, norm_rows, rows, 0);
    at = input_squares_op(c, layer, INPUT_QKV, c->normed, h->n_embd, at);
    at = put_op(at, qkv, FORWARD_QKV, qkv_units, n_qkv, rows);
    at = attention_ops(c, layer, at);
    at = input_squares_op(c, layer, INPUT_O, c->attended, hparams_q_dim(h), at);
    Op o = {.c = c,
            .layer = layer,
            .l = l,
            .x = c->attended,
            .n_products = 1,
            .products = {{l->matrices[MATRIX_O], c->delta}}};
    return attention_converts(c) ? at : put_op(at, o, FORWARD_ATTENTION, convert_rows, rows, 0);
}

static Op *mixer_ops(CpuContext *c, int32_t layer, Op *at) {
    const CpuLayer *l = &c->weights->layers[layer];
    Op o = {.c = c,
            .layer = layer,
            .l = l,
            .bias = l->spec->o_bias,
            .n_products = 1,
            .products = {{l->matrices[MATRIX_O], c->delta}}};
    at = layer_has_state(l->spec)         ? recurrent_ops(c, layer, at)
         : l->spec->mixer == MIXER_LATENT ? latent_ops(c, layer, at)
                                          : read_ops(c, layer, at);
    return put_adding(at, o, FORWARD_O, o_tiles, o_tiles_only, l->spec->post_attn_norm);
}

Op *layer_ops(CpuContext *c, int32_t layer, Op *at) {
    at = mixer_ops(c, layer, at);
    if (c->weights->layers[layer].spec->ffn == FFN_NONE) return at;
    return c->weights->layers[layer].spec->ffn == FFN_EXPERTS ? expert_ops(c, layer, at) : dense_ops(c, layer, at);
}

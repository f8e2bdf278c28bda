/* latent_attention.c - multi-head latent attention (DeepSeek-V2, arXiv 2405.04434; LatentSpec in model.h), as
 * operations of the parallel region.
 *
 * The problem. A cache with a key and a value for each of 128 heads limits long contexts. These models compute all keys
 * and values of a position from one latent of 512 numbers, and one rotated key of 64 numbers that the heads share.
 * Computed as written (equations 9 to 19 of the paper), every key and value of the context would be computed again for
 * each new row.
 *
 * The idea. k_t = Wk_b' c_t, so q . k_t = (Wk_b q) . c_t: the matrix is applied once to the query instead of to every
 * key ("absorbed"), and likewise sum of w_t Wv_b c_t = Wv_b (sum of w_t c_t). What remains is attention over one KV
 * head, whose keys are [c_t, rotated key] and whose values are the same c_t. attention.c computes it; the values are
 * the first `rank` numbers of the keys. So a position takes rank + n_rot numbers in each layer, once, in the ordinary
 * pages of the cache:
 *
 *     stage       items                    fused with it
 *     norm        rows                     conversion for q_a (or q) and kv_a
 *     down        tiles of kv_a, q_a (q)
 *     latents     rows                     norms of both latents; rotation; the row of the cache; conversion for q_b
 *     q_b         tiles                    (where queries are computed from a latent)
 *     absorb      heads                    Wk_b of the plain components; rotation of the others
 *     attention   row x some heads         (attention.c)
 *     values      heads                    Wv_b
 *     convert     rows                     for o
 *
 * Example. DeepSeek-V3 caches 576 numbers a token and layer, 1152 bytes in F16, instead of 128 x (192 + 128) = 40960.
 *
 * Invariants. Every output depends only on its own row, the latents that it sees and the kernel table: products of
 * heads convert and multiply each row by itself, and attention keeps its own contract. Where the rank is not a multiple
 * of 32, a block of a Q8 cache holds components of both parts, which changes nothing, because values are read as the
 * first numbers of the keys.
 *
 * Cost. Attention multiplies rank + n_rot + rank instead of 192 + 128 numbers a head and key: three times the
 * arithmetic for 1/35 of the memory. For long prompts it is the more expensive form. It loses in models with few heads,
 * whose latent is as large as their keys and values.
 *
 * Proof: test_reference.c (double precision), test_golden_own.c (llama.cpp, and keys and values made as written),
 * test_forward.c. */
#include "compute/cpu/cpu_ops.h"
#include "base/mem.h"

#include <string.h>

size_t latent_act_bytes(const CpuLayer *l) {
    const PackedMatrix *k_b = l->matrices[MATRIX_K_B], *v_b = l->matrices[MATRIX_V_B];
    size_t a = act_row_bytes(k_b->act, k_b->n_in), b = act_row_bytes(v_b->act, v_b->n_in);
    return a > b ? a : b;
}

/* ---- latents ----------------------------------------------------------------------------------------- */

/* Returns the tiles of a product that this rank computes: its heads of the queries, and all of the latents. */
static Share own_tiles(const CpuContext *c, const CpuLayer *l, const PackedMatrix *m) {
    if (m != l->matrices[MATRIX_Q]) return (Share){0, packed_n_tiles(m)};
    return cpu_share_tiles(c->weights, l->spec, MATRIX_Q, m);
}

/* Computes tiles of the products of the operation, which are counted one product after another. */
static void product_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    for (int k = 0; k < op->n_products; k++) {
        const Product *p = &op->products[k];
        Share own = own_tiles(c, op->l, p->m);
        int64_t n = share_size(own), first = begin > 0 ? begin : 0, last = min_i64(end, n);
        if (first < last)
            cpu_multiply(c, p->m, c->acts[p->m->act], op->n_rows, p->y, p->m->n_out, own.first + first,
                         own.first + last);
        begin -= n, end -= n;
    }
}

static Op *put_products(Op *at, Op op) {
    int64_t n = 0;
    for (int k = 0; k < op.n_products; k++) n += share_size(own_tiles(op.c, op.l, op.products[k].m));
    return put_op(at, op, FORWARD_QKV, product_tiles, n, op.c->n_rows);
}

static void latent_rows(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    const LatentSpec *l = &op->l->spec->latent;
    const CpuKv *kv = &c->kv[KV_ALL];
    const int64_t rank = h->latent.rank, n_rot = h->rope.n_rot, n_q = h->latent.q_rank;
    for (int64_t i = begin; i < end; i++) {
        float *k = c->k + row_at(i, h->head_dim), *q = n_q ? c->q_latent + row_at(i, n_q) : NULL;
        c->kernels->rmsnorm(k, k, l->kv_a_norm, rank, h->rms_eps);
        c->kernels->rope(h->rope.style, k + rank, 1, n_rot, n_rot, cpu_angles(c, op->l, i));
        c->kernels->kv_store(kv->type, k, h->head_dim,
                             cpu_kv_keys(kv, op->l->place, 0) + (size_t)c->rows[i].slots[KV_ALL].own * kv->slot_bytes);
        if (!op->l->matrices[MATRIX_Q_A]) continue;
        c->kernels->rmsnorm(q, q, l->q_a_norm, n_q, h->rms_eps);
        convert_row(op, q, i);
    }
}

/* ---- heads ------------------------------------------------------------------------------------------- */

/* Multiplies the matrix of one head with rows of x, which are x_stride apart, into rows of y, which are y_stride
 * apart. */
static void multiply_head(const Op *op, const PackedMatrix *m, int64_t head, const float *x, int64_t x_stride, float *y,
                          int64_t y_stride) {
    CpuContext *c = op->c;
    size_t bytes = act_row_bytes(m->act, m->n_in);
    char *acts = (char *)c->head_acts + (size_t)(head * c->options.max_rows) * latent_act_bytes(op->l);
    for (int64_t i = 0; i < c->n_rows; i++)
        c->kernels->act_convert(m->act, x + row_at(i, x_stride), m->n_in, acts + (size_t)i * bytes);
    cpu_multiply(c, m, acts, c->n_rows, y, y_stride, 0, packed_n_tiles(m));
}

static void absorb_heads(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    const int64_t rank = h->latent.rank, n_rot = h->rope.n_rot, n_plain = h->latent.plain_dim, q_dim = hparams_q_dim(h);
    for (int64_t head = begin; head < end; head++) {
        const float *queries = c->queries + head * (n_plain + n_rot);
        float *q = c->q + head * h->head_dim;
        multiply_head(op, &op->l->matrices[MATRIX_K_B][head], head, queries, latent_query_dim(h), q, q_dim);
        for (int64_t i = 0; i < c->n_rows; i++) {
            float *turned = q + row_at(i, q_dim) + rank;
            memcpy(turned, queries + row_at(i, latent_query_dim(h)) + n_plain, (size_t)n_rot * sizeof *turned);
            c->kernels->rope(h->rope.style, turned, 1, n_rot, n_rot, cpu_angles(c, op->l, i));
            attention_round_queries(c, q_dim, h->head_dim, i, head, 1);
        }
    }
}

static void value_heads(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    const CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    for (int64_t head = begin; head < end; head++)
        multiply_head(op, &op->l->matrices[MATRIX_V_B][head], head, c->attended + head * h->latent.rank,
                      (int64_t)h->n_head * h->latent.rank, c->head_values + head * h->latent.value_dim,
                      latent_values_dim(h));
}

/* ---- operations -------------------------------------------------------------------------------------- */

Op *latent_ops(CpuContext *c, int32_t layer, Op *at) {
    const Hparams *h = &c->model->hparams;
    const CpuLayer *l = &c->weights->layers[layer];
    const int64_t rows = c->n_rows, n_heads = share_size(l->units) * attention_group(h, l->spec);
    const bool has_q_latent = l->matrices[MATRIX_Q_A] != NULL;
    const Op base = {.c = c, .layer = layer, .l = l};
    Op down = base;
    down.norm = l->spec->attn_norm, down.n_products = 2;
    down.products[0] = (Product){l->matrices[MATRIX_KV_A], c->k};
    down.products[1] = has_q_latent ? (Product){l->matrices[MATRIX_Q_A], c->q_latent}
                                    : (Product){l->matrices[MATRIX_Q], c->queries};
    at = put_op(at, down, FORWARD_NORM, norm_rows, rows, 0);
    at = input_squares_op(c, layer, INPUT_QKV, c->normed, h->n_embd, at);
    at = put_products(at, down);

    Op queries = base;
    queries.n_products = 1, queries.products[0] = (Product){l->matrices[MATRIX_Q], c->queries};
    at = put_op(at, queries, FORWARD_QKV, latent_rows, rows, 0);
    at = input_squares_op(c, layer, INPUT_LATENT, c->k, h->head_dim, at);
    if (has_q_latent) at = input_squares_op(c, layer, INPUT_Q_LATENT, c->q_latent, h->latent.q_rank, at);
    if (has_q_latent) at = put_products(at, queries);

    Op heads = base;
    heads.first_item = l->units.first * attention_group(h, l->spec);
    heads.n_products = 1, heads.products[0] = (Product){l->matrices[MATRIX_K_B], c->q};
    at = input_squares_op(c, layer, INPUT_LATENT_QUERIES, c->queries, latent_query_dim(h), at);
    at = put_op(at, heads, FORWARD_QKV, absorb_heads, n_heads, rows);
    at = attention_ops(c, layer, at);
    at = input_squares_op(c, layer, INPUT_READ_LATENTS, c->attended, (int64_t)h->n_head * h->latent.rank, at);
    heads.products[0] = (Product){l->matrices[MATRIX_V_B], c->head_values};
    at = put_op(at, heads, FORWARD_O, value_heads, n_heads, rows);
    at = input_squares_op(c, layer, INPUT_LATENT_O, c->head_values, latent_values_dim(h), at);

    Op o = {.c = c,
            .layer = layer,
            .l = l,
            .x = c->head_values,
            .n_products = 1,
            .products = {{l->matrices[MATRIX_O], c->delta}}};
    Exchange values = {.rows = c->head_values, .n_rows = rows, .n = latent_values_dim(h), .cut = CUT_HEADS};
    return put_op(put_exchange(at, o, FORWARD_O, values), o, FORWARD_O, convert_rows, rows, 0);
}

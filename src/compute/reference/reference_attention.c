/* reference_attention.c - attention and latent attention in double precision (reference_forward.c). */
#include "compute/reference/reference.h"

#include "base/math_functions.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <string.h>

/* Rotates the pairs of one head by the angles of a position. */
static void rotate(const Rope *rope, int32_t position, double *x) {
    int32_t half = rope->params.n_rot / 2;
    for (int32_t i = 0; i < half; i++) {
        bool adjacent = rope->params.style == ROPE_PAIRS;
        double *a = adjacent ? &x[2 * i] : &x[i], *b = adjacent ? &x[2 * i + 1] : &x[i + half];
        double sine, cosine;
        math_sin_cos(position * rope->freqs[i], &sine, &cosine);
        sine *= rope->magnitude, cosine *= rope->magnitude;
        double re = *a * cosine - *b * sine, im = *a * sine + *b * cosine;
        *a = re, *b = im;
    }
}

/* Adds the bias to the heads of one row, norms them and rotates them. Values are not rotated: rope is NULL. */
static void finish_heads(const RefContext *c, double *x, int32_t n_heads, int32_t dim, const float *bias,
                         const float *norm, const Rope *rope, int32_t position) {
    for (int32_t i = 0; bias && i < n_heads * dim; i++) x[i] += (double)bias[i];
    for (int32_t h = 0; h < n_heads; h++) {
        if (norm) reference_rmsnorm(x + h * dim, norm, dim, (double)c->model->hparams.rms_eps, x + h * dim);
        if (rope) rotate(rope, position, x + h * dim);
    }
}

/* Rounds the heads of a key or value to the type of the cache. */
static void round_to_cache(const RefContext *c, double *x, int32_t n_heads, int32_t dim) {
    float block[KV_BLOCK];
    char bytes[KV_BLOCK_BYTES];
    for (int32_t h = 0; c->options.kv_type != KV_F32 && h < n_heads; h++, x += dim)
        for (int32_t i = 0; i < dim; i += KV_BLOCK) {
            int32_t n = dim - i < KV_BLOCK ? dim - i : KV_BLOCK;
            for (int32_t k = 0; k < KV_BLOCK; k++) block[k] = k < n ? (float)x[i + k] : 0;
            if (c->options.kv_type == KV_Q8) {
                blocks_quantize(TYPE_Q8_0, block, KV_BLOCK, bytes);
                blocks_dequantize(TYPE_Q8_0, bytes, KV_BLOCK, block);
            }
            for (int32_t k = 0; k < n; k++)
                x[i + k] = (double)(c->options.kv_type == KV_F16 ? half_to_float(float_to_half(block[k])) : block[k]);
        }
}

/* Returns the slot of the key at a logical position that the row sees. */
static int32_t slot_at(const RowPlace *r, KvGroup group, int32_t position) {
    const RowSlots *s = &r->slots[group];
    return position < r->n_prefix ? s->prefix[position] : s->path[position - r->n_prefix];
}

/* Computes attention for one query head of one row, q [head_dim], out [value_dim]. `layer` counts the layers of the
 * cache. */
static void attend(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *r, int32_t head,
                   const double *q, double *out) {
    const Hparams *h = &c->model->hparams;
    int64_t slot_dim = reference_slot_dim(c), dim = layer_head_dim(h, l), n_values = layer_value_dim(h, l);
    int64_t at = head / (layer_n_head(h, l) / layer_n_head_kv(h, l)) * dim;
    KvGroup group = kv_group_of(l);
    const double *keys = reference_kv(c, group, layer, 0) + at, *values = reference_kv(c, group, layer, 1) + at;
    int32_t n = (int32_t)row_n_keys(r, l), first = (int32_t)layer_first_key(l, (int64_t)r->position + 1);
    double largest = l->sinks ? (double)l->sinks[head] : -INFINITY;
    for (int32_t t = first; t < n; t++) {
        double score = 0;
        for (int64_t d = 0; d < dim; d++) score += q[d] * keys[slot_at(r, group, t) * slot_dim + d];
        score *= l->attn_scale > 0 ? (double)l->attn_scale : 1 / sqrt((double)dim);
        score *= temperature_factor(&l->temperature, r->position);
        if (l->soft_cap > 0) score = (double)l->soft_cap * math_tanh(score / (double)l->soft_cap);
        c->scores[t] = score;
        largest = fmax(largest, score);
    }
    double total = l->sinks ? math_exp((double)l->sinks[head] - largest) : 0;
    for (int32_t t = first; t < n; t++) total += c->scores[t] = math_exp(c->scores[t] - largest);
    memset(out, 0, (size_t)n_values * sizeof *out);
    for (int32_t t = first; t < n; t++)
        for (int64_t d = 0; d < n_values; d++)
            out[d] += c->scores[t] / total * values[slot_at(r, group, t) * slot_dim + d];
}

/* Separates queries and gates, which alternate head by head. */
static void take_gates(const RefContext *c, const LayerSpec *l, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t dim = h->head_dim;
    for (int64_t i = 0; i < (int64_t)n_rows * layer_n_head(h, l); i++)
        for (int64_t d = 0; d < dim; d++) {
            c->output_gates[i * dim + d] = c->q[(2 * i + 1) * dim + d];
            c->q[i * dim + d] = c->q[2 * i * dim + d];
        }
}

static const Rope *rope_of(const RefContext *c, const LayerSpec *l) {
    return l->i_rope < 0 ? NULL : model_rope(c->model, l->i_rope, c->options.n_ctx);
}

void reference_store_keys(const RefContext *c, const LayerSpec *l, int32_t place, const RowPlace *rows,
                          int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t kv_dim = layer_kv_dim(h, l), slot_dim = reference_slot_dim(c);
    int32_t n_kv = layer_n_head_kv(h, l), dim = layer_head_dim(h, l);
    KvGroup group = kv_group_of(l);
    reference_product_of(c, l, MATRIX_K, 0, c->normed, n_rows, c->k);
    reference_product_of(c, l, MATRIX_V, 0, c->normed, n_rows, c->v);
    for (int32_t i = 0; i < n_rows; i++) {
        double *k = c->k + i * kv_dim, *v = c->v + i * kv_dim;
        finish_heads(c, k, n_kv, dim, l->k_bias, l->k_norm, rope_of(c, l), rows[i].position);
        finish_heads(c, v, n_kv, dim, l->v_bias, l->v_norm, NULL, 0);
        round_to_cache(c, k, n_kv, dim);
        round_to_cache(c, v, n_kv, dim);
        int64_t slot = rows[i].slots[group].own;
        memcpy(reference_kv(c, group, place, 0) + slot * slot_dim, k, (size_t)kv_dim * sizeof *k);
        memcpy(reference_kv(c, group, place, 1) + slot * slot_dim, v, (size_t)kv_dim * sizeof *v);
    }
}

void reference_attention(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t q_dim = layer_q_dim(h, l);
    int32_t place = model_mixer_place(c->model, layer), n_head = layer_n_head(h, l), dim = layer_head_dim(h, l);
    reference_product_of(c, l, MATRIX_Q, 0, c->normed, n_rows, c->q);
    if (l->gates_output) take_gates(c, l, n_rows);
    for (int32_t i = 0; i < n_rows; i++)
        finish_heads(c, c->q + i * q_dim, n_head, dim, l->q_bias, l->q_norm, rope_of(c, l), rows[i].position);
    if (!l->shares_kv) reference_store_keys(c, l, place, rows, n_rows);
    for (int32_t i = 0; i < n_rows; i++)
        for (int32_t head = 0; head < n_head; head++) {
            int64_t at = i * q_dim + (int64_t)head * dim;
            attend(c, l, place, &rows[i], head, c->q + at, c->attended + at);
        }
    for (int64_t i = 0; l->gates_output && i < n_rows * q_dim; i++) c->attended[i] /= 1 + math_exp(-c->output_gates[i]);
    reference_square_inputs(c, l, INPUT_O, c->attended, q_dim, n_rows);
    reference_product_of(c, l, MATRIX_O, 0, c->attended, n_rows, c->delta);
    reference_add_bias(l->o_bias, n_rows, h->n_embd, c->delta);
}

/* ---- latent attention (LatentSpec in model.h) -------------------------------------------------------- */

/* The cache holds for each position its latent after the norm, and then the rotated key that all heads share. A query
 * is brought into that form, so that ordinary attention over one KV head does the rest: its values are the first `rank`
 * numbers of its keys, and the values of a head are made of what it read. */

/* Stores the latents and rotated keys of the rows in the cache. */
static void store_latents(const RefContext *c, const LayerSpec *spec, int32_t place, const Rope *rope,
                          const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    const LatentSpec *l = &spec->latent;
    int64_t dim = h->head_dim, rank = h->latent.rank;
    reference_product_of(c, spec, MATRIX_KV_A, 0, c->normed, n_rows, c->k);
    for (int32_t i = 0; i < n_rows; i++) {
        double *k = c->k + i * dim;
        reference_rmsnorm(k, l->kv_a_norm, rank, (double)h->rms_eps, k);
        rotate(rope, rows[i].position, k + rank);
        round_to_cache(c, k, 1, (int32_t)dim);
        memcpy(reference_kv(c, KV_ALL, place, 0) + rows[i].slots[KV_ALL].own * dim, k, (size_t)dim * sizeof *k);
    }
    reference_square_inputs(c, spec, INPUT_LATENT, c->k, dim, n_rows);
}

/* Writes the queries into c->queries: for each head the plain components, then those that are rotated. */
static void make_queries(const RefContext *c, const LayerSpec *l, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    int64_t n = h->latent.q_rank;
    bool has_latent = l->matrices[MATRIX_Q_A] != NULL;
    if (has_latent) reference_product_of(c, l, MATRIX_Q_A, 0, c->normed, n_rows, c->q_latent);
    for (int32_t i = 0; has_latent && i < n_rows; i++)
        reference_rmsnorm(c->q_latent + i * n, l->latent.q_a_norm, n, (double)h->rms_eps, c->q_latent + i * n);
    if (has_latent) reference_square_inputs(c, l, INPUT_Q_LATENT, c->q_latent, n, n_rows);
    reference_product_of(c, l, MATRIX_Q, 0, has_latent ? c->q_latent : c->normed, n_rows, c->queries);
    reference_square_inputs(c, l, INPUT_LATENT_QUERIES, c->queries, latent_query_dim(h), n_rows);
}

/* Computes latent attention for one head of one row. */
static void attend_head(const RefContext *c, const LayerSpec *l, int32_t place, const Rope *rope, const RowPlace *row,
                        int64_t i, int32_t head) {
    const Hparams *h = &c->model->hparams;
    const LatentShape *s = &h->latent;
    int64_t n_rot = h->rope.n_rot, at = i * h->n_head + head;
    const double *query = c->queries + at * (s->plain_dim + n_rot);
    double *q = c->q + at * h->head_dim, *out = c->attended + at * s->rank;
    reference_product_of(c, l, MATRIX_K_B, head, query, 1, q);
    memcpy(q + s->rank, query + s->plain_dim, (size_t)n_rot * sizeof *q);
    rotate(rope, row->position, q + s->rank);
    attend(c, l, place, row, head, q, out);
    reference_product_of(c, l, MATRIX_V_B, head, out, 1, c->head_values + at * s->value_dim);
}

void reference_latent_attention(const RefContext *c, const LayerSpec *l, int32_t layer, const RowPlace *rows,
                                int32_t n_rows) {
    const Rope *rope = &c->model->ropes[l->i_rope];
    int32_t place = model_mixer_place(c->model, layer);
    store_latents(c, l, place, rope, rows, n_rows);
    make_queries(c, l, n_rows);
    for (int32_t i = 0; i < n_rows; i++)
        for (int32_t head = 0; head < c->model->hparams.n_head; head++)
            attend_head(c, l, place, rope, &rows[i], i, head);
    const Hparams *h = &c->model->hparams;
    reference_square_inputs(c, l, INPUT_READ_LATENTS, c->attended, (int64_t)h->n_head * h->latent.rank, n_rows);
    reference_square_inputs(c, l, INPUT_LATENT_O, c->head_values, latent_values_dim(h), n_rows);
    reference_product_of(c, l, MATRIX_O, 0, c->head_values, n_rows, c->delta);
}

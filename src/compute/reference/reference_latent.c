/* reference_latent.c - multi-head latent attention (LatentSpec in model.h) in double precision.
 *
 * What is cached of a position is its latent behind the norm, and behind that the rotated key that all heads share. A query is
 * brought into that form, so that ordinary attention over one KV head, whose values are the first `rank` numbers of its keys,
 * does the rest; a head's values are made of what it read. */
#include "compute/reference/reference.h"

#include <string.h>

/* Latents and rotated keys of the rows, into the cache. */
static void store_latents(const RefContext *c, const LayerSpec *spec, int32_t place, const Rope *rope,
                          const RowPlace *rows, int32_t n_rows) {
    const Hparams *h = &c->model->hparams;
    const LatentSpec *l = &spec->latent;
    int64_t dim = h->head_dim, rank = h->latent.rank;
    reference_product_of(c, spec, MATRIX_KV_A, 0, c->normed, n_rows, c->k);
    for (int32_t i = 0; i < n_rows; i++) {
        double *k = c->k + i * dim;
        reference_rmsnorm(k, l->kv_a_norm, rank, (double)h->rms_eps, k);
        reference_rotate(rope, rows[i].position, k + rank);
        reference_round_to_cache(c, k, 1);
        memcpy(reference_kv(c, KV_ALL, place, 0) + rows[i].slots[KV_ALL].own * dim, k, (size_t)dim * sizeof *k);
    }
    reference_square_inputs(c, spec, INPUT_LATENT, c->k, dim, n_rows);
}

/* Queries by head into c->queries: the plain components, then those that are rotated. */
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

/* One head of one row. */
static void attend_head(const RefContext *c, const LayerSpec *l, int32_t place, const Rope *rope, const RowPlace *row,
                        int64_t i, int32_t head) {
    const Hparams *h = &c->model->hparams;
    const LatentShape *s = &h->latent;
    int64_t n_rot = h->rope.n_rot, at = i * h->n_head + head;
    const double *query = c->queries + at * (s->plain_dim + n_rot);
    double *q = c->q + at * h->head_dim, *out = c->attended + at * s->rank;
    reference_product_of(c, l, MATRIX_K_B, head, query, 1, q);
    memcpy(q + s->rank, query + s->plain_dim, (size_t)n_rot * sizeof *q);
    reference_rotate(rope, row->position, q + s->rank);
    reference_attend(c, l, place, row, head, q, out);
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

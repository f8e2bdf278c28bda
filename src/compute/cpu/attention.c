/* attention.c - what the rows of a forward read from the KV cache.
 *
 * The problem. A row, a KV head and the query heads that share it are one unit of work: n scores, a softmax, a
 * weighted sum of n values, n being the row's context. Many rows or KV heads give many units, and each thread takes
 * whole ones. But one row after a long context, which is plain decoding, gives only as many units as the model has
 * KV heads; with more threads than that, cores would be idle during the longest operation of the forward. So the keys
 * must be split too, without changing a bit.
 *
 * The idea. Cut the context, not the work: tiles of ATTN_TILE keys, counted from logical position 0. Each tile has a
 * softmax of its own, and tiles are added as in FlashAttention (Dao et al. 2022, arXiv 2205.14135, section 3.1; the
 * softmax of Milakov and Gimelshein, arXiv 1805.02867). What is computed is
 *
 *     s[i]      = scale * q . K[i]               each by itself; with a cache of KV_Q8 as kernels/scores.h has it
 *     m, l, o   = of a tile: the greatest s[i]; the sum of e[i] = exp(s[i] - m), in the 16 running sums of kernels.h;
 *                 the sum of e[i] V[i], from zero, one fused multiply-add a key, ascending
 *     M, L, O   = of all tiles so far, which are added in ascending order:
 *                 M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L' = a L + b l, O' = a O + b o
 *     out       = O / L
 *
 * whichever threads compute it. The definition depends on the context alone, not on pages, chunks, the shape of the
 * batch or the number of threads. It begins with M = -inf, L = 0 and O = 0, or with a sink: M = sink, L = 1.
 *
 * With a window, the keys before it take no part: the first tile begins with the first key that is seen. Tiles still
 * begin at multiples of ATTN_TILE. A cap bends each score by itself.
 *
 * Example. 1100 keys: tiles 0..511, 512..1023, 1024..1099. One thread computes them one after another in `attend`. With
 * one pair of row and KV head and four threads there are two stages: three tiles, and their addition.
 *
 * Heads that share a latent (latent_attention.c) would be one unit for each row; they are cut into units of a few, each
 * of which reads the latents for itself. A head's numbers do not depend on that.
 *
 * Invariants. Both ways call the same function over the same ranges of keys. A tile may begin among the committed
 * keys and end on the row's path: two calls of a kernel over adjacent ranges equal one call over both.
 *
 * Cost. Only the scores of one tile are kept, which stay in the cache, whatever the context: with a softmax over the
 * whole context, those of 32 query heads after 32K tokens are 4 MB, which are written and read five times. Two
 * stages instead of one take some microseconds; so keys are split only where there are fewer pairs than threads and
 * some context is longer than a tile. When it loses: contexts little above a tile, where one tile is the longest part.
 *
 * Where several rows see the same keys, attention_rows.c does the same for all of them at once.
 *
 * Proof: test_attention.c (threads, chunks, pages, company, trees, tables, double precision), test_forward.c.
 */
#include "compute/cpu/attention.h"
#include "base/math_functions.h"

#include <string.h>

int64_t attention_group(const Hparams *h, const LayerSpec *l) {
    enum {
        MOST_OF_LATENT = 8
    }; /* enough that a key is worth reading, and few enough that one row has work for all threads */
    if (!h->latent.rank) return layer_n_head(h, l) / layer_n_head_kv(h, l);
    int64_t n = MOST_OF_LATENT;
    while (h->n_head % n) n--;
    return n;
}

int64_t attention_widest_group(const Model *m) {
    int64_t widest = 1;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) {
        int64_t n = layer_has_state(&m->layers[i]) ? 0 : attention_group(&m->hparams, &m->layers[i]);
        if (n > widest) widest = n;
    }
    return widest;
}

Pair attention_pair(const Attention *a, int64_t row, int64_t unit, int i_thread, int64_t i) {
    const CpuContext *c = a->c;
    int32_t head = a->h->latent.rank ? 0 : (int32_t)(unit - a->first_unit);
    int64_t place = i_thread * c->max_queries + i * a->group;
    SoftmaxSum *sums = c->softmax_sums + 2 * i_thread * c->max_queries + i * a->group;
    return (Pair){.row = &c->rows[row],
                  .slots = &c->rows[row].slots[kv_group_of(a->spec)],
                  .keys = cpu_kv_keys(a->kv, a->place, head),
                  .values = cpu_kv_values(a->kv, a->place, head),
                  .q = c->q + row * a->n_head * a->dim + unit * a->group * a->dim,
                  .rounded = c->score_kernels ? c->rounded + rounded_query_at(c, row, unit * a->group) : NULL,
                  .scores = c->scores + place * SCORE_STRIDE,
                  .out = c->attended + row * a->n_head * a->value_dim + unit * a->group * a->value_dim,
                  .tile_out = c->row_sums + place * c->attention_dim,
                  .all = sums,
                  .tile = sums + c->max_queries};
}

void attention_round_queries(const CpuContext *c, int64_t q_dim, int64_t head_dim, int64_t row, int64_t head,
                             int64_t n) {
    for (int64_t i = head; c->score_kernels && i < head + n; i++)
        c->score_kernels->round_query(c->q + row_at(row, q_dim) + i * head_dim, head_dim,
                                      (void *)(c->rounded + rounded_query_at(c, row, i)));
}

KeyBlock *attention_key_blocks(const Attention *a, int i_thread) {
    return a->c->score_kernels ? a->c->key_blocks + i_thread * score_blocks(a->h->head_dim) : NULL;
}

/* Computes the scores of keys [at, at + n) of a tile as integer products, in blocks of KEYS_PACKED keys. */
static void score_rounded(const Attention *a, const Pair *p, const int32_t *slots, int64_t at, int64_t n,
                          int i_thread) {
    int64_t dim = a->dim;
    KeyBlock *keys = attention_key_blocks(a, i_thread);
    for (int64_t i = 0; i < n; i += KEYS_PACKED) {
        int64_t n_keys = min_i64(KEYS_PACKED, n - i);
        a->c->score_kernels->pack(dim, p->keys, a->kv->slot_bytes, slots + i, n_keys, keys);
        for (int64_t k = 0, n_q; k < a->group; k += n_q) {
            const RoundedQuery *q[ATTN_QUERIES];
            float *scores[ATTN_QUERIES];
            n_q = min_i64(ATTN_QUERIES, a->group - k);
            for (int64_t j = 0; j < n_q; j++) {
                q[j] = pair_rounded(a, p, k + j);
                scores[j] = pair_scores(p, k + j, at + i);
            }
            a->c->score_kernels->scores(q, n_q, dim, keys, n_keys, attention_scale(a, p->row), scores);
        }
    }
}

/* Computes the scores of keys [at, at + n) of a tile, which are in `slots`. */
static void score_keys(const Attention *a, const Pair *p, const int32_t *slots, int64_t at, int64_t n, int i_thread) {
    if (a->c->score_kernels) score_rounded(a, p, slots, at, n, i_thread);
    else
        a->kn->attn_scores(a->kv->type, p->q, a->group, a->dim, p->keys, a->kv->slot_bytes, slots, n,
                           attention_scale(a, p->row), pair_scores(p, 0, at), SCORE_STRIDE);
}

/* Bytes are expensive to convert, and attn_mix converts them again for every four heads. From eight heads on it is
 * faster to keep the floats. */
static bool unpacks_values(const Attention *a) {
    return a->kv->type == KV_Q8 && a->group >= ATTN_QUERIES_MIN && a->group <= ATTN_QUERIES && a->value_dim % 16 == 0;
}

/* Adds the weighted values of keys [at, at + n) of a tile, which are in `slots`, to the tile's. */
static void mix_keys(const Attention *a, const Pair *p, const int32_t *slots, int64_t at, int64_t n, int i_thread) {
    const CpuContext *c = a->c;
    int64_t dim = a->value_dim;
    if (!unpacks_values(a)) {
        a->kn->attn_mix(a->kv->type, pair_scores(p, 0, at), SCORE_STRIDE, a->group, dim, p->values, a->kv->slot_bytes,
                        slots, n, p->tile_out);
        return;
    }
    float *floats = c->key_floats + (int64_t)i_thread * KEYS_PACKED * c->attention_dim;
    for (int64_t i = 0; i < n; i += KEYS_PACKED) {
        const float *w[ATTN_QUERIES];
        float *outs[ATTN_QUERIES];
        int64_t n_keys = min_i64(KEYS_PACKED, n - i);
        for (int64_t k = 0; k < a->group; k++) w[k] = pair_scores(p, k, at + i), outs[k] = p->tile_out + k * dim;
        a->kn->unpack_values(a->kv->type, dim, p->values, a->kv->slot_bytes, slots + i, n_keys, floats);
        a->kn->mix_values(w, a->group, dim, floats, n_keys, outs);
    }
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

void attention_begin(const Attention *a, const Pair *p) {
    int64_t head = (p->q - a->c->q) / a->dim % a->n_head;
    memset(p->out, 0, (size_t)(a->group * a->value_dim) * sizeof *p->out);
    for (int64_t k = 0; k < a->group; k++)
        p->all[k] = a->spec->sinks ? (SoftmaxSum){a->spec->sinks[head + k], 1} : (SoftmaxSum){-INFINITY, 0};
}

void attention_weigh(const Attention *a, const Pair *p, KeyRange keys) {
    for (int64_t k = 0; k < a->group; k++) {
        float *scores = pair_scores(p, k, keys.begin);
        if (a->spec->soft_cap > 0) a->kn->soft_cap(scores, keys.end - keys.begin, a->spec->soft_cap);
        p->tile[k].sum = a->kn->exp_sum(scores, keys.end - keys.begin, &p->tile[k].greatest);
    }
}

/* Returns exp(a - b), where b is not less than a. */
static float exp_of_difference(float a, float b) { return a == b ? 1 : (float)math_exp((double)a - (double)b); }

void attention_join(const Attention *a, const Pair *p) {
    for (int64_t k = 0; k < a->group; k++) {
        SoftmaxSum *all = &p->all[k], *tile = &p->tile[k];
        float greatest = all->greatest > tile->greatest ? all->greatest : tile->greatest;
        float old = exp_of_difference(all->greatest, greatest), new = exp_of_difference(tile->greatest, greatest);
        a->kn->scale_add(&all->sum, old, &tile->sum, new, 1);
        a->kn->scale_add(p->out + k * a->value_dim, old, p->tile_out + k * a->value_dim, new, a->value_dim);
        all->greatest = greatest;
    }
}

/* Computes a tile of a pair, of which the row sees some key. Keys before n_prefix are in committed slots, the others in
 * slots of the path. */
static void attend_tile(const Attention *a, const Pair *p, int64_t tile, int i_thread) {
    KeyRange keys = pair_tile(a, p, tile);
    int64_t n = p->row->n_prefix, split = n < keys.begin ? keys.begin : min_i64(n, keys.end);
    int64_t n_committed = split - keys.begin, n_path = keys.end - split;
    const int32_t *committed = n_committed ? p->slots->prefix + keys.begin : NULL;
    const int32_t *path = n_path ? p->slots->path + (split - n) : NULL;
    if (n_committed) score_keys(a, p, committed, keys.begin, n_committed, i_thread);
    if (n_path) score_keys(a, p, path, split, n_path, i_thread);
    attention_weigh(a, p, keys);
    memset(p->tile_out, 0, (size_t)(a->group * a->value_dim) * sizeof *p->tile_out);
    if (n_committed) mix_keys(a, p, committed, keys.begin, n_committed, i_thread);
    if (n_path) mix_keys(a, p, path, split, n_path, i_thread);
}

/* Returns whether the outputs of a pair are whole blocks of activations, so that they can be converted at once. */
bool attention_converts(const CpuContext *c, const LayerSpec *l) {
    const Hparams *h = &c->model->hparams;
    return !h->latent.rank && attention_group(h, l) * layer_head_dim(h, l) % ACT_BLOCK == 0;
}

void attention_finish(const Attention *a, const Pair *p) {
    int64_t width = a->group * a->value_dim;
    for (int64_t k = 0; k < a->group; k++) a->kn->divide_all(p->out + k * a->value_dim, a->value_dim, p->all[k].sum);
    int64_t row = p->row - a->c->rows, at = p->out - a->c->attended - row * a->o->n_in, dim = a->dim;
    for (int64_t i = 0; a->spec->gates_output && i < width; i += dim)
        a->kn->sigmoid_mul(p->out + i, a->c->q_gated + 2 * (row * a->o->n_in + at + i) + dim, dim);
    if (!attention_converts(a->c, a->spec)) return;
    ActForm form = a->o->act;
    a->kn->act_convert(form, p->out, width,
                       (char *)a->c->acts[form] + row_at(row, (int64_t)act_row_bytes(form, a->o->n_in)) +
                           act_offset(form, at));
}

static Attention attention_of(const Op *op) {
    CpuContext *c = op->c;
    const Hparams *h = &c->model->hparams;
    return (Attention){.c = c,
                       .kn = c->kernels,
                       .h = h,
                       .kv = &c->kv[kv_group_of(op->l->spec)],
                       .place = op->l->place,
                       .spec = op->l->spec,
                       .o = op->l->matrices[MATRIX_O],
                       .n_head = layer_n_head(h, op->l->spec),
                       .group = attention_group(h, op->l->spec),
                       .first_unit = op->l->units.first,
                       .n_pairs = c->n_rows * share_size(op->l->units),
                       .dim = layer_head_dim(h, op->l->spec),
                       .value_dim = layer_value_dim(h, op->l->spec),
                       .n_tiles = attn_n_tiles(c->longest)};
}

/* ---- whole pairs --------------------------------------------------------------------------------------------- */

static void attend(const Attention *a, const Pair *p, int i_thread) {
    int64_t n_tiles = attn_n_tiles(pair_n_keys(a, p));
    attention_begin(a, p);
    for (int64_t tile = pair_first_key(a, p) / ATTN_TILE; tile < n_tiles; tile++) {
        attend_tile(a, p, tile, i_thread);
        attention_join(a, p);
    }
    attention_finish(a, p);
}

/* Computes the groups of one head after each other, because they share most of their keys, which then stay in the
 * cache. */
static void attend_groups(const Op *op, int64_t begin, int64_t end, int i_thread) {
    Attention a = attention_of(op);
    for (int64_t i = begin; i < end; i++) {
        const RowGroup *g = &a.c->row_groups[i % a.c->n_row_groups];
        int64_t unit = a.first_unit + i / a.c->n_row_groups;
        if (attention_shares_keys(&a, g)) {
            attention_of_group(&a, g, unit, i_thread);
            continue;
        }
        for (int32_t row = g->first; row < g->first + g->n; row++) {
            Pair p = attention_pair(&a, row, unit, i_thread, 0);
            attend(&a, &p, i_thread);
        }
    }
}

/* ---- tiles of pairs that are fewer than threads --------------------------------------------------------------- */

/* Returns pair i of all pairs, which are in the order of heads. */
static Pair pair_at(const Attention *a, int64_t i, int i_thread) {
    return attention_pair(a, i % a->c->n_rows, a->first_unit + i / a->c->n_rows, i_thread, 0);
}

/* Lets a tile of pair i have its results in a place of their own. */
static void place_tile(const Attention *a, Pair *p, int64_t i, int64_t tile) {
    int64_t place = (i * attn_n_tiles(a->c->options.n_ctx) + tile) * a->group;
    p->tile_out = a->c->tile_sums + place * a->value_dim;
    p->tile = a->c->tile_softmax_sums + place;
}

static void compute_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    Attention a = attention_of(op);
    for (int64_t i = begin; i < end; i++) {
        int64_t tile = i % a.n_tiles;
        Pair p = pair_at(&a, i / a.n_tiles, i_thread);
        KeyRange keys = pair_tile(&a, &p, tile);
        place_tile(&a, &p, i / a.n_tiles, tile);
        if (keys.begin < keys.end) attend_tile(&a, &p, tile, i_thread);
    }
}

static void join_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    Attention a = attention_of(op);
    for (int64_t i = begin; i < end; i++) {
        Pair p = pair_at(&a, i, i_thread);
        attention_begin(&a, &p);
        int64_t n_tiles = attn_n_tiles(pair_n_keys(&a, &p));
        for (int64_t tile = pair_first_key(&a, &p) / ATTN_TILE; tile < n_tiles; tile++) {
            place_tile(&a, &p, i, tile);
            attention_join(&a, &p);
        }
        attention_finish(&a, &p);
    }
}

/* ---- operations ---------------------------------------------------------------------------------------- */

Op *attention_ops(CpuContext *c, int32_t layer, Op *at) {
    Op base = {.c = c, .layer = layer, .l = &c->weights->layers[layer]};
    Attention a = attention_of(&base);
    if (a.n_pairs >= threads_count(c->threads) || a.n_tiles == 1)
        return put_op(at, base, FORWARD_ATTENTION, attend_groups, (int64_t)c->n_row_groups * (a.n_pairs / c->n_rows),
                      0);
    at = put_op(at, base, FORWARD_ATTENTION, compute_tiles, a.n_pairs * a.n_tiles, 0);
    return put_op(at, base, FORWARD_ATTENTION, join_tiles, a.n_pairs, 0);
}

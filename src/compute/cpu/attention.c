/* attention.c - what the rows of a forward read from the KV cache.
 *
 * The problem. A row, a KV head and the query heads that share it are one unit of work: n scores, a softmax, a
 * weighted sum of n values, n being the row's context. Many rows or KV heads give many units, and each thread takes
 * whole ones. But one row after a long context, which is plain decoding, gives only as many units as the model has
 * KV heads; with more threads than that, cores would be idle during the longest operation of the forward. So the keys
 * must be split too, without changing a bit.
 *
 * The idea. Cut the context, not the work: tiles of ATTN_TILE keys, counted from logical position 0. What is computed
 * is
 *
 *     s[i]   = scale * q . K[i]                  each by itself; with a cache of KV_Q8 as kernels/scores.h has it
 *     w      = softmax(s)                        over the whole context: the 16 running sums of kernels.h
 *     out[t] = sum of w[i] V[i] over tile t      from zero, one fused multiply-add a key, ascending
 *     out    = ((out[0] + out[1]) + out[2]) + .. in order of tiles
 *
 * whichever threads compute it. The definition depends on the context alone, not on pages, chunks, the shape of the
 * batch or the number of threads. A context of one tile is the plain sum over its keys.
 *
 * With a window, the keys before it take no part: softmax and the first tile begin with the first key that is seen.
 * Tiles still begin at multiples of ATTN_TILE. A cap bends each score by itself; a sink is one score more in the
 * softmax.
 *
 * Example. 1100 keys: tiles 0..511, 512..1023, 1024..1099, out = (out[0] + out[1]) + out[2]. One thread computes all
 * that in `attend`. With one pair of row and KV head and four threads there are four stages: three tiles of scores, a
 * softmax for each query head, three tiles of values, one addition.
 *
 * Heads that share a latent (latent_attention.c) would be one unit for each row; they are cut into units of a few, each
 * of which reads the latents for itself. A head's numbers do not depend on that.
 *
 * Invariants. Both ways call the same function over the same ranges of keys. A tile may begin among the committed
 * keys and end on the row's path: two calls of a kernel over adjacent ranges equal one call over both.
 *
 * Cost. Four stages instead of one, some microseconds each; so keys are split only where there are fewer pairs than
 * threads and some context is longer than a tile. The scores are kept in the scratch memory of the threads that would
 * have been idle. When it loses: contexts little above a tile, where one tile is the longest part.
 *
 * Where several rows see the same keys, attention_rows.c does the same for all of them at once.
 *
 * Proof: test_attention.c (threads, chunks, pages, company, trees, tables, double precision), test_forward.c.
 */
#include "compute/cpu/attention.h"

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

Pair attention_pair(const Attention *a, int64_t row, int64_t unit, float *scores) {
    const CpuContext *c = a->c;
    int32_t head = a->h->latent.rank ? 0 : (int32_t)(unit - a->first_unit);
    return (Pair){.row = &c->rows[row],
                  .slots = &c->rows[row].slots[kv_group_of(a->spec)],
                  .keys = cpu_kv_keys(a->kv, a->place, head),
                  .values = cpu_kv_values(a->kv, a->place, head),
                  .q = c->q + row * a->n_head * a->h->head_dim + unit * a->group * a->h->head_dim,
                  .rounded = c->score_kernels ? c->rounded + rounded_query_at(c, row, unit * a->group) : NULL,
                  .out = c->attended + row * a->n_head * a->value_dim + unit * a->group * a->value_dim,
                  .scores = scores};
}

/* Returns a pair that uses scratch memory number `place`. */
static Pair pair_of(const Attention *a, int64_t row, int64_t unit, int64_t place) {
    const CpuContext *c = a->c;
    Pair p = attention_pair(a, row, unit, c->scores + place * c->max_queries * c->score_stride);
    p.tile_sums = c->tile_sums + place * attn_n_tiles(c->options.n_ctx) * a->group * a->value_dim;
    return p;
}

/* Returns pair i of all pairs, which are in the order of heads. */
static Pair pair_at(const Attention *a, int64_t i, int64_t place) {
    return pair_of(a, i % a->c->n_rows, a->first_unit + i / a->c->n_rows, place);
}

/* The keys [begin, end) of a context. Those before `split` are in committed slots, the others in slots of the path. */
typedef struct Range {
    int64_t begin, split, end;
} Range;
static Range range_of(const Pair *p, int64_t begin, int64_t end) {
    int64_t n = p->row->n_prefix;
    return (Range){begin, n < begin ? begin : min_i64(n, end), end};
}

void attention_round_queries(const CpuContext *c, int64_t q_dim, int64_t row, int64_t head, int64_t n) {
    const Hparams *h = &c->model->hparams;
    for (int64_t i = head; c->score_kernels && i < head + n; i++)
        c->score_kernels->round_query(c->q + row_at(row, q_dim) + i * h->head_dim, h->head_dim,
                                      (void *)(c->rounded + rounded_query_at(c, row, i)));
}

KeyBlock *attention_key_blocks(const Attention *a, int i_thread) {
    return a->c->score_kernels ? a->c->key_blocks + i_thread * score_blocks(a->h->head_dim) : NULL;
}

/* Computes the scores of keys [at, at + n) as integer products, in blocks of KEYS_PACKED keys. */
static void score_rounded(const Attention *a, const Pair *p, const int32_t *slots, int64_t at, int64_t n,
                          int i_thread) {
    int64_t dim = a->h->head_dim;
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
                scores[j] = p->scores + (k + j) * a->c->score_stride + at + i;
            }
            a->c->score_kernels->scores(q, n_q, dim, keys, n_keys, attention_scale(a, p->row), scores);
        }
    }
}

/* Computes the scores of keys [at, at + n), which are in `slots`. */
static void score_keys(const Attention *a, const Pair *p, const int32_t *slots, int64_t at, int64_t n, int i_thread) {
    if (a->c->score_kernels) score_rounded(a, p, slots, at, n, i_thread);
    else
        a->kn->attn_scores(a->kv->type, p->q, a->group, a->h->head_dim, p->keys, a->kv->slot_bytes, slots, n,
                           attention_scale(a, p->row), p->scores + at, a->c->score_stride);
}

static void score(const Attention *a, const Pair *p, int64_t begin, int64_t end, int i_thread) {
    int64_t stride = a->c->score_stride;
    if (begin < pair_first_key(a, p)) begin = pair_first_key(a, p);
    Range r = range_of(p, begin, end);
    if (r.begin < r.split) score_keys(a, p, p->slots->prefix + r.begin, r.begin, r.split - r.begin, i_thread);
    if (r.split < r.end)
        score_keys(a, p, p->slots->path + (r.split - p->row->n_prefix), r.split, r.end - r.split, i_thread);
    for (int64_t k = 0; a->spec->soft_cap > 0 && begin < end && k < a->group; k++)
        a->kn->soft_cap(p->scores + k * stride + begin, end - begin, a->spec->soft_cap);
}

/* Only the keys that the row sees take part. A sink takes part as one more key after the last. */
void attention_softmax(const Attention *a, const Pair *p, int64_t k) {
    int64_t first = pair_first_key(a, p), n = pair_n_keys(p);
    float *scores = p->scores + k * a->c->score_stride;
    int64_t head = (p->q - a->c->q) / a->h->head_dim % a->n_head + k;
    if (a->spec->sinks) scores[n] = a->spec->sinks[head];
    a->kn->softmax(scores + first, n - first + (a->spec->sinks != NULL));
}

static float *tile_out(const Attention *a, const Pair *p, int64_t tile) {
    return tile > pair_first_key(a, p) / ATTN_TILE ? p->tile_sums + tile * a->group * a->value_dim : p->out;
}

/* Bytes are expensive to convert, and attn_mix converts them again for every four heads. From eight heads on it is
 * faster to keep the floats. */
static bool unpacks_values(const Attention *a) {
    return a->kv->type == KV_Q8 && a->group >= ATTN_QUERIES_MIN && a->group <= ATTN_QUERIES && a->value_dim % 16 == 0;
}

/* Adds the weighted values of keys [at, at + n), which are in `slots`, to out [group][value_dim]. */
static void mix_keys(const Attention *a, const Pair *p, const int32_t *slots, int64_t at, int64_t n, float *out,
                     int i_thread) {
    const CpuContext *c = a->c;
    int64_t dim = a->value_dim;
    if (!unpacks_values(a)) {
        a->kn->attn_mix(a->kv->type, p->scores + at, c->score_stride, a->group, dim, p->values, a->kv->slot_bytes,
                        slots, n, out);
        return;
    }
    float *floats = c->key_floats + (int64_t)i_thread * KEYS_PACKED * c->attention_dim;
    for (int64_t i = 0; i < n; i += KEYS_PACKED) {
        const float *w[ATTN_QUERIES];
        float *outs[ATTN_QUERIES];
        int64_t n_keys = min_i64(KEYS_PACKED, n - i);
        for (int64_t k = 0; k < a->group; k++) w[k] = p->scores + k * c->score_stride + at + i, outs[k] = out + k * dim;
        a->kn->unpack_values(a->kv->type, dim, p->values, a->kv->slot_bytes, slots + i, n_keys, floats);
        a->kn->mix_values(w, a->group, dim, floats, n_keys, outs);
    }
}

static void mix_tile(const Attention *a, const Pair *p, int64_t tile, int i_thread) {
    int64_t begin = tile * ATTN_TILE, first = pair_first_key(a, p);
    Range r = range_of(p, begin < first ? first : begin, min_i64(begin + ATTN_TILE, pair_n_keys(p)));
    float *out = tile_out(a, p, tile);
    memset(out, 0, (size_t)(a->group * a->value_dim) * sizeof *out);
    if (r.begin < r.split) mix_keys(a, p, p->slots->prefix + r.begin, r.begin, r.split - r.begin, out, i_thread);
    if (r.split < r.end)
        mix_keys(a, p, p->slots->path + (r.split - p->row->n_prefix), r.split, r.end - r.split, out, i_thread);
}

/* Returns whether the outputs of a pair are whole blocks of activations, so that they can be converted at once. */
bool attention_converts(const CpuContext *c, const LayerSpec *l) {
    const Hparams *h = &c->model->hparams;
    return !h->latent.rank && attention_group(h, l) * h->head_dim % ACT_BLOCK == 0;
}

void attention_finish(const Attention *a, const Pair *p) {
    int64_t width = a->group * a->value_dim;
    int64_t row = p->row - a->c->rows, at = p->out - a->c->attended - row * a->o->n_in, dim = a->h->head_dim;
    for (int64_t i = 0; a->spec->gates_output && i < width; i += dim)
        a->kn->sigmoid_mul(p->out + i, a->c->q_gated + 2 * (row * a->o->n_in + at + i) + dim, dim);
    if (!attention_converts(a->c, a->spec)) return;
    ActForm form = a->o->act;
    a->kn->act_convert(form, p->out, width,
                       (char *)a->c->acts[form] + row_at(row, (int64_t)act_row_bytes(form, a->o->n_in)) +
                           act_offset(form, at));
}

static void add_tiles(const Attention *a, const Pair *p) {
    int64_t n = attn_n_tiles(pair_n_keys(p)), width = a->group * a->value_dim;
    for (int64_t tile = pair_first_key(a, p) / ATTN_TILE + 1; tile < n; tile++)
        a->kn->add(p->out, tile_out(a, p, tile), width);
    attention_finish(a, p);
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
                       .value_dim = hparams_value_dim(h),
                       .n_tiles = attn_n_tiles(c->longest)};
}

/* ---- whole pairs ---------------------------------------------------------------------------------- */

static void attend(const Attention *a, const Pair *p, int i_thread) {
    int64_t n = pair_n_keys(p), n_tiles = attn_n_tiles(n);
    score(a, p, 0, n, i_thread);
    for (int64_t k = 0; k < a->group; k++) attention_softmax(a, p, k);
    for (int64_t tile = pair_first_key(a, p) / ATTN_TILE; tile < n_tiles; tile++) mix_tile(a, p, tile, i_thread);
    add_tiles(a, p);
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
            Pair p = pair_of(&a, row, unit, i_thread);
            attend(&a, &p, i_thread);
        }
    }
}

/* ---- tiles: pairs are fewer than threads, so each has a thread's scratch as its own --------------------- */

static void score_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    Attention a = attention_of(op);
    for (int64_t i = begin; i < end; i++) {
        Pair p = pair_at(&a, i / a.n_tiles, i / a.n_tiles);
        int64_t begin_key = i % a.n_tiles * ATTN_TILE, end_key = min_i64(begin_key + ATTN_TILE, pair_n_keys(&p));
        if (end_key > pair_first_key(&a, &p) && begin_key < end_key) score(&a, &p, begin_key, end_key, i_thread);
    }
}

static void softmax_heads(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    Attention a = attention_of(op);
    for (int64_t i = begin; i < end; i++) {
        Pair p = pair_at(&a, i / a.group, i / a.group);
        attention_softmax(&a, &p, i % a.group);
    }
}

static void mix_tiles(const Op *op, int64_t begin, int64_t end, int i_thread) {
    Attention a = attention_of(op);
    for (int64_t i = begin; i < end; i++) {
        Pair p = pair_at(&a, i / a.n_tiles, i / a.n_tiles);
        int64_t tile = i % a.n_tiles;
        if (tile >= pair_first_key(&a, &p) / ATTN_TILE && tile < attn_n_tiles(pair_n_keys(&p)))
            mix_tile(&a, &p, tile, i_thread);
    }
}

static void finish_pairs(const Op *op, int64_t begin, int64_t end, int i_thread) {
    (void)i_thread;
    Attention a = attention_of(op);
    for (int64_t i = begin; i < end; i++) {
        Pair p = pair_at(&a, i, i);
        add_tiles(&a, &p);
    }
}

/* ---- operations ---------------------------------------------------------------------------------------- */

Op *attention_ops(CpuContext *c, int32_t layer, Op *at) {
    Op base = {.c = c, .layer = layer, .l = &c->weights->layers[layer]};
    Attention a = attention_of(&base);
    if (a.n_pairs >= threads_count(c->threads) || a.n_tiles == 1)
        return put_op(at, base, FORWARD_ATTENTION, attend_groups, (int64_t)c->n_row_groups * (a.n_pairs / c->n_rows),
                      0);
    at = put_op(at, base, FORWARD_ATTENTION, score_tiles, a.n_pairs * a.n_tiles, 0);
    at = put_op(at, base, FORWARD_ATTENTION, softmax_heads, a.n_pairs * a.group, 0);
    at = put_op(at, base, FORWARD_ATTENTION, mix_tiles, a.n_pairs * a.n_tiles, 0);
    return put_op(at, base, FORWARD_ATTENTION, finish_pairs, a.n_pairs, 0);
}

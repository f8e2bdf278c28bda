/* attention_rows.c - attention of several rows that see the same keys.
 *
 * The problem. The rows of a token tree, or of a prompt, read nearly the same keys: all committed ones, then their own
 * paths. Row by row, every key and value is converted to floats once for each row, and the sums of each score are
 * folded by themselves. That is most of what verifying 16 rows costs after a long context.
 *
 * The idea. Rows of one sequence form groups. A group goes through its context in blocks of KEYS_PACKED positions,
 * counted from position 0. In each block the slots of the row that sees most of it are read once; every other row
 * whose slots are the same, as far as it sees any, takes part. Rows that have gone another way in the tree form the
 * next such set. In each tile of keys
 * (attention.c) there are two passes over the blocks:
 *
 *     scores   pack_keys once, packed_scores for all query heads of all rows of the set; with a cache of KV_Q8 their
 *              counterparts of kernels/scores.h; then the softmax of the tile for each query head
 *     values   unpack_values once, mix_values likewise; then the tile is added to those before
 *
 * Example. A tree after 1000 tokens: root 1000, children 1001 and 1002 of the root. Blocks 0 to 14 (positions 0..959)
 * are one set of three rows. In block 15 both children see position 1001, in different slots: row 1 leads, row 0 sees a
 * part of the same slots and joins, and row 2 is a set by itself, with the committed keys of the block converted again.
 *
 * Invariants. Each score is one kernel's, each output adds its keys in ascending order from the beginning of the tile:
 * the bits are those of attention.c, and which rows form a group is free. A score that a row has no use for (the leader
 * sees more keys) is written after its last key. Every slot from the first key of
 * any row of a group on has a page: the executor gives back only pages that all rows to come are past.
 *
 * Cost. The scores of a tile are ATTN_QUERIES times ATTN_TILE floats for each thread, which stay in the cache.
 * When it loses: few queries, which do not pay for turning the keys; so it begins at ATTN_QUERIES_MIN.
 *
 * Proof: test_attention.c and test_forward.c (against one row at a time), test_kernels_vector.c (the kernels).
 */
#include "compute/cpu/attention.h"

#include <string.h>

_Static_assert(ATTN_TILE % KEYS_PACKED == 0, "a block lies in one tile");

/* ---- groups ---------------------------------------------------------------------------------------- */

/* Returns how many rows a group may have: as many as the scratch memory has room for, but not so many that threads are
 * left without a group. */
static int32_t most_rows(const CpuContext *c) {
    int64_t group = c->widest_group, n = ATTN_QUERIES / group, n_threads = threads_count(c->threads);
    while (n > 1 && (c->n_rows + n - 1) / n * (c->model->hparams.n_head / group) < n_threads) n--;
    return n < 1 ? 1 : (int32_t)n;
}

/* All scores of a group are multiplied by the same number, so its rows must have the same temperature. */
static bool has_same_temperature(const CpuContext *c, const RowPlace *a, const RowPlace *b) {
    const AttnTemperature *t = &c->model->hparams.temperature;
    return temperature_step(t, a->position) == temperature_step(t, b->position);
}

int32_t attention_group_rows(const CpuContext *c, RowGroup *groups) {
    int32_t n = 0, most = most_rows(c);
    for (int32_t i = 0; i < c->n_rows; i++) {
        const RowPlace *r = &c->rows[i], *before = r - 1;
        bool joins = i > 0 && groups[n - 1].n < most && r->sequence == before->sequence &&
                     r->n_prefix == before->n_prefix && has_same_temperature(c, r, before);
        if (joins) groups[n - 1].n++;
        else groups[n++] = (RowGroup){i, 1};
    }
    return n;
}

bool attention_shares_keys(const Attention *a, const RowGroup *g) {
    return g->n > 1 && g->n * a->group >= ATTN_QUERIES_MIN && a->dim % 16 == 0 && a->value_dim % 16 == 0;
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* A group at work on one KV head. */
typedef struct Rows {
    const Attention *a;
    int32_t n;
    Pair pairs[ATTN_QUERIES];
    float *floats;    /* [KEYS_PACKED * head_dim] keys or values */
    KeyBlock *blocks; /* keys whose scores are integer products */
} Rows;

/* Positions [begin, end) of a block, and the rows that see the same keys there, or the first of them. */
typedef struct Shared {
    int64_t begin, end;
    const int32_t *slots; /* [end - begin] */
    int32_t n_members, members[ATTN_QUERIES];
} Shared;
typedef void (*SharedFn)(const Rows *rows, const Shared *s);

/* These return the first of positions [begin, end) that row i sees, and the end of those. */
static int64_t sees_from(const Rows *rows, int32_t i, int64_t begin) {
    int64_t first = pair_first_key(rows->a, &rows->pairs[i]);
    return first > begin ? first : begin;
}
static int64_t sees_to(const Rows *rows, int32_t i, int64_t end) {
    return min_i64(end, pair_n_keys(rows->a, &rows->pairs[i]));
}

/* Returns the slots of positions [begin, end) of a row, which are copied into `room` if they are in two places. */
static const int32_t *slots_of(const Pair *p, int64_t begin, int64_t end, int32_t room[KEYS_PACKED]) {
    int64_t n_prefix = p->row->n_prefix;
    if (end <= n_prefix) return p->slots->prefix + begin;
    if (begin >= n_prefix) return p->slots->path + (begin - n_prefix);
    size_t n = (size_t)(n_prefix - begin);
    memcpy(room, p->slots->prefix + begin, n * sizeof *room);
    memcpy(room + n, p->slots->path, (size_t)(end - n_prefix) * sizeof *room);
    return room;
}

/* Returns whether the row's slots are those of the set from s->begin up to `end`. */
static bool has_slots(const Pair *p, const Shared *s, int64_t end) {
    int32_t room[KEYS_PACKED];
    if (end <= p->row->n_prefix && s->slots == p->slots->prefix + s->begin) return true;
    return memcmp(slots_of(p, s->begin, end, room), s->slots, (size_t)(end - s->begin) * sizeof *room) == 0;
}

/* Calls fn for every set of rows that see the same keys of positions [begin, end). */
static void visit_block(const Rows *rows, int64_t begin, int64_t end, SharedFn fn) {
    int32_t waiting[ATTN_QUERIES], n_waiting = 0, room[KEYS_PACKED];
    Shared s;
    for (int32_t i = 0; i < rows->n; i++)
        if (sees_from(rows, i, begin) < sees_to(rows, i, end)) waiting[n_waiting++] = i;
    while (n_waiting) {
        int32_t leader = waiting[0], n_left = 0;
        s.n_members = 0, s.begin = end;
        for (int32_t k = 0; k < n_waiting; k++) {
            if (sees_to(rows, waiting[k], end) > sees_to(rows, leader, end)) leader = waiting[k];
            s.begin = min_i64(s.begin, sees_from(rows, waiting[k], begin));
        }
        s.end = sees_to(rows, leader, end);
        s.slots = slots_of(&rows->pairs[leader], s.begin, s.end, room);
        for (int32_t k = 0; k < n_waiting; k++)
            if (has_slots(&rows->pairs[waiting[k]], &s, sees_to(rows, waiting[k], end)))
                s.members[s.n_members++] = waiting[k];
            else waiting[n_left++] = waiting[k];
        n_waiting = n_left;
        fn(rows, &s);
    }
}

/* ---- scores ---------------------------------------------------------------------------------------- */

static void score_shared(const Rows *rows, const Shared *s) {
    const Attention *a = rows->a;
    const CpuKv *kv = a->kv;
    const ScoreKernels *by_integers = a->c->score_kernels;
    const float *q[ATTN_QUERIES];
    const RoundedQuery *rounded[ATTN_QUERIES];
    float *scores[ATTN_QUERIES];
    int64_t n = 0, dim = a->dim, n_keys = s->end - s->begin;
    for (int32_t m = 0; m < s->n_members; m++)
        for (int64_t k = 0; k < a->group; k++, n++) {
            const Pair *p = &rows->pairs[s->members[m]];
            if (by_integers) rounded[n] = pair_rounded(a, p, k);
            else q[n] = p->q + k * dim;
            scores[n] = pair_scores(p, k, s->begin);
        }
    if (by_integers) {
        by_integers->pack(dim, rows->pairs[0].keys, kv->slot_bytes, s->slots, n_keys, rows->blocks);
        by_integers->scores(rounded, n, dim, rows->blocks, n_keys, attention_scale(a, rows->pairs[0].row), scores);
        return;
    }
    a->kn->pack_keys(kv->type, dim, rows->pairs[0].keys, kv->slot_bytes, s->slots, n_keys, rows->floats);
    a->kn->packed_scores(q, n, dim, rows->floats, n_keys, attention_scale(a, rows->pairs[0].row), scores);
}

/* ---- values ---------------------------------------------------------------------------------------- */

/* Computes positions [begin, end) of the set for members [first, first + n), which see all of these positions. */
static void mix_members(const Rows *rows, const Shared *s, const int32_t *members, int32_t n, int64_t begin,
                        int64_t end) {
    const Attention *a = rows->a;
    const float *w[ATTN_QUERIES];
    float *out[ATTN_QUERIES];
    int64_t n_q = 0, dim = a->value_dim;
    for (int32_t m = 0; m < n; m++)
        for (int64_t k = 0; k < a->group; k++, n_q++) {
            w[n_q] = pair_scores(&rows->pairs[members[m]], k, begin);
            out[n_q] = rows->pairs[members[m]].tile_out + k * dim;
        }
    a->kn->mix_values(w, n_q, dim, rows->floats + (begin - s->begin) * dim, end - begin, out);
}

/* Computes the rows that see all of the set together, and each other row by itself. */
static void mix_shared(const Rows *rows, const Shared *s) {
    const Attention *a = rows->a;
    const CpuKv *kv = a->kv;
    int32_t whole[ATTN_QUERIES], n_whole = 0;
    a->kn->unpack_values(kv->type, a->value_dim, rows->pairs[0].values, kv->slot_bytes, s->slots, s->end - s->begin,
                         rows->floats);
    for (int32_t m = 0; m < s->n_members; m++) {
        int64_t begin = sees_from(rows, s->members[m], s->begin), end = sees_to(rows, s->members[m], s->end);
        if (begin == s->begin && end == s->end) whole[n_whole++] = s->members[m];
        else mix_members(rows, s, &s->members[m], 1, begin, end);
    }
    if (n_whole) mix_members(rows, s, whole, n_whole, s->begin, s->end);
}

/* ---- all of it ------------------------------------------------------------------------------------- */

/* Computes the tile whose blocks from `first` to `end` the rows see, and adds it. */
static void attend_tile(const Rows *rows, int64_t tile, int64_t first, int64_t end) {
    const Attention *a = rows->a;
    for (int64_t b = first; b < end; b += KEYS_PACKED) visit_block(rows, b, b + KEYS_PACKED, score_shared);
    for (int32_t i = 0; i < rows->n; i++) {
        const Pair *p = &rows->pairs[i];
        KeyRange keys = pair_tile(a, p, tile);
        if (keys.begin < keys.end) attention_weigh(a, p, keys);
        memset(p->tile_out, 0, (size_t)(a->group * a->value_dim) * sizeof *p->tile_out);
    }
    for (int64_t b = first; b < end; b += KEYS_PACKED) visit_block(rows, b, b + KEYS_PACKED, mix_shared);
    for (int32_t i = 0; i < rows->n; i++) {
        KeyRange keys = pair_tile(a, &rows->pairs[i], tile);
        if (keys.begin < keys.end) attention_join(a, &rows->pairs[i]);
    }
}

void attention_of_group(const Attention *a, const RowGroup *g, int64_t unit, int i_thread) {
    const CpuContext *c = a->c;
    int64_t first = c->longest, end = 0;
    Rows rows = {.a = a,
                 .n = g->n,
                 .blocks = attention_key_blocks(a, i_thread),
                 .floats = c->key_floats + i_thread * KEYS_PACKED * c->attention_dim};
    for (int32_t i = 0; i < g->n; i++) {
        Pair *p = &rows.pairs[i];
        *p = attention_pair(a, g->first + i, unit, i_thread, i);
        first = min_i64(first, pair_first_key(a, p));
        if (pair_n_keys(a, p) > end) end = pair_n_keys(a, p);
        attention_begin(a, p);
    }
    first = first / KEYS_PACKED * KEYS_PACKED;
    for (int64_t tile = first / ATTN_TILE; tile * ATTN_TILE < end; tile++) {
        int64_t begin = tile * ATTN_TILE;
        attend_tile(&rows, tile, begin < first ? first : begin, min_i64(begin + ATTN_TILE, end));
    }
    for (int32_t i = 0; i < g->n; i++) attention_finish(a, &rows.pairs[i]);
}

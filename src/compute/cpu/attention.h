/* attention.h - what attention.c and attention_rows.c share: the attention of a layer, and pairs of a row and a KV
 * head. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "compute/cpu/cpu_ops.h"
#include "base/mem.h"

#include <math.h>

enum {
    ATTN_QUERIES_MIN = 8
}; /* with at least this many query heads it is faster to convert keys or values once for all of them */

/* What all parts of the attention of a layer need. */
typedef struct Attention {
    CpuContext *c;
    const Kernels *kn;
    const Hparams *h;
    const CpuKv *kv;
    int32_t place; /* the place of the layer in kv */
    const LayerSpec *spec;
    const PackedMatrix *o; /* the output projection, which reads the result */
    int64_t n_head;        /* query heads */
    int64_t group;         /* query heads of a unit: those that share a KV head, or some of those that share a latent */
    int64_t first_unit;    /* the first unit that this rank computes */
    int64_t n_pairs;       /* pairs of a row and one of its units */
    int64_t dim;           /* the size of a query and of a key */
    int64_t value_dim;     /* the size of a value: the same, or the rank of the latents */
    int64_t n_tiles;       /* tiles of keys of the longest context */
} Attention;

/* The query heads of one row that share a KV head, and their scratch memory. */
typedef struct Pair {
    const RowPlace *row;
    const RowSlots *slots;
    const char *keys, *values;
    const float *q;      /* [group][head_dim] */
    const char *rounded; /* [group] RoundedQuery; only with score_kernels */
    float *scores;       /* [group][SCORE_STRIDE] of a tile */
    float *out;          /* [group][value_dim] the weighted values of all tiles so far, and in the end the result */
    float *tile_out;     /* [group][value_dim] the weighted values of a tile */
    SoftmaxSum *all;     /* [group] the softmax over all tiles so far */
    SoftmaxSum *tile;    /* [group] the softmax over a tile */
} Pair;

static inline int64_t pair_n_keys(const Attention *a, const Pair *p) { return row_n_keys(p->row, a->spec); }
/* Returns the first key that the row sees. */
static inline int64_t pair_first_key(const Attention *a, const Pair *p) {
    return layer_first_key(a->spec, (int64_t)p->row->position + 1);
}
static inline const RoundedQuery *pair_rounded(const Attention *a, const Pair *p, int64_t k) {
    return (const void *)(p->rounded + (size_t)k * rounded_query_bytes(a->h->head_dim));
}
static inline float attention_scale(const Attention *a, const RowPlace *row) {
    float scale = a->spec->attn_scale > 0 ? a->spec->attn_scale : 1.0f / sqrtf((float)a->dim);
    return (float)((double)scale * temperature_factor(&a->spec->temperature, row->position));
}

/* Keys [begin, end) of a tile. */
typedef struct KeyRange {
    int64_t begin, end;
} KeyRange;
/* Returns the keys of a tile that a row sees; the range is empty if there are none. */
static inline KeyRange pair_tile(const Attention *a, const Pair *p, int64_t tile) {
    int64_t begin = tile * ATTN_TILE, first = pair_first_key(a, p), n = pair_n_keys(a, p);
    return (KeyRange){begin < first ? first : begin, min_i64(begin + ATTN_TILE, n)};
}
/* Returns the scores of query head k of a pair from `key` on, as far as its tile goes. */
static inline float *pair_scores(const Pair *p, int64_t k, int64_t key) {
    return p->scores + k * SCORE_STRIDE + key % ATTN_TILE;
}

/* Returns the pair of a row and a unit, number i of those that thread i_thread works on. */
Pair attention_pair(const Attention *a, int64_t row, int64_t unit, int i_thread, int64_t i);
/* Begins a pair: no tile has been added. */
void attention_begin(const Attention *a, const Pair *p);
/* Makes weights of the scores of a tile's keys. */
void attention_weigh(const Attention *a, const Pair *p, KeyRange keys);
/* Adds a tile. */
void attention_join(const Attention *a, const Pair *p);
/* Ends a pair: divides, gates and converts its result. */
void attention_finish(const Attention *a, const Pair *p);

/* Returns the scratch memory of a thread for keys whose scores are integer products; NULL if they are not. */
KeyBlock *attention_key_blocks(const Attention *a, int i_thread);

/* Cuts the rows of a forward into groups; returns how many there are, at most max_rows. */
int32_t attention_group_rows(const CpuContext *c, RowGroup *groups);
/* Returns whether it is faster to convert the keys of a group once for all of its rows. */
bool attention_shares_keys(const Attention *a, const RowGroup *g);
/* Computes the attention of one unit for a group of rows on thread i_thread. */
void attention_of_group(const Attention *a, const RowGroup *g, int64_t unit, int i_thread);

#endif

/* attention.h - what attention.c and attention_rows.c share: a layer's attention, and the pairs of row and KV head. */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "compute/cpu/cpu.h"
#include "base/mem.h"

#include <math.h>

enum { ATTN_QUERIES_MIN = 8 }; /* from so many query heads on, converting keys or values for all of them at once pays */

/* What the pieces of a layer's attention have in common. */
typedef struct Attention {
    CpuContext *c;
    const Kernels *kn;
    const Hparams *h;
    const CpuKv *kv;
    int32_t place; /* of the layer's keys and values in it */
    const LayerSpec *spec;
    const PackedMatrix *o; /* reads what comes out */
    int64_t group;         /* query heads of a unit: those of a KV head, or some of those that share a latent */
    int64_t n_pairs;       /* of row and unit */
    int64_t value_dim;     /* of what a query head reads: head_dim, or the rank of the latents */
    int64_t n_tiles;       /* of the longest context */
} Attention;

/* The query heads of one row that share a KV head, and a place in the scratch. */
typedef struct Pair {
    const RowPlace *row;
    const RowSlots *slots;
    const char *keys, *values;
    const float *q;      /* [group][head_dim] */
    const char *rounded; /* with score_kernels: [group] RoundedQuery */
    float *out;          /* [group][value_dim] */
    float *scores;       /* [group][score_stride] */
    float *tile_sums;    /* [tiles of n_ctx][group][value_dim]; the first tile's go to out */
} Pair;

static inline int64_t pair_n_keys(const Pair *p) { return p->row->n_prefix + p->row->n_path; }
/* The first key that the row sees. */
static inline int64_t pair_first_key(const Attention *a, const Pair *p) {
    return layer_first_key(a->spec, pair_n_keys(p));
}
static inline const RoundedQuery *pair_rounded(const Attention *a, const Pair *p, int64_t k) {
    return (const void *)(p->rounded + (size_t)k * rounded_query_bytes(a->h->head_dim));
}
static inline float attention_scale(const Attention *a, const RowPlace *row) {
    float scale = a->spec->attn_scale > 0 ? a->spec->attn_scale : 1.0f / sqrtf((float)a->h->head_dim);
    return (float)((double)scale * temperature_factor(&a->spec->temperature, row->position));
}

/* The pair of a row and a unit: scores are left from `scores` on. tile_sums is NULL. */
Pair attention_pair(const Attention *a, int64_t row, int64_t unit, float *scores);
/* Weights from scores, query head k of the pair. */
void attention_softmax(const Attention *a, const Pair *p, int64_t k);
/* Gates and conversion of what came out. */
void attention_finish(const Attention *a, const Pair *p);

/* The scratch of a thread for keys whose scores are integer products; NULL: they are not. */
KeyBlock *attention_key_blocks(const Attention *a, int i_thread);

/* Cuts the rows of a forward into groups; returns how many there are, at most max_rows. */
int32_t attention_group_rows(const CpuContext *c, RowGroup *groups);
/* Whether a group's keys are better converted once for all of its rows. */
bool attention_shares_keys(const Attention *a, const RowGroup *g);
/* The attention of one unit for a group, by thread i_thread. */
void attention_of_group(const Attention *a, const RowGroup *g, int64_t unit, int i_thread);

#endif

/* kv_cache.h - keys and values of many sequences in pages of token slots.
 *
 *   sequence 0   length 5, page size 2      page table [7, 2, 4]
 *   logical position   0 1 | 2 3 | 4 -
 *   slot              14 15| 4 5 | 8 9      slot = page * page_size + position % page_size
 *
 * Pages are counted: a fork shares every page of its parent, and a page that is shared is copied before
 * anything is written into it (copy on write). Rows of a forward that are not committed yet take the slots
 * past the committed length, in row order; kv_commit keeps some of them, moved up in order, and forgets
 * the rest. No operation computes anything: a slot's bytes are what the forward stored.
 */
#ifndef BACKEND_KV_CACHE_H
#define BACKEND_KV_CACHE_H

#include "base/error.h"
#include "kernels/kernels.h"

typedef struct KvShape {
    KvType type;
    int32_t n_layer, n_head_kv, head_dim;
    int32_t page_size;     /* slots in a page, 1 or more */
    int32_t n_pages;       /* in all */
    int32_t max_sequences;
    int32_t n_ctx;         /* the longest a sequence may become, uncommitted rows included */
} KvShape;

typedef struct KvSequence {
    bool open;
    int32_t length;        /* committed tokens */
    int32_t n_reserved;    /* slots past the length that may be written */
    int32_t n_pages;
    int32_t *pages;        /* [n_pages], room for all of n_ctx */
    int32_t *slots;        /* [n_pages * page_size] slot of each logical position */
} KvSequence;

typedef struct KvCache {
    KvShape shape;
    char *data;            /* per layer: keys, then values, each [n_head_kv][n_slots][head_dim] */
    int32_t *ref_counts;   /* [n_pages] */
    int32_t *free_pages;   /* [n_free] */
    int32_t n_free;
    KvSequence *sequences; /* [max_sequences] */
} KvCache;

int kv_open(KvCache *kv, const KvShape *shape, fr_error *err);
void kv_close(KvCache *kv);

static inline int64_t kv_n_slots(const KvCache *kv) { return (int64_t)kv->shape.n_pages * kv->shape.page_size; }
static inline size_t kv_slot_bytes(const KvCache *kv) {
    return kv_row_bytes(kv->shape.type, kv->shape.head_dim);
}
/* Slot 0 of the keys (or values) of one layer and head; slot s follows s * kv_slot_bytes further. */
char *kv_keys(const KvCache *kv, int32_t layer, int32_t head);
char *kv_values(const KvCache *kv, int32_t layer, int32_t head);

/* *out: the id of a new, empty sequence. Fails when all max_sequences are open. */
int kv_sequence_open(KvCache *kv, int32_t *out, fr_error *err);
/* A new sequence with the committed tokens of `from`, sharing its pages. */
int kv_sequence_fork(KvCache *kv, int32_t from, int32_t *out, fr_error *err);
/* `to` forgets what it held and has the first n committed tokens of `from` instead, sharing their pages. Takes no page.
 * What either had reserved is forgotten. */
void kv_sequence_share(KvCache *kv, int32_t from, int32_t to, int32_t n);
void kv_sequence_close(KvCache *kv, int32_t sequence);

/* Uncommitted rows for which there are pages now: kv_reserve of so many does not run out of them. */
int32_t kv_room(const KvCache *kv, int32_t sequence);
/* Makes room for n uncommitted rows: takes pages, copies shared ones. On failure (context or pages run
 * out) the sequence is as before. */
int kv_reserve(KvCache *kv, int32_t sequence, int32_t n, fr_error *err);
/* Keeps the uncommitted rows at offsets[0] < offsets[1] < ... (0: the first slot past the length) as the next n tokens
 * and forgets the other ones. */
void kv_commit(KvCache *kv, int32_t sequence, const int32_t *offsets, int32_t n);
/* Appends n committed tokens whose keys and values are all the same number. On failure the sequence is as before. */
int kv_pad(KvCache *kv, int32_t sequence, int32_t n, fr_error *err);
/* Forgets everything from logical position `length` on. */
void kv_truncate(KvCache *kv, int32_t sequence, int32_t length);

#endif

/* kv_pages.h - which token slots of a KV cache belong to which sequence: pages, reference counts, copy on write.
 *
 *   sequence 0   length 5, page size 2      page table [7, 2, 4]
 *   logical position   0 1 | 2 3 | 4 -
 *   slot              14 15| 4 5 | 8 9      slot = page * page_size + position % page_size
 *
 * Pages are counted: a fork shares every page of its parent, and a shared page is copied before anything is written
 * into it (copy on write). Rows of a forward that are not committed yet take the slots past the committed length, in
 * row order; kv_commit keeps some of them, moved up in order, and forgets the rest. The keys and values themselves
 * lie in the memory of a backend, which copies slots when it is asked to. No operation computes anything: a slot's
 * bytes are what the forward stored.
 */
#ifndef BACKEND_KV_PAGES_H
#define BACKEND_KV_PAGES_H

#include "base/arena.h"

#include <stdbool.h>

typedef struct KvShape {
    int32_t page_size; /* slots in a page, 1 or more */
    int32_t n_pages;   /* in all */
    int32_t max_sequences;
    int32_t n_ctx; /* the longest a sequence may become, uncommitted rows included */
} KvShape;

/* The memory that the slots lie in. */
typedef struct KvMemory {
    void *memory;
    void (*copy_slots)(void *memory, int32_t from, int32_t to, int32_t n); /* the ranges may overlap */
    void (*fill_slot)(void *memory, int32_t slot);                         /* with one constant, for measurements */
} KvMemory;

typedef struct KvSequence {
    bool open;
    int32_t length;     /* committed tokens */
    int32_t n_reserved; /* slots past the length that may be written */
    int32_t n_pages;
    int32_t *pages; /* [n_pages], room for all of n_ctx */
    int32_t *slots; /* [n_pages * page_size] slot of each logical position */
} KvSequence;

typedef struct KvPages {
    KvShape shape;
    KvMemory data;
    int32_t *ref_counts; /* [n_pages] */
    int32_t *free_pages; /* [n_free] */
    int32_t n_free;
    bool *is_counted;      /* [n_pages] scratch of kv_count_pages */
    KvSequence *sequences; /* [max_sequences] */
    Arena arena;
} KvPages;

int kv_open(KvPages *kv, const KvShape *shape, const KvMemory *data, fr_error *err);
void kv_close(KvPages *kv);

/* *out: the id of a new, empty sequence. Fails when all max_sequences are open. */
int kv_sequence_open(KvPages *kv, int32_t *out, fr_error *err);
/* A new sequence with the committed tokens of `from`, sharing its pages. */
int kv_sequence_fork(KvPages *kv, int32_t from, int32_t *out, fr_error *err);
/* `to` forgets what it held and has the first n committed tokens of `from` instead, sharing their pages. Takes no page.
 * What either had reserved is forgotten. */
void kv_sequence_share(KvPages *kv, int32_t from, int32_t to, int32_t n);
void kv_sequence_close(KvPages *kv, int32_t sequence);

/* Pages that the first n sequences hold together. */
int32_t kv_count_pages(const KvPages *kv, int32_t n);
/* Uncommitted rows for which there are pages now: kv_reserve of so many does not run out of them. */
int32_t kv_room(const KvPages *kv, int32_t sequence);
/* Makes room for n uncommitted rows: takes pages, copies shared ones. On failure (context or pages run
 * out) the sequence is as before. */
int kv_reserve(KvPages *kv, int32_t sequence, int32_t n, fr_error *err);
/* Keeps the uncommitted rows at offsets[0] < offsets[1] < ... (0: the first slot past the length) as the next n tokens
 * and forgets the other ones. */
void kv_commit(KvPages *kv, int32_t sequence, const int32_t *offsets, int32_t n);
/* Appends n committed tokens whose keys and values are all the same number. On failure the sequence is as before. */
int kv_pad(KvPages *kv, int32_t sequence, int32_t n, fr_error *err);
/* Forgets everything from logical position `length` on. */
void kv_truncate(KvPages *kv, int32_t sequence, int32_t length);

#endif

/* kv_pages.h - which token slots of a KV cache belong to which sequence: pages, reference counts, copy on write; and
 * which pages no row sees any more.
 *
 *   sequence 0   length 5, page size 2      page table [7, 2, 4]
 *   logical position   0 1 | 2 3 | 4 -
 *   slot              14 15| 4 5 | 8 9      slot = page * page_size + position % page_size
 *
 * Pages are counted: a fork shares every page of its parent, and a shared page is copied before anything is written
 * into it (copy on write). Rows of a forward that are not committed yet take the slots past the committed length, in
 * row order; kv_commit keeps some of them, moved up in order, and forgets the rest. The keys and values themselves are
 * in the memory of a backend, which copies slots when it is asked to. No operation computes anything: the bytes of a
 * slot are what the forward stored.
 *
 * With a window, a row sees the last `window` positions, its own included. A page all of whose positions are before the
 * window of the next row is given back when slots are reserved the next time:
 *
 *     window 4, page size 2, length 7     next row: position 7, sees 4 5 6 7      page table [-, -, 4, 9]
 *
 * It is not given back earlier, because until then the sequence can be cut anywhere within the rows committed last. It
 * can be cut to other lengths only if their windows are still there (kv_can_cut), or if a mark holds the pages of the
 * window before it.
 */
#ifndef BACKEND_KV_PAGES_H
#define BACKEND_KV_PAGES_H

#include "base/mem.h"

#include <stdbool.h>

typedef struct KvShape {
    int32_t page_size; /* slots in a page, at least 1 */
    int32_t n_pages;   /* in all */
    int32_t max_sequences;
    int32_t n_ctx;   /* the greatest length of a sequence, uncommitted rows included */
    int32_t window;  /* positions that a row sees; 0: all */
    int32_t n_marks; /* with a window */
} KvShape;

/* The memory that the slots are in. */
typedef struct KvMemory {
    void *memory;
    void (*copy_slots)(void *memory, int32_t from, int32_t to, int32_t n); /* the ranges may overlap */
    void (*fill_slot)(void *memory, int32_t slot); /* with arbitrary numbers, for measurements */
} KvMemory;

typedef struct KvSequence {
    bool open;
    int32_t length;     /* committed tokens */
    int32_t n_reserved; /* slots past the length that may be written */
    int32_t n_pages;
    int32_t n_passed; /* how many of them were given back, at the beginning */
    int32_t *pages;   /* [n_pages], room for all of n_ctx; -1: passed */
    int32_t *slots;   /* [n_pages * page_size] slot of each logical position; -1: passed */
} KvSequence;

/* The pages of the window of a row that comes after `length` tokens. */
typedef struct KvMark {
    int32_t length, n_pages;
    int32_t *pages; /* [n_pages], room for those of a window */
} KvMark;

typedef struct KvPages {
    KvShape shape;
    KvMemory data;
    int32_t *ref_counts; /* [n_pages] */
    int32_t *free_pages; /* [n_free] */
    int32_t n_free;
    bool *is_counted;      /* [n_pages] scratch of kv_count_pages */
    KvSequence *sequences; /* [max_sequences] */
    KvMark *marks;         /* [n_marks] */
    Arena arena;
} KvPages;

int kv_open(KvPages *kv, const KvShape *shape, const KvMemory *data, fr_error *err);
void kv_close(KvPages *kv);

/* Opens an empty sequence, whose number is *out. Fails if all max_sequences are open. */
int kv_sequence_open(KvPages *kv, int32_t *out, fr_error *err);
/* Returns whether a sequence can be cut to its first n committed tokens, because the window of a row after them is
 * still there. This is always so without a window, and for n = 0. */
bool kv_can_cut(const KvPages *kv, int32_t sequence, int32_t n);
/* `to` forgets what it held and gets the first n committed tokens of `from` instead (kv_can_cut), whose pages it
 * shares. Takes no page. What either had reserved is forgotten. */
void kv_sequence_share(KvPages *kv, int32_t from, int32_t to, int32_t n);
void kv_sequence_close(KvPages *kv, int32_t sequence);

/* Returns the number of pages that the first n sequences hold together. */
int32_t kv_count_pages(const KvPages *kv, int32_t n);
/* Returns for how many uncommitted rows kv_reserve would find pages now. */
int32_t kv_room(const KvPages *kv, int32_t sequence);
/* Makes room for n uncommitted rows: takes pages, and copies shared ones. If the context or the pages do not suffice,
 * it fails and the sequence is as before. */
int kv_reserve(KvPages *kv, int32_t sequence, int32_t n, fr_error *err);
/* Keeps the uncommitted rows at offsets[0] < offsets[1] < ... (0: the first slot past the length) as the next n tokens
 * and forgets the other ones. */
void kv_commit(KvPages *kv, int32_t sequence, const int32_t *offsets, int32_t n);
/* Appends n committed tokens whose keys and values are arbitrary numbers. On failure the sequence is as before. */
int kv_pad(KvPages *kv, int32_t sequence, int32_t n, fr_error *err);
/* Returns how many positions at the beginning of a sequence of n tokens no later row sees, in whole pages. */
int32_t kv_n_unseen(const KvPages *kv, int32_t n);
/* Gives an empty sequence n committed tokens, with pages of its own for the positions that later rows see. The caller
 * fills their slots. On failure the sequence stays empty. */
int kv_load(KvPages *kv, int32_t sequence, int32_t n, fr_error *err);
/* Forgets everything from logical position `length` on (kv_can_cut). */
void kv_truncate(KvPages *kv, int32_t sequence, int32_t length);

/* kv_mark makes mark number `mark` hold the window of a row after the first n tokens (kv_can_cut), whose pages are
 * shared until kv_unmark. kv_restore makes a sequence forget what it held and gives it those n tokens. Without a window
 * they do nothing. */
void kv_mark(KvPages *kv, int32_t mark, int32_t sequence, int32_t n);
void kv_unmark(KvPages *kv, int32_t mark);
void kv_restore(KvPages *kv, int32_t mark, int32_t sequence);

#endif

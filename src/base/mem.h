/* mem.h - checked arithmetic on sizes, aligned memory, a buffer that grows up to a limit, and arenas. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- small arithmetic ---------------------------------------------------------------------------------------- */

/* False when a*b (or a+b) does not fit; *out is then unspecified. */
static inline bool size_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline double min_f64(double a, double b) { return a < b ? a : b; }

/* ---- aligned memory ------------------------------------------------------------------------------------------ */

enum { MEM_ALIGN = 64 };

/* 64-byte aligned memory, unspecified content; NULL when there is none. Blocks of 2 MiB and more are
 * aligned to huge pages, which the system is advised to use. Free it with mem_free (NULL is fine). */
void *mem_alloc(size_t bytes);
void *mem_calloc(size_t n, size_t bytes_each); /* zeroed; NULL on overflow too */
void mem_free(void *p);

/* ---- growing buffers ----------------------------------------------------------------------------------------- */

/* Bytes that grow up to max_bytes and then refuse to. Zero-initialise with the maximum set; data is always
 * followed by a '\0' that n does not count. */
typedef struct Buf {
    char *data;
    size_t n, capacity;
    size_t max_bytes;
} Buf;

bool buf_append(Buf *b, const void *bytes, size_t n); /* false: no memory, or more than max_bytes */
bool buf_reserve(Buf *b, size_t n);                   /* room for n more bytes; false as above */
void buf_clear(Buf *b);                               /* n = 0; keeps the memory */
void buf_free(Buf *b);

/* ---- arenas -------------------------------------------------------------------------------------------------- */

/* An arena is several arrays in one block of memory, which are listed in a table, taken together and freed together.
 *
 *     Arena a = {0};
 *     const ArenaItem items[] = {
 *         ARENA_ITEM(&d->logits, n_rows * n_vocab),      float *logits
 *         ARENA_ITEM(&d->tokens, n_rows),                int32_t *tokens
 *     };
 *     status = arena_take(&a, items, ARENA_COUNT(items), "a drafter", err);
 *     ...
 *     arena_free(&a);
 *
 * Each array is zeroed and begins on a cache line. An arena may be taken from several times. A call that fails
 * takes nothing and leaves the pointers as they were. */

typedef struct Arena {
    struct ArenaBlock *first; /* the block taken last; NULL: there is none */
} Arena;

typedef struct ArenaItem {
    void *out;      /* address of the pointer to set */
    size_t n, each; /* elements, and bytes of one */
} ArenaItem;

#define ARENA_ITEM(pointer, count) \
    { (pointer), (size_t)(count), sizeof **(pointer) }
#define ARENA_COUNT(items) (sizeof(items) / sizeof *(items))

/* Takes all items in one block. `what` names their owner in the error. */
int arena_take(Arena *a, const ArenaItem *items, size_t n_items, const char *what, fr_error *err);
/* Frees everything that was taken; the arena can be used again. A zeroed arena may be freed, too. */
void arena_free(Arena *a);

#endif

/* arena.h - several arrays in one block of memory: listed in a table, taken together, freed together.
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
 * Each array is zeroed and begins on a cache line. An arena may be taken from several times; on failure nothing
 * of that call is kept and the pointers are untouched.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/error.h"

#include <stddef.h>

typedef struct Arena {
    struct ArenaBlock *first; /* the block taken last; NULL: nothing is taken */
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
/* Frees everything taken; the arena can be used again. A zeroed arena is fine. */
void arena_free(Arena *a);

#endif

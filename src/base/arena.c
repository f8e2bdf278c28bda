/* arena.c - a list of blocks; each holds the arrays of one arena_take behind its head. */
#include "base/arena.h"

#include "base/mem.h"

#include <string.h>

struct ArenaBlock {
    struct ArenaBlock *next;
    char padding[MEM_ALIGN - sizeof(struct ArenaBlock *)]; /* the arrays begin on a cache line */
};

/* Bytes of an item, whole cache lines; false where they overflow. */
static bool item_bytes(const ArenaItem *item, size_t *out) {
    return size_mul(item->n, item->each, out) && size_add(*out, MEM_ALIGN - 1, out) && (*out -= *out % MEM_ALIGN, true);
}

int arena_take(Arena *a, const ArenaItem *items, size_t n_items, const char *what, fr_error *err) {
    size_t total = sizeof(struct ArenaBlock), bytes;
    for (size_t i = 0; i < n_items; i++)
        if (!item_bytes(&items[i], &bytes) || !size_add(total, bytes, &total)) return error_memory(err, what, SIZE_MAX);
    struct ArenaBlock *block = mem_calloc(1, total);
    if (!block) return error_memory(err, what, total);
    block->next = a->first;
    a->first = block;
    char *at = (char *)block + sizeof *block;
    for (size_t i = 0; i < n_items; i++) {
        memcpy(items[i].out, &at, sizeof at); /* item->out may point to any type of pointer */
        item_bytes(&items[i], &bytes);
        at += bytes;
    }
    return FR_OK;
}

void arena_free(Arena *a) {
    for (struct ArenaBlock *next; a->first; a->first = next) {
        next = a->first->next;
        mem_free(a->first);
    }
}

/* mem.c - aligned memory, in huge pages where a block is large, growing buffers, and arenas.
 *
 * Weights, KV cache and activations are read with vector loads and in long streams: cache lines must not be split, and
 * huge pages save most of the misses in the TLB. */
#include "base/mem.h"

#include "base/os.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HUGE_PAGE = 2 << 20 };

void *mem_alloc(size_t bytes) {
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : MEM_ALIGN, padded;
    if (!size_add(bytes ? bytes : 1, align - 1, &padded)) return NULL;
    padded -= padded % align;
    void *p = aligned_alloc(align, padded);
    if (p && align == HUGE_PAGE) os_use_huge_pages(p, padded);
    return p;
}

void *mem_calloc(size_t n, size_t bytes_each) {
    size_t bytes;
    if (!size_mul(n, bytes_each, &bytes)) return NULL;
    void *p = mem_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void mem_free(void *p) { free(p); }

bool buf_reserve(Buf *b, size_t n) {
    size_t need;
    if (!size_add(b->n, n, &need) || need > b->max_bytes) return false;
    if (need + 1 > b->capacity) {
        size_t capacity = b->capacity ? b->capacity : 64;
        while (capacity < need + 1) capacity *= 2;
        char *data = realloc(b->data, capacity);
        if (!data) return false;
        b->data = data;
        b->capacity = capacity;
    }
    return true;
}

bool buf_append(Buf *b, const void *bytes, size_t n) {
    if (!buf_reserve(b, n)) return false;
    if (n) memcpy(b->data + b->n, bytes, n);
    b->n += n;
    b->data[b->n] = '\0';
    return true;
}

void buf_clear(Buf *b) {
    b->n = 0;
    if (b->data) b->data[0] = '\0';
}

void buf_free(Buf *b) {
    free(b->data);
    b->data = NULL;
    b->n = b->capacity = 0;
}

/* ---- arenas -------------------------------------------------------------------------------------------------- */

/* An arena is a list of blocks, each of which holds the arrays of one arena_take after its head. */
struct ArenaBlock {
    struct ArenaBlock *next;
    char padding[MEM_ALIGN - sizeof(struct ArenaBlock *)]; /* the arrays begin on a cache line */
};

/* Computes the bytes of an item, rounded up to whole cache lines; false where they overflow. */
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

/* mem.c - aligned memory, in huge pages where a block is large, and the growing buffer.
 *
 * Weights, KV cache and activations are read with vector loads and in long streams: cache lines must not be split, and
 * huge pages save most of the misses in the TLB. */
#include "base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

void *mem_alloc(size_t bytes) {
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : MEM_ALIGN, padded;
    if (!size_add(bytes ? bytes : 1, align - 1, &padded)) return NULL;
    padded -= padded % align;
    void *p = aligned_alloc(align, padded);
    if (p && align == HUGE_PAGE) (void)madvise(p, padded, MADV_HUGEPAGE); /* only advice: a refusal is harmless */
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

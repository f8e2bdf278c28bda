/* mem.h - checked arithmetic on sizes, aligned memory, and a buffer that grows up to a limit. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

/* False when a*b (or a+b) does not fit; *out is then unspecified. */
static inline bool size_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

enum { MEM_ALIGN = 64 };

/* 64-byte aligned memory, unspecified content; NULL when there is none. Blocks of 2 MiB and more are
 * aligned to huge pages, which the system is advised to use. Free it with mem_free (NULL is fine). */
void *mem_alloc(size_t bytes);
void *mem_calloc(size_t n, size_t bytes_each); /* zeroed; NULL on overflow too */
void mem_free(void *p);

/* Bytes that grow up to max_bytes and then refuse. Zero-initialise with the maximum set; data is always
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

#endif

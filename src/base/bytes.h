/* bytes.h - reads values from bytes that may be damaged. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct ByteReader {
    const char *at, *end;
} ByteReader;

/* Returns the next n bytes, which may be unaligned. NULL: fewer are left, and none are taken. */
static inline const void *bytes_take(ByteReader *r, size_t n) {
    if (n > (size_t)(r->end - r->at)) return NULL;
    const char *taken = r->at;
    r->at += n;
    return taken;
}

/* Copies the next n bytes. False: fewer are left, and *out is unchanged. */
static inline bool bytes_read(ByteReader *r, void *out, size_t n) {
    const void *from = bytes_take(r, n);
    if (from && n) memcpy(out, from, n);
    return from != NULL;
}

#endif

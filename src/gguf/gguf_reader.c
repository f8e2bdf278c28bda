/* gguf_reader.c - takes bytes, numbers and names from a file of unknown origin; each function refuses to pass the end
 * and says what was being read. */
#include "gguf/gguf_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int reader_refuse(Reader *r, fr_code code, const char *fmt, ...) {
    char sentence[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    return error_set(r->err, code, "%.100s: %s", r->g->path, sentence);
}

size_t reader_left(const Reader *r) { return r->g->n_bytes - r->at; }

const uint8_t *reader_take(Reader *r, size_t n, const char *what) {
    if (n > reader_left(r)) {
        reader_refuse(r, FR_ERR_FORMAT, "the file ends inside %s: it has %zu bytes and needs %zu; fetch it again", what,
                      r->g->n_bytes, r->at + n);
        return NULL;
    }
    const uint8_t *p = r->g->bytes + r->at;
    r->at += n;
    return p;
}

int reader_u32(Reader *r, const char *what, uint32_t *out) {
    const uint8_t *p = reader_take(r, sizeof *out, what);
    if (!p) return FR_ERR_FORMAT;
    memcpy(out, p, sizeof *out);
    return FR_OK;
}

int reader_u64(Reader *r, const char *what, uint64_t *out) {
    const uint8_t *p = reader_take(r, sizeof *out, what);
    if (!p) return FR_ERR_FORMAT;
    memcpy(out, p, sizeof *out);
    return FR_OK;
}

int reader_name(Reader *r, const char *what, size_t max_bytes, const char **out) {
    uint64_t n;
    if (reader_u64(r, what, &n)) return FR_ERR_FORMAT;
    if (n == 0 || n > max_bytes)
        return reader_refuse(r, FR_ERR_FORMAT, "%s at byte %zu is %llu bytes long; 1 to %zu are allowed", what,
                             r->at - 8, (unsigned long long)n, max_bytes);
    const uint8_t *p = reader_take(r, (size_t)n, what);
    if (!p) return FR_ERR_FORMAT;
    if (memchr(p, '\0', (size_t)n))
        return reader_refuse(r, FR_ERR_FORMAT, "%s at byte %zu holds a zero byte", what, r->at - (size_t)n);
    char *name = gguf_allocate(r->g, (size_t)n + 1);
    if (!name) return error_memory(r->err, what, (size_t)n + 1);
    memcpy(name, p, (size_t)n);
    name[n] = '\0';
    *out = name;
    return FR_OK;
}

/* gguf_reader.h - a cursor over the bytes of a file that cannot pass their end. Only for the GGUF reader. */
#ifndef FORMAT_GGUF_READER_H
#define FORMAT_GGUF_READER_H

#include "gguf/gguf_internal.h"

typedef struct Reader {
    Gguf *g;
    size_t at; /* the next byte to read; never past g->n_bytes */
    fr_error *err;
} Reader;

/* Sets the error to "PATH: sentence" and returns code. Names from the file must be printable() first. */
__attribute__((format(printf, 3, 4))) int reader_refuse(Reader *r, fr_code code, const char *fmt, ...);

size_t reader_left(const Reader *r);

/* The next n bytes, or NULL with the error set; `what` names the thing that is being read. */
const uint8_t *reader_take(Reader *r, size_t n, const char *what);
int reader_u32(Reader *r, const char *what, uint32_t *out);
int reader_u64(Reader *r, const char *what, uint64_t *out);

/* A key or a tensor name: checked to be short, not empty and without '\0', and copied with a '\0' at its end. */
int reader_name(Reader *r, const char *what, size_t max_bytes, const char **out);

/* The tensor infos that follow the key-values, and their data. */
int gguf_parse_infos(Reader *r);

#endif

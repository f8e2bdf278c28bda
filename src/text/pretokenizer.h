/* pretokenizer.h - cuts a text into the words that byte-level BPE may merge within. */
#ifndef TEXT_PRETOKENIZER_H
#define TEXT_PRETOKENIZER_H

#include "text/encoding.h"
#include "text/pre_patterns.h"

typedef struct Pretokenizer Pretokenizer; /* immutable after open */

/* `name` is tokenizer.ggml.pre; the error for an unknown one lists the known ones. `path` is used in messages. */
int pretokenizer_open(Pretokenizer **out, const char *name, size_t n, const char *path, fr_error *err);
void pretokenizer_close(Pretokenizer *p);

unsigned pretokenizer_flags(const Pretokenizer *p); /* PRE_* */
/* The same by name, before anything is opened; 0 for an unknown name. */
unsigned pretokenizer_flags_of(const char *name, size_t n);

/* Cuts text[0..n) (n > 0, any bytes); *ends points into e: the pieces are [0, ends[0]), [ends[0], ends[1]),
 * ... */
int pretokenizer_split(const Pretokenizer *p, const char *text, size_t n, Encoding *e, const size_t **ends,
                       size_t *n_ends, fr_error *err);

#endif

/* pretokenizer.h - cuts a text into the words that byte-level BPE may merge within. */
#ifndef TEXT_PRETOKENIZER_H
#define TEXT_PRETOKENIZER_H

#include "text/encoding.h"

typedef struct Pretokenizer Pretokenizer; /* immutable after open */

/* `name` is tokenizer.ggml.pre; the error for an unknown one lists the known ones. `path` is used in messages. */
int pretokenizer_open(Pretokenizer **out, const char *name, size_t n, const char *path, fr_error *err);
void pretokenizer_close(Pretokenizer *p);

/* Conventions that come with the name, not with the file. */
bool pretokenizer_adds_bos(const Pretokenizer *p);       /* where the file does not say */
bool pretokenizer_ignores_merges(const Pretokenizer *p); /* a word that is a token is taken whole */

/* Cuts text[0..n) (n > 0, any bytes); *ends points into e: the pieces are [0, ends[0]), [ends[0], ends[1]),
 * ... */
int pretokenizer_split(const Pretokenizer *p, const char *text, size_t n, Encoding *e, const size_t **ends,
                       size_t *n_ends, fr_error *err);

#endif

/* encoding.h - the growing list of token ids, and the scratch memory of one call of tokenizer_encode. */
#ifndef TEXT_ENCODING_H
#define TEXT_ENCODING_H

#include "base/mem.h"
#include "text/pair_merge.h"
#include "text/vocab.h"

typedef struct Encoding {
    int32_t *ids; /* malloc'ed */
    int64_t n, capacity;
    Merger merger;
    Buf text;        /* SPM: the normalised text */
    Buf unmarked;    /* BPE over characters: the text with spaces for U+2581 */
    size_t *ends[2]; /* BPE: where the pieces of the pre-tokenizer end: two lists, used alternately */
    size_t n_ends[2], ends_capacity[2];
} Encoding;

bool encoding_add(Encoding *e, int32_t id); /* false: no memory */

/* Adds the tokens for bytes without a piece: their byte tokens where the vocabulary has them; otherwise the unknown
 * token, once for a run of such bytes (*unknown_run: a run has begun); otherwise nothing. */
bool encoding_add_bytes(Encoding *e, const Vocab *v, const char *bytes, size_t n, bool *unknown_run);

/* Copies text[0..n) with a space for each U+2581, which vocabularies write for a space; returns the length of out. */
size_t marks_to_spaces(const char *text, size_t n, char *out);
/* Sets the symbols to the characters of text[at..end); bytes that are not UTF-8 are symbols of their own. */
bool merger_add_characters(Merger *m, const Vocab *v, const char *text, size_t at, size_t end);

void encoding_close(Encoding *e); /* frees all but ids */

#endif

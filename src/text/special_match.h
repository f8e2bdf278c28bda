/* special_match.h - finds special tokens in a text: the leftmost, and of several there the longest. */
#ifndef TEXT_SPECIAL_MATCH_H
#define TEXT_SPECIAL_MATCH_H

#include "text/vocab.h"

typedef struct SpecialPiece {
    Piece piece; /* borrowed from the Vocab */
    int32_t id;
} SpecialPiece;

typedef struct SpecialSet {
    SpecialPiece *sorted; /* by bytes, then id */
    int32_t n;
    int32_t first[257]; /* those that begin with byte c are [first[c], first[c + 1]) */
} SpecialSet;

/* The user-defined tokens; with `all` the control and unknown ones too. Zero-initialise. */
int special_set_open(SpecialSet *s, const Vocab *v, bool all, fr_error *err);
void special_set_close(SpecialSet *s);

/* The first special token in text[from..n): its position (n when there is none), *id and *n_bytes. */
size_t special_set_find(const SpecialSet *s, const char *text, size_t n, size_t from, int32_t *id, size_t *n_bytes);

#endif

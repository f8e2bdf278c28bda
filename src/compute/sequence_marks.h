/* sequence_marks.h - lengths to which sequences can be cut, or at which others can take them over, although what lies behind
 * cannot be rolled back: a recurrent state, or the keys that a window has passed.
 */
#ifndef BACKEND_SEQUENCE_MARKS_H
#define BACKEND_SEQUENCE_MARKS_H

#include "compute/kv_pages.h"

enum { SEQUENCE_MARKS_MAX = 8 }; /* of one sequence */

typedef struct SequenceMark {
    int32_t length; /* tokens before it */
    int32_t n_refs; /* sequences that have it; 0: it is free */
    uint64_t last_use;
} SequenceMark;

typedef struct SequenceMarkList {
    int32_t n, ids[SEQUENCE_MARKS_MAX]; /* by length */
} SequenceMarkList;

typedef struct SequenceMarks {
    KvPages *pages;          /* those of the windows, which hold the pages of a mark */
    SequenceMark *marks;     /* [n_marks] */
    SequenceMarkList *lists; /* [n_sequences] */
    int32_t n_marks, n_sequences;
    uint64_t n_uses;
    Arena arena;
} SequenceMarks;

/* No sequence has a mark. n_marks 0: none ever will. */
int sequence_marks_open(SequenceMarks *m, KvPages *pages, int32_t n_sequences, int32_t n_marks, fr_error *err);
void sequence_marks_close(SequenceMarks *m);

/* The longest mark of a sequence of at most `length` tokens; -1: there is none. */
int32_t sequence_marks_find(const SequenceMarks *m, int32_t sequence, int32_t length);
/* A new mark of the sequence, for which the least recently used one makes room; -1: there is no room for any. */
int32_t sequence_marks_add(SequenceMarks *m, int32_t sequence, int32_t length);
/* It was of use. */
void sequence_marks_use(SequenceMarks *m, int32_t mark);
/* The sequence has no marks behind its first `length` tokens any more. */
void sequence_marks_cut(SequenceMarks *m, int32_t sequence, int32_t length);
/* `to` has the marks of `from` among its first `length` tokens, and no others. */
void sequence_marks_share(SequenceMarks *m, int32_t from, int32_t to, int32_t length);
/* Forgets the least recently used mark. False: there is none. */
bool sequence_marks_drop(SequenceMarks *m);

#endif

/* sequences.h - the sequences of an executor: the page tables of their keys and values, their recurrent states, and
 * marks.
 *
 * A sequence is known by its number. Its keys and values, its windows and its recurrent state are opened, cut, shared
 * and marked together. executor.h passes these functions on.
 */
#ifndef COMPUTE_SEQUENCES_H
#define COMPUTE_SEQUENCES_H

#include "base/bytes.h"
#include "compute/backend.h"
#include "compute/kv_pages.h"

/* ---- marks (sequence_marks.c) ---------------------------------------------------------------------- */

enum { SEQUENCE_MARKS_MAX = 8 }; /* the most marks of one sequence */

/* A length to which a sequence can be cut, or at which another one can take it over, although a recurrent state, or a
 * window that has given back its keys, cannot be rolled back to it. */
typedef struct SequenceMark {
    int32_t length; /* the number of tokens before the mark */
    int32_t n_refs; /* the number of sequences that have the mark; 0: it is free */
    uint64_t last_use;
} SequenceMark;

typedef struct SequenceMarkList {
    int32_t n, ids[SEQUENCE_MARKS_MAX]; /* in order of length */
} SequenceMarkList;

typedef struct SequenceMarks {
    KvPages *pages;          /* those of the windows, which hold the pages of a mark */
    SequenceMark *marks;     /* [n_marks] */
    SequenceMarkList *lists; /* [n_sequences] */
    int32_t n_marks, n_sequences;
    uint64_t n_uses;
    Arena arena;
} SequenceMarks;

/* No sequence has a mark at first. With n_marks 0, none ever will. */
int sequence_marks_open(SequenceMarks *m, KvPages *pages, int32_t n_sequences, int32_t n_marks, fr_error *err);
void sequence_marks_close(SequenceMarks *m);
/* Returns the longest mark of a sequence of at most `length` tokens; -1: there is none. */
int32_t sequence_marks_find(const SequenceMarks *m, int32_t sequence, int32_t length);
/* Adds a mark to the sequence. The least recently used one makes room for it; -1: there is no room for any. */
int32_t sequence_marks_add(SequenceMarks *m, int32_t sequence, int32_t length);
/* Notes that a mark was used just now. */
void sequence_marks_use(SequenceMarks *m, int32_t mark);
/* Removes the marks of a sequence that are longer than `length`. */
void sequence_marks_cut(SequenceMarks *m, int32_t sequence, int32_t length);
/* Gives `to` the marks of `from` among its first `length` tokens, and no others. */
void sequence_marks_share(SequenceMarks *m, int32_t from, int32_t to, int32_t length);
/* Forgets the least recently used mark; false: there is none. */
bool sequence_marks_drop(SequenceMarks *m);

/* ---- sequences ------------------------------------------------------------------------------------- */

/* How many tokens the recurrent state of a sequence has taken in. */
typedef struct SequenceState {
    int32_t length;           /* tokens that the state has taken in */
    int32_t first, n_pending; /* rows [first, first + n_pending) of SequenceTable.pending follow them */
} SequenceState;

typedef struct SequenceTableShape {
    int32_t page_size, n_ctx, max_sequences, max_rows;
    int32_t n_pages;
    int32_t n_window_pages; /* pages of the layers with a window; 0: these layers use the pages of the others */
    int32_t n_marks;
} SequenceTableShape;

typedef struct SequenceTable {
    Context *context;
    KvPages kv[KV_GROUPS]; /* [n_tables] */
    int n_tables;          /* 2: layers with a window have pages of their own */
    SequenceMarks marks;
    SequenceState *states; /* [max_sequences]; NULL: the model has no recurrent layers */
    int32_t n_pending;
    int32_t *pending; /* [n_pending] committed rows of the last forward, sequence by sequence; room for max_rows */
    StateStep *steps; /* [max_sequences] scratch */
    Arena arena;
} SequenceTable;

/* Returns the number of the state in the context that belongs to a mark. */
static inline int32_t sequence_mark_state(const SequenceTable *s, int32_t mark) { return s->marks.n_sequences + mark; }
/* Returns the end of the groups of layers that use a page table; the first one has the number of the table. */
static inline int sequence_group_end(const SequenceTable *s, int table) {
    return s->n_tables == 1 ? KV_GROUPS : table + 1;
}

/* The context is borrowed. State i of the context is that of sequence i, and state max_sequences + k that of mark k. */
int sequence_table_open(SequenceTable *s, Context *c, const SequenceTableShape *shape, fr_error *err);
void sequence_table_close(SequenceTable *s);
/* Returns whether sequences of this model can be cut only at their end and at marks, if windows have n_window_pages
 * pages of their own. */
bool sequence_table_need_marks(const Model *m, int64_t n_window_pages);

int sequence_open(SequenceTable *s, int32_t *out, fr_error *err);
void sequence_close(SequenceTable *s, int32_t id);
int32_t sequence_length(const SequenceTable *s, int32_t id);
/* See executor_sequence_reach and the functions after it. */
int32_t sequence_reach(const SequenceTable *s, int32_t id, int32_t n);
void sequence_share(SequenceTable *s, int32_t from, int32_t to, int32_t n);
void sequence_truncate(SequenceTable *s, int32_t id, int32_t length);
void sequence_mark(SequenceTable *s, int32_t id, int32_t n);
int sequence_pad(SequenceTable *s, int32_t id, int32_t n, fr_error *err);
int32_t sequence_room(const SequenceTable *s, int32_t id, int32_t n_ahead);
bool sequence_drop_mark(SequenceTable *s, int32_t id, int32_t n);
int sequence_reserve(SequenceTable *s, int32_t id, int32_t n_rows, int32_t n_ahead, fr_error *err);

/* A forward needs these: the number of rows that are reserved, and the slots of a layer group. The slot of a row that
 * is not committed yet is slots[length + index], where index counts the rows of its sequence. */
bool sequence_is_open(const SequenceTable *s, int32_t id);
int32_t sequence_n_reserved(const SequenceTable *s, int32_t id);
const int32_t *sequence_slots(const SequenceTable *s, int32_t id, int table);
/* See executor_sequence_save and executor_sequence_load (sequence_saving.c). */
bool sequence_save(const SequenceTable *s, int32_t id, Buf *out);
int sequence_load(SequenceTable *s, int32_t id, ByteReader *in, fr_error *err);

/* Advances all recurrent states. Must be called before a forward overwrites what is known of the rows of the last
 * one. */
void sequence_table_advance(SequenceTable *s);
/* Keeps the rows at these offsets past the length (kv_commit); rows [n] are their numbers in the forward. May
 * be called once for each sequence and forward. */
void sequence_commit(SequenceTable *s, int32_t id, const int32_t *offsets, const int32_t *rows, int32_t n);

#endif

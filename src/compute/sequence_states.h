/* sequence_states.h - how far the recurrent state of each sequence is: a model with such layers (layer_has_state) has one state
 * for each sequence, which can be moved on and copied, but not back.
 */
#ifndef BACKEND_SEQUENCE_STATES_H
#define BACKEND_SEQUENCE_STATES_H

#include "compute/backend.h"
#include "compute/sequence_marks.h"
#include "base/mem.h"

typedef struct SequenceState {
    int32_t length;           /* tokens that the state has taken in */
    int32_t first, n_pending; /* rows [first, first + n_pending) of SequenceStates.pending follow these */
} SequenceState;

typedef struct SequenceStates {
    Context *context; /* NULL: the model has no recurrent layers, and all of this does nothing */
    const SequenceMarks *marks;
    SequenceState *sequences; /* [n_sequences] */
    int32_t n_sequences, n_pending;
    int32_t *pending; /* [n_pending] committed rows of the last forward, by sequence; room for max_rows */
    StateStep *steps; /* [n_sequences] scratch */
    Arena arena;
} SequenceStates;

/* State i of the context is that of sequence i, state n_sequences + k that of mark k. All are empty at first. The context and the marks
 * are borrowed; max_rows: of a forward. */
int sequence_states_open(SequenceStates *s, Context *c, const SequenceMarks *marks, int32_t max_rows, fr_error *err);
void sequence_states_close(SequenceStates *s);

/* Whether the state after the first n tokens of a sequence is known without a mark; that after none always is. */
bool sequence_states_know(const SequenceStates *s, int32_t sequence, int32_t n);

/* The sequence has these rows of the last forward as well. Once per sequence and forward. */
void sequence_states_commit(SequenceStates *s, int32_t sequence, const int32_t *rows, int32_t n);
/* Before the next forward, which overwrites what is known of the rows of the last: moves all states on. */
void sequence_states_apply(SequenceStates *s);
/* Cuts the sequence to a length whose state is known. */
void sequence_states_truncate(SequenceStates *s, int32_t sequence, int32_t length);
/* `to` becomes the first n tokens of `from`, whose state is known. */
void sequence_states_share(SequenceStates *s, int32_t from, int32_t to, int32_t n);
/* The new mark has the state after n tokens of the sequence, which is known; and a sequence becomes the tokens before a
 * mark. */
void sequence_states_mark(SequenceStates *s, int32_t mark, int32_t sequence, int32_t n);
void sequence_states_restore(SequenceStates *s, int32_t mark, int32_t sequence);
/* The sequence has n tokens more that were never run; its state becomes zeros. */
void sequence_states_pad(SequenceStates *s, int32_t sequence, int32_t n);

#endif

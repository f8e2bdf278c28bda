/* sequence_states.c - the recurrent states of sequences between forwards: which committed rows they do not contain yet.
 *
 * Problem. A layer with a recurrent state reads one matrix for each head in the place of all earlier keys. A forward over a
 * token tree cannot write it, because nobody knows yet which path is accepted; and one copy for each row would be far
 * larger than everything else (75 MB a row of Qwen3-Next 80B).
 *
 * Idea. A forward only reads the states of the committed tokens, and stores for each row the inputs of the recurrence:
 * queries, keys and values before the convolution, and two gates for each head (1.2 MB a row of the same model). A commit
 * records the rows of the accepted path. The next forward begins by running the recurrence over them, with the same operations
 * in the same order as the forward that verified them, so that the state has the bits that plain decoding would have left.
 *
 *     forward   a b c d     state: the tokens before a
 *     commit    a c         pending: a c
 *     forward   e ...       first the state takes in a and c; then rows read it
 *
 * Until then, pending rows can be rolled back: a sequence can be truncated or shared at every length from that of its state on.
 * Shorter lengths are available where they were marked, which copies the state (sequence_marks.c), and 0, where all tokens are
 * read again.
 *
 * Invariants. length + n_pending is the committed length of the sequence. No row is pending while a forward runs.
 *
 * Cost. One pass over the state for each accepted token, which reads and writes it once in all; a state for each sequence and
 * for each mark.
 *
 * Proof: tests/compute/test_sequence_states.c (a state one token too far is seen), test_forward.c, test_architectures.c. */
#include "compute/sequence_states.h"

#include <string.h>

int sequence_states_open(SequenceStates *s, Context *c, const SequenceMarks *marks, int32_t max_rows, fr_error *err) {
    *s = (SequenceStates){0};
    if (model_n_states(c->weights->model) == 0) return FR_OK;
    const ArenaItem items[] = {ARENA_ITEM(&s->sequences, marks->n_sequences), ARENA_ITEM(&s->steps, marks->n_sequences),
                               ARENA_ITEM(&s->pending, max_rows)};
    int status = arena_take(&s->arena, items, ARENA_COUNT(items), "the states of sequences", err);
    if (status) return status;
    s->context = c;
    s->marks = marks;
    s->n_sequences = marks->n_sequences;
    return FR_OK;
}

void sequence_states_close(SequenceStates *s) {
    arena_free(&s->arena);
    *s = (SequenceStates){0};
}

bool sequence_states_know(const SequenceStates *s, int32_t sequence, int32_t n) {
    return !s->context || n == 0 || n >= s->sequences[sequence].length;
}

void sequence_states_commit(SequenceStates *s, int32_t sequence, const int32_t *rows, int32_t n) {
    if (!s->context || n == 0) return;
    SequenceState *q = &s->sequences[sequence];
    fr_assert(q->n_pending == 0);
    q->first = s->n_pending;
    q->n_pending = n;
    memcpy(s->pending + q->first, rows, (size_t)n * sizeof *rows);
    s->n_pending += n;
}

static int32_t state_of_mark(const SequenceStates *s, int32_t mark) { return s->n_sequences + mark; }

/* Advances the state of `from` by its first n pending rows, into `to`. The state of a mark among these rows has taken in those
 * before it already. */
static StateStep step_of(const SequenceStates *s, int32_t from, int32_t to, int32_t n) {
    const SequenceState *q = &s->sequences[from];
    int32_t mark = sequence_marks_find(s->marks, from, q->length + n), done = 0;
    if (mark >= 0 && state_of_mark(s, mark) == to) mark = sequence_marks_find(s->marks, from, q->length + n - 1);
    if (mark >= 0 && s->marks->marks[mark].length > q->length) done = s->marks->marks[mark].length - q->length;
    return (StateStep){.from = done ? state_of_mark(s, mark) : from,
                       .to = to,
                       .length = q->length + done,
                       .n_rows = n - done,
                       .rows = s->pending + q->first + done};
}

static void advance(const SequenceStates *s, const StateStep *steps, int32_t n) {
    if (n) s->context->device->backend->advance_states(s->context, steps, n);
}

void sequence_states_apply(SequenceStates *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_sequences; i++) {
        SequenceState *q = &s->sequences[i];
        if (q->n_pending == 0) continue;
        s->steps[n++] = step_of(s, i, i, q->n_pending);
        q->length += q->n_pending;
        q->n_pending = 0;
    }
    advance(s, s->steps, n);
    s->n_pending = 0;
}

void sequence_states_truncate(SequenceStates *s, int32_t sequence, int32_t length) {
    if (!s->context) return;
    SequenceState *q = &s->sequences[sequence];
    fr_assert(sequence_states_know(s, sequence, length) && length <= q->length + q->n_pending);
    q->n_pending = length < q->length ? 0 : length - q->length;
    if (length < q->length) q->length = length;
}

void sequence_states_share(SequenceStates *s, int32_t from, int32_t to, int32_t n) {
    if (!s->context) return;
    const SequenceState *q = &s->sequences[from];
    fr_assert(sequence_states_know(s, from, n) && n <= q->length + q->n_pending);
    StateStep step = n > 0 ? step_of(s, from, to, n - q->length) : (StateStep){.from = from, .to = to};
    advance(s, &step, n > 0);
    s->sequences[to] = (SequenceState){.length = n};
}

void sequence_states_mark(SequenceStates *s, int32_t mark, int32_t sequence, int32_t n) {
    if (!s->context) return;
    StateStep step = step_of(s, sequence, state_of_mark(s, mark), n - s->sequences[sequence].length);
    advance(s, &step, 1);
}

void sequence_states_restore(SequenceStates *s, int32_t mark, int32_t sequence) {
    if (!s->context) return;
    int32_t length = s->marks->marks[mark].length;
    const StateStep step = {.from = state_of_mark(s, mark), .to = sequence, .length = length};
    advance(s, &step, 1);
    s->sequences[sequence] = (SequenceState){.length = length};
}

void sequence_states_pad(SequenceStates *s, int32_t sequence, int32_t n) {
    if (!s->context) return;
    const StateStep zeros = {.from = sequence, .to = sequence};
    advance(s, &zeros, 1);
    s->sequences[sequence] = (SequenceState){.length = s->sequences[sequence].length + n};
}

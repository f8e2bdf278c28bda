/* sequence_states.c - the recurrent states of sequences between forwards: which committed rows they still lack.
 *
 * Problem. A layer with a recurrent state reads one matrix for each head in the place of all earlier keys. A forward over a
 * token tree cannot write it, because nobody knows yet which path is accepted; and one copy for each row would be far
 * larger than everything else (75 MB a row of Qwen3-Next 80B).
 *
 * Idea. A forward leaves the states of the committed tokens alone and keeps of each row only what the recurrence reads:
 * queries, keys and values before the convolution, and two gates for each head (1.2 MB a row of the same model). A commit
 * notes the rows of the accepted path. The next forward begins by running the recurrence over them, with the operations
 * and in the order of the forward that verified them: so the state has the bits that plain decoding would have left.
 *
 *     forward   a b c d     state: the tokens before a
 *     commit    a c         pending: a c
 *     forward   e ...       first the state takes in a and c; then rows read it
 *
 * Until then, rows that are pending can be taken back: a sequence can be cut or shared at each length from its state's on.
 * A shorter one has no state any more, and all that is left is length 0, from where the tokens are read again.
 *
 * Invariants. length + n_pending is the committed length of the sequence. No row is pending while a forward runs.
 *
 * Cost. One pass over the state for each accepted token, which reads and writes it once in all; a preempted request, or
 * one that shares a part of a longer context, reads its tokens again from the first. Snapshots at the borders of pages would
 * avoid this, at the price of a state each.
 *
 * Proof: tests/unit/test_sequence_states.c (a state one token too far is seen), test_forward.c, test_architectures.c. */
#include "backend/sequence_states.h"

#include <string.h>

int sequence_states_open(SequenceStates *s, Context *c, int32_t n_sequences, int32_t max_rows, fr_error *err) {
    *s = (SequenceStates){0};
    if (model_n_states(c->weights->model) == 0) return FR_OK;
    const ArenaItem items[] = {ARENA_ITEM(&s->sequences, n_sequences), ARENA_ITEM(&s->steps, n_sequences),
                               ARENA_ITEM(&s->pending, max_rows)};
    int status = arena_take(&s->arena, items, ARENA_COUNT(items), "the states of sequences", err);
    if (status) return status;
    s->context = c;
    s->n_sequences = n_sequences;
    memset(s->sequences, 0, (size_t)n_sequences * sizeof *s->sequences);
    return FR_OK;
}

void sequence_states_close(SequenceStates *s) {
    arena_free(&s->arena);
    *s = (SequenceStates){0};
}

int32_t sequence_states_reach(const SequenceStates *s, int32_t sequence, int32_t length) {
    return !s->context || length >= s->sequences[sequence].length ? length : 0;
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

/* Moves the state of `from` on by its first n pending rows, into `to`. */
static StateStep step_of(const SequenceStates *s, int32_t from, int32_t to, int32_t n) {
    const SequenceState *q = &s->sequences[from];
    return (StateStep){.from = from, .to = to, .length = q->length, .n_rows = n, .rows = s->pending + q->first};
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
    fr_assert(length == 0 || (length >= q->length && length <= q->length + q->n_pending));
    if (length == 0) *q = (SequenceState){0};
    else q->n_pending = length - q->length;
}

void sequence_states_share(SequenceStates *s, int32_t from, int32_t to, int32_t n) {
    if (!s->context) return;
    const SequenceState *q = &s->sequences[from];
    fr_assert(n == 0 || (n >= q->length && n <= q->length + q->n_pending));
    if (n) {
        StateStep step = step_of(s, from, to, n - q->length);
        advance(s, &step, 1);
    }
    s->sequences[to] = (SequenceState){.length = n};
}

void sequence_states_pad(SequenceStates *s, int32_t sequence, int32_t n) {
    if (!s->context) return;
    const StateStep zeros = {.from = sequence, .to = sequence};
    advance(s, &zeros, 1);
    s->sequences[sequence] = (SequenceState){.length = s->sequences[sequence].length + n};
}

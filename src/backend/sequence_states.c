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
 * One shorter length is available if it was marked, which copies the state: the engine marks the last page border of the
 * prompt, so that a request with the same prompt, or one whose pages were taken, starts there. Without a mark, only
 * length 0 is left, and the tokens are read again.
 *
 * Invariants. length + n_pending is the committed length of the sequence. No row is pending while a forward runs.
 *
 * Cost. One pass over the state for each accepted token, which reads and writes it once in all; two states a sequence. A
 * request that loses more pages than those behind its mark, or shares less of another context than up to there, reads all of its tokens
 * again: states at more borders would avoid this, at the price of a state each.
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
    if (!s->context || length >= s->sequences[sequence].length) return length;
    return length >= s->sequences[sequence].mark ? s->sequences[sequence].mark : 0;
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

/* The number of the state that a sequence keeps beside its own. */
static int32_t mark_of(const SequenceStates *s, int32_t sequence) { return s->n_sequences + sequence; }

/* Advances the state of `from` by its first n pending rows, into `to`. What is marked among these rows has taken in those
 * before it already. */
static StateStep step_of(const SequenceStates *s, int32_t from, int32_t to, int32_t n) {
    const SequenceState *q = &s->sequences[from];
    int32_t done = q->mark > q->length && q->length + n >= q->mark ? q->mark - q->length : 0;
    return (StateStep){.from = done ? mark_of(s, from) : from,
                       .to = to,
                       .length = q->length + done,
                       .n_rows = n - done,
                       .rows = s->pending + q->first + done};
}

/* Copies what a sequence has marked. */
static StateStep marked(const SequenceStates *s, int32_t sequence, int32_t to) {
    return (StateStep){.from = mark_of(s, sequence), .to = to, .length = s->sequences[sequence].mark};
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
    fr_assert(sequence_states_reach(s, sequence, length) == length && length <= q->length + q->n_pending);
    if (length < q->length && length > 0) {
        StateStep back = marked(s, sequence, sequence);
        advance(s, &back, 1);
    }
    q->n_pending = length < q->length ? 0 : length - q->length;
    if (length < q->length) q->length = length;
    if (length < q->mark) q->mark = 0;
}

void sequence_states_share(SequenceStates *s, int32_t from, int32_t to, int32_t n) {
    if (!s->context) return;
    const SequenceState *q = &s->sequences[from];
    fr_assert(sequence_states_reach(s, from, n) == n && n <= q->length + q->n_pending);
    bool has_mark = q->mark > 0 && q->mark <= n;
    StateStep steps[2];
    steps[0] = n >= q->length ? step_of(s, from, to, n - q->length) : marked(s, from, to);
    steps[1] = marked(s, from, mark_of(s, to));
    advance(s, steps, n == 0 ? 0 : 1 + has_mark);
    s->sequences[to] = (SequenceState){.length = n, .mark = has_mark ? q->mark : 0};
}

void sequence_states_mark(SequenceStates *s, int32_t sequence, int32_t n) {
    if (!s->context || n == 0 || sequence_states_reach(s, sequence, n) != n || n == s->sequences[sequence].mark) return;
    StateStep step = step_of(s, sequence, mark_of(s, sequence), n - s->sequences[sequence].length);
    advance(s, &step, 1);
    s->sequences[sequence].mark = n;
}

void sequence_states_pad(SequenceStates *s, int32_t sequence, int32_t n) {
    if (!s->context) return;
    const StateStep zeros = {.from = sequence, .to = sequence};
    advance(s, &zeros, 1);
    s->sequences[sequence] = (SequenceState){.length = s->sequences[sequence].length + n};
}

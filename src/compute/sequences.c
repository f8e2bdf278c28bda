/* sequences.c - what a sequence consists of, kept in step: keys of the layers that see everything, keys of those with a
 * window, recurrent states, and marks.
 *
 * Pages. There are one or two page tables. A model with windows may have a second one for the layers with a window
 * (KV_WINDOW), whose pages are fewer and are given back when all rows to come are past them. The layers that see
 * everything never give back any. Lengths and reservations are the same in both.
 *
 * States. A layer with a recurrent state reads one matrix for each head in the place of all earlier keys. A forward
 * over a token tree cannot write it, because it is not known yet which path will be accepted; and one copy for each row
 * would be far larger than everything else (75 MB a row of Qwen3-Next 80B). So a forward only reads the states of the
 * committed tokens, and stores for each row the inputs of the recurrence: queries, keys and values before the
 * convolution, and two gates for each head (1.2 MB a row of the same model). A commit records the rows of the accepted
 * path. The next forward begins by running the recurrence over them, with the same operations in the same order as the
 * forward that verified them, so that the state has the bits that plain decoding would have left.
 *
 *     forward   a b c d     state: the tokens before a
 *     commit    a c         pending: a c
 *     forward   e ...       first the state takes in a and c; then rows read it
 *
 * Marks (sequence_marks.c). Keys of layers that see everything can be cut anywhere. A recurrent state, or a window that
 * gives back its keys, is whole only at the end, and at the marks, for which a copy of it is kept.
 *
 * The first table can be cut anywhere. The second one and the recurrent state can be cut at all lengths since the last
 * forward began, at marks, and at 0. sequence_reach gives what all of them allow.
 *
 *     positions      0 ........ 400 ....... 512 ............ 900 ... 1000
 *     full           all pages
 *     windows        |mark 512: 385..511|            window 128: 873..1000          reach(600) = 512, reach(950) = 512
 *
 * Invariants. The length of a state and its pending rows are together the committed length of the sequence. No row is
 * pending while a forward runs.
 *
 * Cost. One pass over the state for each accepted token, which reads and writes it once in all; a state for each
 * sequence and for each mark.
 *
 * Proof: test_sequence_marks.c, test_sequence_states.c (a state one token too far is seen), test_window_pages.c,
 * test_forward.c (sequences at random, with windows smaller and larger than pages), test_architectures.c. */
#include "compute/sequences.h"

#include <string.h>

/* ---- recurrent states ------------------------------------------------------------------------------- */

/* Returns whether the state after the first n tokens of a sequence is known without a mark; that after none always
 * is. */
static bool knows_state(const SequenceTable *s, int32_t id, int32_t n) {
    return !s->states || n == 0 || n >= s->states[id].length;
}

/* Advances the state of `from` by its first n pending rows, into `to`. If there is a mark among these rows, its state
 * has taken in those before it already. */
static StateStep step_of(const SequenceTable *s, int32_t from, int32_t to, int32_t n) {
    const SequenceState *q = &s->states[from];
    int32_t mark = sequence_marks_find(&s->marks, from, q->length + n), done = 0;
    if (mark >= 0 && sequence_mark_state(s, mark) == to) mark = sequence_marks_find(&s->marks, from, q->length + n - 1);
    if (mark >= 0 && s->marks.marks[mark].length > q->length) done = s->marks.marks[mark].length - q->length;
    return (StateStep){.from = done ? sequence_mark_state(s, mark) : from,
                       .to = to,
                       .length = q->length + done,
                       .n_rows = n - done,
                       .rows = s->pending + q->first + done};
}

static void advance(const SequenceTable *s, const StateStep *steps, int32_t n) {
    if (n) s->context->device->backend->advance_states(s->context, steps, n);
}

void sequence_table_advance(SequenceTable *s) {
    int32_t n = 0;
    for (int32_t i = 0; s->states && i < s->marks.n_sequences; i++) {
        SequenceState *q = &s->states[i];
        if (q->n_pending == 0) continue;
        s->steps[n++] = step_of(s, i, i, q->n_pending);
        q->length += q->n_pending;
        q->n_pending = 0;
    }
    advance(s, s->steps, n);
    s->n_pending = 0;
}

static void commit_state(SequenceTable *s, int32_t id, const int32_t *rows, int32_t n) {
    if (!s->states || n == 0) return;
    SequenceState *q = &s->states[id];
    fr_assert(q->n_pending == 0);
    q->first = s->n_pending;
    q->n_pending = n;
    memcpy(s->pending + q->first, rows, (size_t)n * sizeof *rows);
    s->n_pending += n;
}

static void truncate_state(SequenceTable *s, int32_t id, int32_t length) {
    if (!s->states) return;
    SequenceState *q = &s->states[id];
    fr_assert(knows_state(s, id, length) && length <= q->length + q->n_pending);
    q->n_pending = length < q->length ? 0 : length - q->length;
    if (length < q->length) q->length = length;
}

static void share_state(SequenceTable *s, int32_t from, int32_t to, int32_t n) {
    if (!s->states) return;
    const SequenceState *q = &s->states[from];
    fr_assert(knows_state(s, from, n) && n <= q->length + q->n_pending);
    StateStep step = n > 0 ? step_of(s, from, to, n - q->length) : (StateStep){.from = from, .to = to};
    advance(s, &step, n > 0);
    s->states[to] = (SequenceState){.length = n};
}

/* Gives the new mark the state after n tokens of the sequence, which must be known. */
static void mark_state(SequenceTable *s, int32_t mark, int32_t id, int32_t n) {
    if (!s->states) return;
    StateStep step = step_of(s, id, sequence_mark_state(s, mark), n - s->states[id].length);
    advance(s, &step, 1);
}

static void restore_state(SequenceTable *s, int32_t mark, int32_t id) {
    if (!s->states) return;
    int32_t length = s->marks.marks[mark].length;
    const StateStep step = {.from = sequence_mark_state(s, mark), .to = id, .length = length};
    advance(s, &step, 1);
    s->states[id] = (SequenceState){.length = length};
}

/* Sets the state to zeros after n more tokens that were never run. */
static void pad_state(SequenceTable *s, int32_t id, int32_t n) {
    if (!s->states) return;
    const StateStep zeros = {.from = id, .to = id};
    advance(s, &zeros, 1);
    s->states[id] = (SequenceState){.length = s->states[id].length + n};
}

/* ---- opening ---------------------------------------------------------------------------------------- */

/* Copies the slots of one page table: those of its group, or of all groups. */
static void copy_slots_of(const SequenceTable *s, int table, int32_t from, int32_t to, int32_t n) {
    for (int group = table; group < sequence_group_end(s, table); group++)
        s->context->device->backend->copy_slots(s->context, (KvGroup)group, from, to, n);
}
static void copy_all_slots(void *s, int32_t from, int32_t to, int32_t n) { copy_slots_of(s, KV_ALL, from, to, n); }
static void copy_window_slots(void *s, int32_t from, int32_t to, int32_t n) {
    copy_slots_of(s, KV_WINDOW, from, to, n);
}

static void fill_slot_of(const SequenceTable *s, int table, int32_t slot) {
    for (int group = table; group < sequence_group_end(s, table); group++)
        s->context->device->backend->fill_slot(s->context, (KvGroup)group, slot);
}
static void fill_all_slots(void *s, int32_t slot) { fill_slot_of(s, KV_ALL, slot); }
static void fill_window_slots(void *s, int32_t slot) { fill_slot_of(s, KV_WINDOW, slot); }

bool sequence_table_need_marks(const Model *m, int64_t n_window_pages) {
    return (n_window_pages > 0 && model_window(m) > 0) || model_n_states(m) > 0;
}

static int open_table(SequenceTable *s, int table, const SequenceTableShape *shape, fr_error *err) {
    static const KvMemory memories[KV_GROUPS] = {{NULL, copy_all_slots, fill_all_slots},
                                                 {NULL, copy_window_slots, fill_window_slots}};
    const KvShape kv = {.page_size = shape->page_size,
                        .n_pages = table == KV_WINDOW ? shape->n_window_pages : shape->n_pages,
                        .max_sequences = shape->max_sequences,
                        .n_ctx = shape->n_ctx,
                        .window = table == KV_WINDOW ? model_window(s->context->weights->model) : 0,
                        .n_marks = shape->n_marks};
    KvMemory memory = memories[table];
    memory.memory = s;
    return kv_open(&s->kv[table], &kv, &memory, err);
}

int sequence_table_open(SequenceTable *s, Context *c, const SequenceTableShape *shape, fr_error *err) {
    *s = (SequenceTable){.context = c, .n_tables = shape->n_window_pages > 0 ? 2 : 1};
    bool has_states = model_n_states(c->weights->model) > 0;
    int32_t n_states = has_states ? shape->max_sequences : 0;
    int status = FR_OK;
    for (int i = 0; i < s->n_tables && !status; i++) status = open_table(s, i, shape, err);
    if (!status)
        status = sequence_marks_open(&s->marks, &s->kv[s->n_tables - 1], shape->max_sequences, shape->n_marks, err);
    if (status || !has_states) return status;
    const ArenaItem items[] = {ARENA_ITEM(&s->states, n_states), ARENA_ITEM(&s->steps, n_states),
                               ARENA_ITEM(&s->pending, shape->max_rows)};
    return arena_take(&s->arena, items, ARENA_COUNT(items), "the states of sequences", err);
}

void sequence_table_close(SequenceTable *s) {
    sequence_marks_close(&s->marks);
    for (int i = 0; i < KV_GROUPS; i++) kv_close(&s->kv[i]);
    arena_free(&s->arena);
}

/* ---- sequences -------------------------------------------------------------------------------------- */

int sequence_open(SequenceTable *s, int32_t *out, fr_error *err) {
    int status = kv_sequence_open(&s->kv[KV_ALL], out, err);
    if (status) return status;
    int32_t same;
    if (s->n_tables > 1)
        (void)kv_sequence_open(&s->kv[KV_WINDOW], &same,
                               NULL); /* cannot fail: both tables have the same number of sequences */
    truncate_state(s, *out, 0);
    return FR_OK;
}

int32_t sequence_length(const SequenceTable *s, int32_t id) { return s->kv[0].sequences[id].length; }

/* Returns whether the sequence can be cut to its first n tokens without a mark. */
static bool can_cut(const SequenceTable *s, int32_t id, int32_t n) {
    return kv_can_cut(&s->kv[s->n_tables - 1], id, n) && knows_state(s, id, n);
}

int32_t sequence_reach(const SequenceTable *s, int32_t id, int32_t n) {
    if (can_cut(s, id, n)) return n;
    int32_t mark = sequence_marks_find(&s->marks, id, n);
    return mark >= 0 ? s->marks.marks[mark].length : 0;
}

/* Gives `to` the tokens of a mark of `from`, which may be `to` itself, in the layers that need a mark for it. */
static void restore(SequenceTable *s, int32_t from, int32_t to, int32_t n) {
    int32_t mark = sequence_marks_find(&s->marks, from, n);
    sequence_marks_use(&s->marks, mark);
    kv_restore(&s->kv[s->n_tables - 1], mark, to);
    restore_state(s, mark, to);
}

void sequence_share(SequenceTable *s, int32_t from, int32_t to, int32_t n) {
    n = sequence_reach(s, from, n);
    if (can_cut(s, from, n)) {
        if (s->n_tables > 1) kv_sequence_share(&s->kv[KV_WINDOW], from, to, n);
        share_state(s, from, to, n);
    } else {
        restore(s, from, to, n);
    }
    kv_sequence_share(&s->kv[KV_ALL], from, to, n);
    sequence_marks_share(&s->marks, from, to, n);
}

void sequence_mark(SequenceTable *s, int32_t id, int32_t n) {
    int32_t mark = sequence_marks_find(&s->marks, id, n);
    if (n == 0 || !can_cut(s, id, n) || (mark >= 0 && s->marks.marks[mark].length == n)) return;
    if ((mark = sequence_marks_add(&s->marks, id, n)) < 0) return;
    kv_mark(&s->kv[s->n_tables - 1], mark, id, n);
    mark_state(s, mark, id, n);
}

void sequence_close(SequenceTable *s, int32_t id) {
    for (int i = 0; i < s->n_tables; i++) kv_sequence_close(&s->kv[i], id);
    truncate_state(s, id, 0);
    sequence_marks_cut(&s->marks, id, 0);
}

void sequence_truncate(SequenceTable *s, int32_t id, int32_t length) {
    length = sequence_reach(s, id, length);
    if (can_cut(s, id, length)) {
        if (s->n_tables > 1) kv_truncate(&s->kv[KV_WINDOW], id, length);
        truncate_state(s, id, length);
    } else {
        restore(s, id, id, length);
    }
    kv_truncate(&s->kv[KV_ALL], id, length);
    sequence_marks_cut(&s->marks, id, length);
}

int sequence_pad(SequenceTable *s, int32_t id, int32_t n, fr_error *err) {
    int32_t length = sequence_length(s, id);
    int status = kv_pad(&s->kv[KV_ALL], id, n, err);
    if (!status && s->n_tables > 1 && (status = kv_pad(&s->kv[KV_WINDOW], id, n, err)))
        kv_truncate(&s->kv[KV_ALL], id, length);
    if (!status) pad_state(s, id, n);
    return status;
}

int32_t sequence_room(const SequenceTable *s, int32_t id, int32_t n_ahead) {
    int32_t room = kv_room(&s->kv[KV_ALL], id) - n_ahead, of_windows = room;
    if (s->n_tables > 1) of_windows = kv_room(&s->kv[KV_WINDOW], id);
    return of_windows < room ? of_windows : room < 0 ? 0 : room;
}

bool sequence_drop_mark(SequenceTable *s, int32_t id, int32_t n) {
    return s->n_tables > 1 && kv_room(&s->kv[KV_WINDOW], id) < n && sequence_marks_drop(&s->marks);
}

int sequence_reserve(SequenceTable *s, int32_t id, int32_t n_rows, int32_t n_ahead, fr_error *err) {
    if (s->n_tables > 1 && kv_room(&s->kv[KV_WINDOW], id) < n_rows)
        return kv_reserve(&s->kv[KV_WINDOW], id, n_rows, err); /* fails with the right error */
    int status = kv_reserve(&s->kv[KV_ALL], id, n_rows + n_ahead, err);
    return status || s->n_tables == 1 ? status : kv_reserve(&s->kv[KV_WINDOW], id, n_rows, err);
}

bool sequence_is_open(const SequenceTable *s, int32_t id) {
    return id >= 0 && id < s->marks.n_sequences && s->kv[KV_ALL].sequences[id].open;
}

/* Layers with a window need pages only for the next forward, the other layers also for later ones. */
int32_t sequence_n_reserved(const SequenceTable *s, int32_t id) {
    return s->kv[s->n_tables - 1].sequences[id].n_reserved;
}

const int32_t *sequence_slots(const SequenceTable *s, int32_t id, int table) {
    return s->kv[table].sequences[id].slots;
}

void sequence_commit(SequenceTable *s, int32_t id, const int32_t *offsets, const int32_t *rows, int32_t n) {
    for (int i = 0; i < s->n_tables; i++) kv_commit(&s->kv[i], id, offsets, n);
    commit_state(s, id, rows, n);
}

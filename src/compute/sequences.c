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
 * Marks. Keys of layers that see everything can be cut anywhere. A recurrent state, or a window that gives back its
 * keys, is whole only at the end: two prompts with the same instructions and different questions could share nothing,
 * because what is known of the first belongs to its last token. Therefore what a later row needs is kept for a few
 * lengths, which are called marks: a copy of the recurrent state, and the shared pages of the window. SequenceTable
 * that share tokens share their marks, so that the instructions of a service are kept once, however many requests begin
 * with them.
 *
 *     instructions ... | question A          marks of A    512  1024 | 1072
 *                      | question B          of B          512  1024 | 1056       the first two are the same marks
 *
 * The engine decides where marks are set (engine/prompts.c). Their number is limited by memory. The least recently used
 * one is forgotten, whichever sequences have it, which costs time later and changes no token.
 *
 * The first table can be cut anywhere. The second one and the recurrent state can be cut at all lengths since the last
 * forward began, at marks, and at 0. sequence_reach gives what all of them allow.
 *
 *     positions      0 ........ 400 ....... 512 ............ 900 ... 1000
 *     full           all pages
 *     windows        |mark 512: 385..511|            window 128: 873..1000          reach(600) = 512, reach(950) = 512
 *
 * Invariants. The length of a state and its pending rows are together the committed length of the sequence. No row is
 * pending while a forward runs. n_refs counts the lists that a mark is in; a mark of a sequence belongs to its first
 * `length` tokens, as they are.
 *
 * Cost. One pass over the state for each accepted token, which reads and writes it once in all; a state for each
 * sequence and for each mark. All marks are looked through when one must go.
 *
 * Proof: test_sequence_marks.c, test_sequence_states.c (a state one token too far is seen), test_window_pages.c,
 * test_forward.c (sequences at random, with windows smaller and larger than pages), test_architectures.c. */
#include "compute/sequences.h"

#include <string.h>

/* ---- marks ------------------------------------------------------------------------------------------ */

int sequence_marks_open(SequenceMarks *m, KvPages *pages, int32_t n_sequences, int32_t n_marks, fr_error *err) {
    *m = (SequenceMarks){.pages = pages, .n_sequences = n_sequences, .n_marks = n_marks};
    const ArenaItem items[] = {ARENA_ITEM(&m->marks, n_marks), ARENA_ITEM(&m->lists, n_sequences)};
    return arena_take(&m->arena, items, ARENA_COUNT(items), "the marks of sequences", err);
}

void sequence_marks_close(SequenceMarks *m) {
    arena_free(&m->arena);
    *m = (SequenceMarks){0};
}

int32_t sequence_marks_find(const SequenceMarks *m, int32_t sequence, int32_t length) {
    const SequenceMarkList *list = &m->lists[sequence];
    int32_t i = list->n;
    while (i > 0 && m->marks[list->ids[i - 1]].length > length) i--;
    return i > 0 ? list->ids[i - 1] : -1;
}

void sequence_marks_use(SequenceMarks *m, int32_t mark) { m->marks[mark].last_use = ++m->n_uses; }

static void drop_ref(SequenceMarks *m, int32_t mark) {
    fr_assert(m->marks[mark].n_refs > 0);
    if (--m->marks[mark].n_refs == 0) kv_unmark(m->pages, mark);
}

/* Removes element i of a list. */
static void take_out(SequenceMarks *m, SequenceMarkList *list, int32_t i) {
    int32_t mark = list->ids[i];
    list->n--;
    memmove(list->ids + i, list->ids + i + 1, (size_t)(list->n - i) * sizeof *list->ids);
    drop_ref(m, mark);
}

static void forget(SequenceMarks *m, int32_t mark) {
    for (SequenceMarkList *list = m->lists; list < m->lists + m->n_sequences; list++)
        for (int32_t i = list->n - 1; i >= 0; i--)
            if (list->ids[i] == mark) take_out(m, list, i);
}

bool sequence_marks_drop(SequenceMarks *m) {
    int32_t oldest = -1;
    for (int32_t i = 0; i < m->n_marks; i++)
        if (m->marks[i].n_refs && (oldest < 0 || m->marks[i].last_use < m->marks[oldest].last_use)) oldest = i;
    if (oldest >= 0) forget(m, oldest);
    return oldest >= 0;
}

static void drop_oldest_of(SequenceMarks *m, SequenceMarkList *list) {
    int32_t oldest = 0;
    for (int32_t i = 1; i < list->n; i++)
        if (m->marks[list->ids[i]].last_use < m->marks[list->ids[oldest]].last_use) oldest = i;
    take_out(m, list, oldest);
}

static int32_t find_free(const SequenceMarks *m) {
    int32_t i = 0;
    while (i < m->n_marks && m->marks[i].n_refs) i++;
    return i < m->n_marks ? i : -1;
}

int32_t sequence_marks_add(SequenceMarks *m, int32_t sequence, int32_t length) {
    SequenceMarkList *list = &m->lists[sequence];
    if (m->n_marks == 0) return -1;
    if (list->n == SEQUENCE_MARKS_MAX) drop_oldest_of(m, list);
    if (find_free(m) < 0) sequence_marks_drop(m);
    int32_t mark = find_free(m), i = list->n;
    m->marks[mark] = (SequenceMark){.length = length, .n_refs = 1};
    sequence_marks_use(m, mark);
    for (; i > 0 && m->marks[list->ids[i - 1]].length > length; i--) list->ids[i] = list->ids[i - 1];
    list->ids[i] = mark;
    list->n++;
    return mark;
}

void sequence_marks_cut(SequenceMarks *m, int32_t sequence, int32_t length) {
    SequenceMarkList *list = &m->lists[sequence];
    while (list->n > 0 && m->marks[list->ids[list->n - 1]].length > length) take_out(m, list, list->n - 1);
}

void sequence_marks_share(SequenceMarks *m, int32_t from, int32_t to, int32_t length) {
    SequenceMarkList shared = m->lists[from];
    while (shared.n > 0 && m->marks[shared.ids[shared.n - 1]].length > length) shared.n--;
    for (int32_t i = 0; i < shared.n; i++) m->marks[shared.ids[i]].n_refs++;
    sequence_marks_cut(m, to, 0);
    m->lists[to] = shared;
}

/* ---- recurrent states ------------------------------------------------------------------------------- */

/* Returns whether the state after the first n tokens of a sequence is known without a mark; that after none always
 * is. */
static bool knows_state(const SequenceTable *s, int32_t id, int32_t n) {
    return !s->states || n == 0 || n >= s->states[id].length;
}

static int32_t state_of_mark(const SequenceTable *s, int32_t mark) { return s->marks.n_sequences + mark; }

/* Advances the state of `from` by its first n pending rows, into `to`. If there is a mark among these rows, its state
 * has taken in those before it already. */
static StateStep step_of(const SequenceTable *s, int32_t from, int32_t to, int32_t n) {
    const SequenceState *q = &s->states[from];
    int32_t mark = sequence_marks_find(&s->marks, from, q->length + n), done = 0;
    if (mark >= 0 && state_of_mark(s, mark) == to) mark = sequence_marks_find(&s->marks, from, q->length + n - 1);
    if (mark >= 0 && s->marks.marks[mark].length > q->length) done = s->marks.marks[mark].length - q->length;
    return (StateStep){.from = done ? state_of_mark(s, mark) : from,
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
    StateStep step = step_of(s, id, state_of_mark(s, mark), n - s->states[id].length);
    advance(s, &step, 1);
}

static void restore_state(SequenceTable *s, int32_t mark, int32_t id) {
    if (!s->states) return;
    int32_t length = s->marks.marks[mark].length;
    const StateStep step = {.from = state_of_mark(s, mark), .to = id, .length = length};
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
    for (int group = table; group < (s->n_tables == 1 ? KV_GROUPS : table + 1); group++)
        s->context->device->backend->copy_slots(s->context, (KvGroup)group, from, to, n);
}
static void copy_all_slots(void *s, int32_t from, int32_t to, int32_t n) { copy_slots_of(s, KV_ALL, from, to, n); }
static void copy_window_slots(void *s, int32_t from, int32_t to, int32_t n) {
    copy_slots_of(s, KV_WINDOW, from, to, n);
}

static void fill_slot_of(const SequenceTable *s, int table, int32_t slot) {
    for (int group = table; group < (s->n_tables == 1 ? KV_GROUPS : table + 1); group++)
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

/* ---- saving -------------------------------------------------------------------------------------------
 *
 *     SavedHead
 *     for each mark, by length:    its length (int32), the slots of its window, its recurrent state
 *     the slots of all positions, the slots of the window, the recurrent state
 *
 * The slots of a window are left out if windows have no pages of their own: they are then among the slots of all
 * positions. A slot has the keys and values of all layers of its table, in the form of the backend. */

typedef struct SavedHead {
    int32_t length, n_marks, n_tables, page_size;
    uint64_t slot_bytes[KV_GROUPS], state_bytes;
} SavedHead;

static SavedHead head_of(const SequenceTable *s, int32_t length, int32_t n_marks) {
    const Backend *b = s->context->device->backend;
    return (SavedHead){.length = length,
                       .n_marks = n_marks,
                       .n_tables = s->n_tables,
                       .page_size = s->kv[0].shape.page_size,
                       .slot_bytes = {b->slot_bytes(s->context, KV_ALL), b->slot_bytes(s->context, KV_WINDOW)},
                       .state_bytes = b->state_bytes(s->context)};
}

/* Returns the end of the groups of layers that use a page table; the first one has the number of the table. */
static int end_of_groups(const SequenceTable *s, int table) { return s->n_tables == 1 ? KV_GROUPS : table + 1; }

static bool save_slot(const SequenceTable *s, int table, int32_t slot, Buf *out) {
    const Backend *b = s->context->device->backend;
    for (int group = table; group < end_of_groups(s, table); group++) {
        size_t n = b->slot_bytes(s->context, (KvGroup)group);
        if (!buf_reserve(out, n)) return false;
        b->read_slot(s->context, (KvGroup)group, slot, out->data + out->n);
        out->n += n;
    }
    return true;
}

static bool save_state(const SequenceTable *s, int32_t state, Buf *out) {
    const Backend *b = s->context->device->backend;
    size_t n = b->state_bytes(s->context);
    if (!buf_reserve(out, n)) return false;
    if (n) b->read_state(s->context, state, out->data + out->n);
    out->n += n;
    return true;
}

static bool save_mark(const SequenceTable *s, int32_t id, Buf *out) {
    const SequenceMark *m = &s->marks.marks[id];
    bool fits = buf_append(out, &m->length, sizeof m->length);
    const KvPages *kv = &s->kv[KV_WINDOW];
    int32_t first = s->n_tables > 1 ? kv_n_unseen(kv, m->length) : m->length, size = s->kv[0].shape.page_size;
    for (int32_t p = first; p < m->length && fits; p++)
        fits = save_slot(s, KV_WINDOW, kv->marks[id].pages[(p - first) / size] * size + p % size, out);
    return fits && save_state(s, state_of_mark(s, id), out);
}

bool sequence_save(const SequenceTable *s, int32_t id, Buf *out) {
    int32_t n = sequence_length(s, id);
    const SequenceMarkList *marks = &s->marks.lists[id];
    const SavedHead head = head_of(s, n, n ? marks->n : 0);
    fr_assert(!s->states || (s->states[id].length == n && s->states[id].n_pending == 0));
    bool fits = buf_append(out, &head, sizeof head);
    for (int32_t i = 0; i < head.n_marks && fits; i++) fits = save_mark(s, marks->ids[i], out);
    for (int table = 0; table < s->n_tables; table++)
        for (int32_t p = kv_n_unseen(&s->kv[table], n); p < n && fits; p++)
            fits = save_slot(s, table, s->kv[table].sequences[id].slots[p], out);
    return fits && (n == 0 || save_state(s, id, out));
}

/* The parts of a saved sequence, in the memory that it is read from. */
typedef struct SavedPart {
    int32_t length;
    const char *slots[KV_GROUPS], *state; /* slots of each table; NULL: there are none */
} SavedPart;

static size_t table_slot_bytes(const SequenceTable *s, int table) {
    size_t n = 0;
    for (int group = table; group < end_of_groups(s, table); group++)
        n += s->context->device->backend->slot_bytes(s->context, (KvGroup)group);
    return n;
}

static bool take_slots(const SequenceTable *s, int table, SavedPart *part, ByteReader *in) {
    size_t n = (size_t)(part->length - kv_n_unseen(&s->kv[table], part->length)), bytes;
    return size_mul(n, table_slot_bytes(s, table), &bytes) && (part->slots[table] = bytes_take(in, bytes)) != NULL;
}

static bool take_state(const SequenceTable *s, SavedPart *part, ByteReader *in) {
    return (part->state = bytes_take(in, s->context->device->backend->state_bytes(s->context))) != NULL;
}

static bool take_mark(const SequenceTable *s, SavedPart *mark, int32_t before, int32_t length, ByteReader *in) {
    return bytes_read(in, &mark->length, sizeof mark->length) && mark->length > before && mark->length <= length &&
           (s->n_tables == 1 || take_slots(s, KV_WINDOW, mark, in)) && take_state(s, mark, in);
}

typedef struct SavedSequence {
    int32_t n_marks;
    SavedPart marks[SEQUENCE_MARKS_MAX], whole;
} SavedSequence;

static int take_saved(const SequenceTable *s, SavedSequence *out, ByteReader *in, fr_error *err) {
    SavedHead head;
    *out = (SavedSequence){0};
    if (!bytes_read(in, &head, sizeof head)) return error_set(err, FR_ERR_FORMAT, "it is cut short");
    const SavedHead own = head_of(s, head.length, head.n_marks);
    if (memcmp(&head, &own, sizeof own) != 0)
        return error_set(err, FR_ERR_MISMATCH, "its KV cache has another form than that of this engine");
    if (head.length < 0 || head.n_marks < 0 || head.n_marks > SEQUENCE_MARKS_MAX)
        return error_set(err, FR_ERR_FORMAT, "it has %d tokens and %d marks", head.length, head.n_marks);
    if (head.length > s->kv[0].shape.n_ctx)
        return error_set(err, FR_ERR_CONTEXT, "its %d tokens do not fit into the context of %d tokens", head.length,
                         s->kv[0].shape.n_ctx);
    bool fits = true;
    for (; out->n_marks < head.n_marks && fits; out->n_marks++)
        fits = take_mark(s, &out->marks[out->n_marks], out->n_marks ? out->marks[out->n_marks - 1].length : 0,
                         head.length, in);
    out->whole.length = head.length;
    for (int table = 0; table < s->n_tables && fits; table++) fits = take_slots(s, table, &out->whole, in);
    if (fits && head.length) fits = take_state(s, &out->whole, in);
    return fits ? FR_OK : error_set(err, FR_ERR_FORMAT, "its sequence of %d tokens is damaged", head.length);
}

static int load_table(SequenceTable *s, int32_t id, int table, const SavedPart *part, fr_error *err) {
    const Backend *b = s->context->device->backend;
    kv_truncate(&s->kv[table], id, 0);
    int status = kv_load(&s->kv[table], id, part->length, err);
    const char *at = part->slots[table];
    for (int32_t p = kv_n_unseen(&s->kv[table], part->length); p < part->length && !status; p++)
        for (int group = table; group < end_of_groups(s, table); group++) {
            b->write_slot(s->context, (KvGroup)group, s->kv[table].sequences[id].slots[p], at);
            at += b->slot_bytes(s->context, (KvGroup)group);
        }
    return status;
}

static void load_state(SequenceTable *s, int32_t id, const SavedPart *part) {
    if (!s->states) return;
    s->states[id] = (SequenceState){.length = part->length};
    if (part->state) s->context->device->backend->write_state(s->context, id, part->state);
}

/* The sequence becomes that of the mark, which is then set. A mark for which there are no pages is left out. */
static void load_mark(SequenceTable *s, int32_t id, const SavedPart *mark) {
    if (s->n_tables > 1 && load_table(s, id, KV_WINDOW, mark, NULL)) return;
    load_state(s, id, mark);
    sequence_mark(s, id, mark->length);
}

int sequence_load(SequenceTable *s, int32_t id, ByteReader *in, fr_error *err) {
    SavedSequence saved;
    int status = take_saved(s, &saved, in, err);
    if (status || id < 0) return status;
    sequence_truncate(s, id, 0);
    status = load_table(s, id, KV_ALL, &saved.whole, err);
    for (int32_t i = 0; i < saved.n_marks && !status && s->marks.n_marks; i++) load_mark(s, id, &saved.marks[i]);
    if (!status && s->n_tables > 1) status = load_table(s, id, KV_WINDOW, &saved.whole, err);
    if (!status) load_state(s, id, &saved.whole);
    else sequence_truncate(s, id, 0);
    return status;
}

/* sequence_saving.c - a sequence as bytes, from which another process can go on.
 *
 *     SavedHead
 *     for each mark, by length:    its length (int32), the slots of its window, its recurrent state
 *     the slots of all positions, the slots of the window, the recurrent state
 *
 * The slots of a window are left out if windows have no pages of their own: they are then among the slots of all
 * positions. A slot has the keys and values of all layers of its table, in the form of the backend. */
#include "compute/sequences.h"

#include <string.h>

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

static bool save_slot(const SequenceTable *s, int table, int32_t slot, Buf *out) {
    const Backend *b = s->context->device->backend;
    for (int group = table; group < sequence_group_end(s, table); group++) {
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
    return fits && save_state(s, sequence_mark_state(s, id), out);
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
    for (int group = table; group < sequence_group_end(s, table); group++)
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
        for (int group = table; group < sequence_group_end(s, table); group++) {
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

/* sequence_marks.c - the marks of sequences: lengths to which a sequence can be cut although a part of it cannot be
 * rolled back.
 *
 * Keys of layers that see everything can be cut anywhere. A recurrent state, or a window that gives back its
 * keys, is whole only at the end: two prompts with the same instructions and different questions could share nothing,
 * because what is known of the first belongs to its last token. Therefore what a later row needs is kept for a few
 * lengths, which are called marks: a copy of the recurrent state, and the shared pages of the window. Sequences
 * that share tokens share their marks, so that the instructions of a service are kept once, however many requests begin
 * with them.
 *
 *     instructions ... | question A          marks of A    512  1024 | 1072
 *                      | question B          of B          512  1024 | 1056       the first two are the same marks
 *
 * The engine decides where marks are set (engine/prompts.c). Their number is limited by memory. The least recently used
 * one is forgotten, whichever sequences have it, which costs time later and changes no token.
 *
 * Invariants. n_refs counts the lists that a mark is in; a mark of a sequence belongs to its first `length` tokens, as
 * they are. Cost. All marks are looked through when one must go. Proof: test_sequence_marks.c. */
#include "compute/sequences.h"

#include <string.h>

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

/* executor_sequences.c - the sequences of an executor: keys of the layers that see everything, keys of those with a window,
 * and recurrent states are cut, shared and marked together.
 *
 * There are one or two page tables. A model with windows may have one more for the layers with a window (KV_WINDOW), whose pages
 * are fewer and are given back when all rows to come are past them. The layers that see everything never give back any. Lengths
 * and reservations are the same in both.
 *
 * Where a sequence can be cut: anywhere in the first table; in the second, and in the recurrent states, behind its last forward,
 * and at its marks. executor_sequence_reach is what all of them allow.
 *
 *     positions      0 ........ 400 ....... 512 ............ 900 ... 1000
 *     full           all pages
 *     windows        |mark 512: 385..511|            window 128: 873..1000          reach(600) = 512, reach(950) = 512
 *
 * Proof: test_forward.c (sequences at random, with windows smaller and larger than pages), test_window_pages.c,
 * test_sequence_states.c. */
#include "compute/executor_internal.h"

int executor_sequence_open(Executor *e, int32_t *out, fr_error *err) {
    int status = kv_sequence_open(&e->kv[KV_ALL], out, err);
    if (status) return status;
    int32_t same;
    if (e->n_tables > 1)
        (void)kv_sequence_open(&e->kv[KV_WINDOW], &same, NULL); /* as many, opened and closed together */
    sequence_states_truncate(&e->states, *out, 0);
    return FR_OK;
}

int32_t executor_sequence_length(const Executor *e, int32_t sequence) { return e->kv[0].sequences[sequence].length; }

/* Whether the first n tokens are whole without a mark. */
static bool can_cut(const Executor *e, int32_t sequence, int32_t n) {
    return kv_can_cut(&e->kv[e->n_tables - 1], sequence, n) && sequence_states_know(&e->states, sequence, n);
}

int32_t executor_sequence_reach(const Executor *e, int32_t sequence, int32_t n) {
    if (can_cut(e, sequence, n)) return n;
    int32_t mark = sequence_marks_find(&e->marks, sequence, n);
    return mark >= 0 ? e->marks.marks[mark].length : 0;
}

/* `to` has the tokens of a mark of `from`, which may be `to` itself, in the layers that need one. */
static void restore(Executor *e, int32_t from, int32_t to, int32_t n) {
    int32_t mark = sequence_marks_find(&e->marks, from, n);
    sequence_marks_use(&e->marks, mark);
    kv_restore(&e->kv[e->n_tables - 1], mark, to);
    sequence_states_restore(&e->states, mark, to);
}

void executor_sequence_share(Executor *e, int32_t from, int32_t to, int32_t n) {
    n = executor_sequence_reach(e, from, n);
    if (can_cut(e, from, n)) {
        if (e->n_tables > 1) kv_sequence_share(&e->kv[KV_WINDOW], from, to, n);
        sequence_states_share(&e->states, from, to, n);
    } else {
        restore(e, from, to, n);
    }
    kv_sequence_share(&e->kv[KV_ALL], from, to, n);
    sequence_marks_share(&e->marks, from, to, n);
}

void executor_sequence_mark(Executor *e, int32_t sequence, int32_t n) {
    int32_t mark = sequence_marks_find(&e->marks, sequence, n);
    if (n == 0 || !can_cut(e, sequence, n) || (mark >= 0 && e->marks.marks[mark].length == n)) return;
    if ((mark = sequence_marks_add(&e->marks, sequence, n)) < 0) return;
    kv_mark(&e->kv[e->n_tables - 1], mark, sequence, n);
    sequence_states_mark(&e->states, mark, sequence, n);
}

void executor_sequence_close(Executor *e, int32_t sequence) {
    for (int i = 0; i < e->n_tables; i++) kv_sequence_close(&e->kv[i], sequence);
    sequence_states_truncate(&e->states, sequence, 0);
    sequence_marks_cut(&e->marks, sequence, 0);
}

void executor_sequence_truncate(Executor *e, int32_t sequence, int32_t length) {
    length = executor_sequence_reach(e, sequence, length);
    if (can_cut(e, sequence, length)) {
        if (e->n_tables > 1) kv_truncate(&e->kv[KV_WINDOW], sequence, length);
        sequence_states_truncate(&e->states, sequence, length);
    } else {
        restore(e, sequence, sequence, length);
    }
    kv_truncate(&e->kv[KV_ALL], sequence, length);
    sequence_marks_cut(&e->marks, sequence, length);
}

int executor_sequence_pad(Executor *e, int32_t sequence, int32_t n, fr_error *err) {
    int32_t length = executor_sequence_length(e, sequence);
    int status = kv_pad(&e->kv[KV_ALL], sequence, n, err);
    if (!status && e->n_tables > 1 && (status = kv_pad(&e->kv[KV_WINDOW], sequence, n, err)))
        kv_truncate(&e->kv[KV_ALL], sequence, length);
    if (!status) sequence_states_pad(&e->states, sequence, n);
    return status;
}

/* ---- pages ------------------------------------------------------------------------------------------ */

int32_t executor_room(const Executor *e, int32_t sequence, int32_t n_ahead) {
    int32_t room = kv_room(&e->kv[KV_ALL], sequence) - n_ahead, of_windows = room;
    if (e->n_tables > 1) of_windows = kv_room(&e->kv[KV_WINDOW], sequence);
    return of_windows < room ? of_windows : room < 0 ? 0 : room;
}

bool executor_drop_mark(Executor *e, int32_t sequence, int32_t n) {
    return e->n_tables > 1 && kv_room(&e->kv[KV_WINDOW], sequence) < n && sequence_marks_drop(&e->marks);
}

int32_t executor_n_pages(const Executor *e) { return e->kv[KV_ALL].shape.n_pages; }
int32_t executor_n_free_pages(const Executor *e) { return e->kv[KV_ALL].n_free; }
int32_t executor_n_window_pages(const Executor *e) { return e->n_tables > 1 ? e->kv[KV_WINDOW].shape.n_pages : 0; }
int32_t executor_n_free_window_pages(const Executor *e) { return e->n_tables > 1 ? e->kv[KV_WINDOW].n_free : 0; }
int32_t executor_n_pages_of(const Executor *e, int32_t n) { return kv_count_pages(&e->kv[KV_ALL], n); }

int executor_reserve_ahead(Executor *e, int32_t sequence, int32_t n_rows, int32_t n_ahead, fr_error *err) {
    if (e->n_tables > 1 && kv_room(&e->kv[KV_WINDOW], sequence) < n_rows)
        return kv_reserve(&e->kv[KV_WINDOW], sequence, n_rows, err); /* fails, and says why */
    int status = kv_reserve(&e->kv[KV_ALL], sequence, n_rows + n_ahead, err);
    if (status || e->n_tables == 1) return status;
    return kv_reserve(&e->kv[KV_WINDOW], sequence, n_rows, err);
}

int executor_reserve(Executor *e, int32_t sequence, int32_t n_rows, fr_error *err) {
    return executor_reserve_ahead(e, sequence, n_rows, 0, err);
}

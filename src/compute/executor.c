/* executor.c - from rows of token trees to placed rows: position, slot and visible slots of each, worked out once for
 * all backends.
 *
 * The problem. Prefill, plain decoding and the verification of a token tree differ only in which earlier tokens a row
 * sees. There is one forward; a row is a token with a position and a list of visible keys:
 *
 *     committed tokens of its sequence   +   its ancestors in the batch   +   itself
 *     n_prefix slots                         n_path - 1 slots                 its own slot
 *
 * in the order of their logical positions. A path of a tree therefore reads exactly what the chain of the same tokens
 * reads, in the same order, and computes the same bits: attention knows no other structure.
 *
 * Example. Committed "a b"; tree: c with children d and e. Rows c d e have positions 2 3 3. Row e sees the slots of a
 * b | c e; when "c e" is committed later, kv_commit moves e up to position 3, and a later row sees a b c e | itself,
 * as if d had never been there.
 *
 * Tests: test_forward.c (tree = chain, chunking, threads, pages, neighbours) for every backend. */
#include "compute/executor_internal.h"
#include "base/mem.h"

#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------ */

/* The page table of a group. */
static const KvPages *table_of(const Executor *e, int group) { return &e->kv[group < e->n_tables ? group : 0]; }

/* The slots of one page table: those of its group, or of all. */
static void copy_slots_of(const Executor *e, int table, int32_t from, int32_t to, int32_t n) {
    for (int group = table; group < (e->n_tables == 1 ? KV_GROUPS : table + 1); group++)
        e->backend->copy_slots(e->context, (KvGroup)group, from, to, n);
}
static void copy_all_slots(void *e, int32_t from, int32_t to, int32_t n) { copy_slots_of(e, KV_ALL, from, to, n); }
static void copy_window_slots(void *e, int32_t from, int32_t to, int32_t n) {
    copy_slots_of(e, KV_WINDOW, from, to, n);
}

static void fill_slot_of(const Executor *e, int table, int32_t slot) {
    for (int group = table; group < (e->n_tables == 1 ? KV_GROUPS : table + 1); group++)
        e->backend->fill_slot(e->context, (KvGroup)group, slot);
}
static void fill_all_slots(void *e, int32_t slot) { fill_slot_of(e, KV_ALL, slot); }
static void fill_window_slots(void *e, int32_t slot) { fill_slot_of(e, KV_WINDOW, slot); }

enum { MARKS_EACH = 2 }; /* for each sequence, on the average */

static bool needs_marks(const Executor *e) { return e->n_tables > 1 || model_n_states(e->weights->model) > 0; }
static int32_t n_marks_of(const Executor *e) { return needs_marks(e) ? MARKS_EACH * e->options.max_sequences : 0; }

static int check_pages(const Executor *e, int64_t n_pages, fr_error *err) {
    if (n_pages * e->options.page_size <= INT32_MAX) return FR_OK;
    return error_set(err, FR_ERR_MEMORY,
                     "%lld pages of %d tokens are more KV slots than can be numbered; ask for fewer or "
                     "shorter sequences",
                     (long long)n_pages, e->options.page_size);
}

static int open_tables(Executor *e, const int32_t *n_pages, fr_error *err) {
    static const KvMemory of_tables[] = {{NULL, copy_all_slots, fill_all_slots},
                                         {NULL, copy_window_slots, fill_window_slots}};
    const ExecutorOptions *o = &e->options;
    int status = FR_OK;
    for (int i = 0; i < e->n_tables && !status; i++) {
        const KvShape shape = {.page_size = o->page_size,
                               .n_pages = n_pages[i],
                               .max_sequences = o->max_sequences,
                               .n_ctx = o->n_ctx,
                               .window = i == KV_WINDOW ? model_window(e->weights->model) : 0,
                               .n_marks = n_marks_of(e)};
        KvMemory memory = of_tables[i];
        memory.memory = e;
        status = kv_open(&e->kv[i], &shape, &memory, err);
    }
    if (!status) status = sequence_marks_open(&e->marks, &e->kv[e->n_tables - 1], o->max_sequences, n_marks_of(e), err);
    return status ? status : sequence_states_open(&e->states, e->context, &e->marks, o->max_rows, err);
}

static int open_rows(Executor *e, fr_error *err) {
    size_t rows = (size_t)e->options.max_rows;
    for (int i = 0; i < e->n_tables; i++)
        if (!(e->path_slots[i] = mem_alloc(rows * rows * sizeof(int32_t))))
            return error_memory(err, "the rows of a forward", rows * rows * sizeof(int32_t));
    const ArenaItem items[] = {ARENA_ITEM(&e->rows, rows), ARENA_ITEM(&e->offsets, rows)};
    return arena_take(&e->arena, items, ARENA_COUNT(items), "the rows of a forward", err);
}

static int open_all(Executor *e, Device *device, fr_error *err) {
    const ExecutorOptions *o = &e->options;
    int64_t n_pages = o->n_pages ? o->n_pages : (int64_t)o->max_sequences * (o->n_ctx / o->page_size + 1);
    e->n_tables = o->n_window_pages > 0 && model_window(e->weights->model) > 0 ? 2 : 1;
    int64_t n_window_pages = e->n_tables > 1 ? o->n_window_pages : n_pages;
    int status = check_pages(e, n_pages > n_window_pages ? n_pages : n_window_pages, err);
    if (status) return status;
    const int32_t pages[KV_GROUPS] = {(int32_t)n_pages, (int32_t)n_window_pages};
    const ContextOptions context = {.kv_type = o->kv_type,
                                    .n_slots = {pages[KV_ALL] * o->page_size, pages[KV_WINDOW] * o->page_size},
                                    .n_ctx = o->n_ctx,
                                    .max_rows = o->max_rows,
                                    .n_states = o->max_sequences + n_marks_of(e)};
    status = e->backend->context_open(&e->context, device, e->weights, &context, err);
    if (!status) status = executor_reserve_logits(e, o->max_logits ? o->max_logits : o->max_rows, err);
    if (!status) status = open_tables(e, pages, err);
    return status ? status : open_rows(e, err);
}

int executor_open(Executor **out, Device *device, const Weights *weights, const ExecutorOptions *options,
                  fr_error *err) {
    *out = NULL;
    fr_assert(device->backend == weights->backend);
    fr_assert(options->max_rows >= 1 && options->max_rows <= EXECUTOR_MAX_ROWS);
    fr_assert(options->n_ctx >= 1 && options->page_size >= 1 && options->max_sequences >= 1);
    Executor *e = mem_calloc(1, sizeof *e);
    if (!e) return error_memory(err, "an executor", sizeof *e);
    e->backend = device->backend;
    e->weights = weights;
    e->options = *options;
    int status = open_all(e, device, err);
    if (status) {
        executor_close(e);
        return status;
    }
    *out = e;
    return FR_OK;
}

void executor_close(Executor *e) {
    if (!e) return;
    sequence_states_close(&e->states);
    sequence_marks_close(&e->marks);
    for (int i = 0; i < KV_GROUPS; i++) kv_close(&e->kv[i]), mem_free(e->path_slots[i]);
    if (e->context) e->backend->context_close(e->context);
    arena_free(&e->arena);
    mem_free(e);
}

const ExecutorOptions *executor_options(const Executor *e) { return &e->options; }
const Weights *executor_weights(const Executor *e) { return e->weights; }
Context *executor_context(const Executor *e) { return e->context; }
int32_t executor_max_rows(const Executor *e) { return e->options.max_rows; }
int32_t executor_n_vocab(const Executor *e) { return e->weights->model->hparams.n_vocab; }

/* ---- results ---------------------------------------------------------------------------------- */

int executor_reserve_logits(Executor *e, int32_t n, fr_error *err) {
    if (n > e->options.max_rows) n = e->options.max_rows;
    if (n <= e->max_logits) return FR_OK;
    int status = e->backend->reserve_logits ? e->backend->reserve_logits(e->context, n, err) : FR_OK;
    if (!status) e->max_logits = n;
    return status;
}

/* ---- placing rows --------------------------------------------------------------------------------- */

/* Where the visible tree slots of row `i` may be written: behind those of the row before. */
static int32_t *path_room(const Executor *e, int table, int32_t i) {
    if (i == 0) return e->path_slots[table];
    const RowPlace *last = &e->rows[i - 1];
    return e->path_slots[table] + (last->slots[table].path - e->path_slots[table]) + last->n_path;
}

/* Slots of row i, number `index` of its sequence, whose path has n_path rows. */
static RowSlots slots_of(const Executor *e, int table, int32_t i, const Row *r, int32_t index, int32_t n_path) {
    const KvSequence *s = &e->kv[table].sequences[r->sequence];
    int32_t *path = path_room(e, table, i), own = s->slots[s->length + index];
    if (r->parent >= 0) memcpy(path, e->rows[r->parent].slots[table].path, (size_t)(n_path - 1) * sizeof *path);
    path[n_path - 1] = own;
    return (RowSlots){.own = own, .prefix = s->slots, .path = path};
}

/* How many rows before row `i` belong to its sequence. */
static int32_t index_in_sequence(const Executor *e, int32_t i, int32_t sequence) {
    for (int32_t k = i - 1; k >= 0; k--)
        if (e->rows[k].sequence == sequence) return e->rows[k].index + 1;
    return 0;
}

static bool is_possible(const Executor *e, const Row *r, int32_t i) {
    return r->sequence >= 0 && r->sequence < e->options.max_sequences && e->kv[KV_ALL].sequences[r->sequence].open &&
           r->token >= 0 && r->token < executor_n_vocab(e) && r->parent >= -1 && r->parent < i &&
           (r->parent < 0 || e->rows[r->parent].sequence == r->sequence);
}

/* Works out position, slot and visible tree slots of each row behind n_before earlier ones. The rows of a sequence
 * take its reserved slots in row order; a row sees the committed tokens, its ancestors and itself. */
static int place_rows(Executor *e, const Row *rows, int32_t n_before, int32_t n_rows, fr_error *err) {
    for (int32_t i = n_before; i < n_before + n_rows; i++) {
        const Row *r = &rows[i - n_before];
        if (!is_possible(e, r, i))
            return error_set(err, FR_ERR_ARGUMENT,
                             "row %d of a batch of %d is impossible: token %d, sequence %d, parent %d", i,
                             n_before + n_rows, r->token, r->sequence, r->parent);
        const KvSequence *s = &table_of(e, KV_WINDOW)->sequences[r->sequence];
        int32_t index = index_in_sequence(e, i, r->sequence);
        if (index >= s->n_reserved)
            return error_set(err, FR_ERR_ARGUMENT, "sequence %d has more rows in the batch than the %d reserved for it",
                             r->sequence, s->n_reserved);
        if (r->want_logits && e->n_logits == e->max_logits)
            return error_set(err, FR_ERR_ARGUMENT, "more rows of a batch want logits than the %d that may",
                             e->max_logits);
        const RowPlace *parent = r->parent >= 0 ? &e->rows[r->parent] : NULL;
        int32_t n_path = parent ? parent->n_path + 1 : 1;
        RowSlots slots[KV_GROUPS];
        for (int table = 0; table < e->n_tables; table++) slots[table] = slots_of(e, table, i, r, index, n_path);
        e->rows[i] = (RowPlace){.token = r->token,
                                .input = r->input,
                                .position = s->length + n_path - 1,
                                .sequence = r->sequence,
                                .row = i,
                                .parent = r->parent,
                                .index = index,
                                .n_prefix = s->length,
                                .n_path = n_path,
                                .slots = {slots[KV_ALL], slots[e->n_tables - 1]},
                                .i_logits = r->want_logits ? e->n_logits++ : -1,
                                .i_hidden = r->want_logits || r->want_hidden ? e->n_hidden++ : -1};
    }
    return FR_OK;
}

/* ---- forward -------------------------------------------------------------------------------------- */

static int run_after(Executor *e, int32_t n_before, const Row *rows, int32_t n_rows, fr_error *err) {
    if (n_rows < 1 || n_rows > e->options.max_rows - n_before)
        return error_set(err, FR_ERR_ARGUMENT, "a batch of %d rows where 1 to %d fit", n_rows,
                         e->options.max_rows - n_before);
    e->n_before = n_before;
    e->n_rows = e->n_logits = e->n_hidden = 0;
    int status = place_rows(e, rows, n_before, n_rows, err);
    if (status) return status;
    const Gguf *read = e->backend->reads_file ? e->context->weights->model->gguf : NULL;
    const MappedFile *mapped = e->context->weights->mapped;
    if ((status = gguf_check(read, err)) || (status = mapped_file_check(mapped, err))) return status;
    e->n_rows = n_rows;
    e->backend->forward(e->context, e->rows + n_before, n_rows);
    status = gguf_check(read, err);
    return status ? status : mapped_file_check(mapped, err);
}

int executor_forward(Executor *e, const Row *rows, int32_t n_rows, fr_error *err) {
    sequence_states_apply(&e->states);
    return run_after(e, 0, rows, n_rows, err);
}

int executor_extend(Executor *e, const Row *rows, int32_t n_rows, fr_error *err) {
    return run_after(e, e->n_before + e->n_rows, rows, n_rows, err);
}

/* The place of a row of the last run. */
static const RowPlace *place_of(const Executor *e, int32_t row) {
    fr_assert(row >= e->n_before && row < e->n_before + e->n_rows);
    return &e->rows[row];
}

const float *executor_logits(const Executor *e, int32_t row) {
    int32_t i = place_of(e, row)->i_logits;
    return i < 0 ? NULL : e->backend->read(e->context, RESULT_LOGITS, i);
}

const float *executor_hidden(const Executor *e, int32_t row) {
    int32_t i = place_of(e, row)->i_hidden;
    return i < 0 ? NULL : e->backend->read(e->context, RESULT_HIDDEN, i);
}

void executor_commit(Executor *e, int32_t sequence, const int32_t *rows, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        fr_assert(rows[i] >= 0 && rows[i] < e->n_before + e->n_rows);
        e->offsets[i] = e->rows[rows[i]].index;
    }
    for (int i = 0; i < e->n_tables; i++) kv_commit(&e->kv[i], sequence, e->offsets, n);
    sequence_states_commit(&e->states, sequence, rows, n);
}

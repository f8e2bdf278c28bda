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
#include "backend/executor.h"

#include "backend/kv_pages.h"
#include "backend/sequence_states.h"
#include "base/mem.h"

#include <string.h>

struct Executor {
    const Backend *backend;
    const Weights *weights;
    Context *context;
    ExecutorOptions options;
    KvPages kv;
    SequenceStates states;
    Arena arena;
    RowPlace *rows;   /* [max_rows] of the last forward and its extensions */
    int32_t n_before; /* of them, those that ran before the last run */
    int32_t n_rows;   /* of the last run: rows + n_before */
    int32_t n_logits, n_hidden, max_logits;
    int32_t *path_slots; /* [max_rows * max_rows] */
    int32_t *offsets;    /* [max_rows] scratch of commit */
};

/* ---- opening ------------------------------------------------------------------------------------ */

static void copy_slots(void *memory, int32_t from, int32_t to, int32_t n) {
    Context *c = memory;
    c->device->backend->copy_slots(c, from, to, n);
}

static void fill_slot(void *memory, int32_t slot) {
    Context *c = memory;
    c->device->backend->fill_slot(c, slot);
}

static int open_all(Executor *e, Device *device, fr_error *err) {
    const ExecutorOptions *o = &e->options;
    int64_t n_pages = o->n_pages, rows = o->max_rows;
    if (n_pages == 0) n_pages = (int64_t)o->max_sequences * (o->n_ctx / o->page_size + 1);
    if (n_pages * o->page_size > INT32_MAX)
        return error_set(err, FR_ERR_MEMORY,
                         "%lld pages of %d tokens are more KV slots than can be numbered; ask for fewer or "
                         "shorter sequences",
                         (long long)n_pages, o->page_size);
    const ContextOptions context = {.kv_type = o->kv_type,
                                    .n_slots = (int32_t)n_pages * o->page_size,
                                    .n_ctx = o->n_ctx,
                                    .max_rows = o->max_rows,
                                    .n_states = SEQUENCE_STATES_EACH * o->max_sequences};
    int status = e->backend->context_open(&e->context, device, e->weights, &context, err);
    if (!status) status = executor_reserve_logits(e, o->max_logits ? o->max_logits : o->max_rows, err);
    if (status) return status;
    const KvShape shape = {.page_size = o->page_size,
                           .n_pages = (int32_t)n_pages,
                           .max_sequences = o->max_sequences,
                           .n_ctx = o->n_ctx};
    status = kv_open(&e->kv, &shape,
                     &(KvMemory){.memory = e->context, .copy_slots = copy_slots, .fill_slot = fill_slot}, err);
    if (!status) status = sequence_states_open(&e->states, e->context, o->max_sequences, o->max_rows, err);
    if (status) return status;
    if (!(e->path_slots = mem_alloc((size_t)(rows * rows) * sizeof *e->path_slots)))
        return error_memory(err, "the rows of a forward", (size_t)(rows * rows) * sizeof *e->path_slots);
    const ArenaItem items[] = {ARENA_ITEM(&e->rows, rows), ARENA_ITEM(&e->offsets, rows)};
    return arena_take(&e->arena, items, ARENA_COUNT(items), "the rows of a forward", err);
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
    kv_close(&e->kv);
    sequence_states_close(&e->states);
    if (e->context) e->backend->context_close(e->context);
    mem_free(e->path_slots);
    arena_free(&e->arena);
    mem_free(e);
}

const ExecutorOptions *executor_options(const Executor *e) { return &e->options; }
const Weights *executor_weights(const Executor *e) { return e->weights; }
Context *executor_context(const Executor *e) { return e->context; }
int32_t executor_max_rows(const Executor *e) { return e->options.max_rows; }
int32_t executor_n_vocab(const Executor *e) { return e->weights->model->hparams.n_vocab; }

/* ---- sequences ---------------------------------------------------------------------------------- */

int executor_sequence_open(Executor *e, int32_t *out, fr_error *err) {
    int status = kv_sequence_open(&e->kv, out, err);
    if (!status) sequence_states_truncate(&e->states, *out, 0);
    return status;
}
int executor_sequence_fork(Executor *e, int32_t from, int32_t *out, fr_error *err) {
    int status = kv_sequence_fork(&e->kv, from, out, err);
    if (!status) sequence_states_share(&e->states, from, *out, executor_sequence_length(e, from));
    return status;
}
int32_t executor_sequence_reach(const Executor *e, int32_t sequence, int32_t n) {
    return sequence_states_reach(&e->states, sequence, n);
}
void executor_sequence_share(Executor *e, int32_t from, int32_t to, int32_t n) {
    n = executor_sequence_reach(e, from, n);
    kv_sequence_share(&e->kv, from, to, n);
    sequence_states_share(&e->states, from, to, n);
}
void executor_sequence_mark(Executor *e, int32_t sequence, int32_t n) { sequence_states_mark(&e->states, sequence, n); }
void executor_sequence_close(Executor *e, int32_t sequence) {
    kv_sequence_close(&e->kv, sequence);
    sequence_states_truncate(&e->states, sequence, 0);
}
int32_t executor_sequence_length(const Executor *e, int32_t sequence) { return e->kv.sequences[sequence].length; }
void executor_sequence_truncate(Executor *e, int32_t sequence, int32_t length) {
    length = executor_sequence_reach(e, sequence, length);
    kv_truncate(&e->kv, sequence, length);
    sequence_states_truncate(&e->states, sequence, length);
}
int executor_sequence_pad(Executor *e, int32_t sequence, int32_t n, fr_error *err) {
    int status = kv_pad(&e->kv, sequence, n, err);
    if (!status) sequence_states_pad(&e->states, sequence, n);
    return status;
}
int32_t executor_room(const Executor *e, int32_t sequence) { return kv_room(&e->kv, sequence); }
int32_t executor_n_pages(const Executor *e) { return e->kv.shape.n_pages; }
int32_t executor_n_free_pages(const Executor *e) { return e->kv.n_free; }
int32_t executor_n_pages_of(const Executor *e, int32_t n) { return kv_count_pages(&e->kv, n); }
int executor_reserve(Executor *e, int32_t sequence, int32_t n_rows, fr_error *err) {
    return kv_reserve(&e->kv, sequence, n_rows, err);
}

int executor_reserve_logits(Executor *e, int32_t n, fr_error *err) {
    if (n > e->options.max_rows) n = e->options.max_rows;
    if (n <= e->max_logits) return FR_OK;
    int status = e->backend->reserve_logits ? e->backend->reserve_logits(e->context, n, err) : FR_OK;
    if (!status) e->max_logits = n;
    return status;
}

/* ---- placing rows --------------------------------------------------------------------------------- */

/* Where the visible tree slots of row `i` may be written: behind those of the row before. */
static int32_t *path_room(const Executor *e, int32_t i) {
    if (i == 0) return e->path_slots;
    const RowPlace *last = &e->rows[i - 1];
    return e->path_slots + (last->path_slots - e->path_slots) + last->n_path;
}

/* How many rows before row `i` belong to its sequence. */
static int32_t index_in_sequence(const Executor *e, int32_t i, int32_t sequence) {
    for (int32_t k = i - 1; k >= 0; k--)
        if (e->rows[k].sequence == sequence) return e->rows[k].index + 1;
    return 0;
}

static bool is_possible(const Executor *e, const Row *r, int32_t i) {
    return r->sequence >= 0 && r->sequence < e->kv.shape.max_sequences && e->kv.sequences[r->sequence].open &&
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
        const KvSequence *s = &e->kv.sequences[r->sequence];
        int32_t index = index_in_sequence(e, i, r->sequence);
        if (index >= s->n_reserved)
            return error_set(err, FR_ERR_ARGUMENT, "sequence %d has more rows in the batch than the %d reserved for it",
                             r->sequence, s->n_reserved);
        if (r->want_logits && e->n_logits == e->max_logits)
            return error_set(err, FR_ERR_ARGUMENT, "more rows of a batch want logits than the %d that may",
                             e->max_logits);
        const RowPlace *parent = r->parent >= 0 ? &e->rows[r->parent] : NULL;
        int32_t *path = path_room(e, i), n_path = parent ? parent->n_path + 1 : 1, slot = s->slots[s->length + index];
        if (parent) memcpy(path, parent->path_slots, (size_t)parent->n_path * sizeof *path);
        path[n_path - 1] = slot;
        e->rows[i] = (RowPlace){.token = r->token,
                                .input = r->input,
                                .position = s->length + n_path - 1,
                                .sequence = r->sequence,
                                .row = i,
                                .parent = r->parent,
                                .index = index,
                                .slot = slot,
                                .n_prefix = s->length,
                                .n_path = n_path,
                                .prefix_slots = s->slots,
                                .path_slots = path,
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
    kv_commit(&e->kv, sequence, e->offsets, n);
    sequence_states_commit(&e->states, sequence, rows, n);
}

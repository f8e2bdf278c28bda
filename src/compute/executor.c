/* executor.c - from rows of token trees to placed rows: position, slot and visible slots of each, worked out once for
 * all backends.
 *
 * The problem. Prefill, plain decoding and the verification of a token tree differ only in which earlier tokens a row
 * sees. There is one forward; a row is a token with a position and a list of visible keys:
 *
 *     committed tokens of its sequence   +   its ancestors in the batch   +   itself
 *     n_prefix slots                         n_path - 1 slots                 its own slot
 *
 * in the order of their logical positions. The rows of a block (Row.in_block) see all rows of the block instead. A path
 * of a tree therefore reads exactly what the chain of the same tokens reads, in the same order, and computes the same
 * bits: attention knows no other structure.
 *
 * Example. Committed "a b"; tree: c with children d and e. Rows c d e have positions 2 3 3. Row e sees the slots of a
 * b | c e; when "c e" is committed later, kv_commit moves e up to position 3, and a later row sees a b c e | itself,
 * as if d had never been there.
 *
 * An executor that reads another one (ExecutorOptions.reads) places its rows after the committed tokens of that one's
 * sequences. Such a row sees n_prefix slots and none of its own, since its layers make no keys.
 *
 * Tests: test_forward.c (tree = chain, chunking, threads, pages, neighbours) for every backend. */
#include "compute/executor.h"

#include "base/mem.h"
#include "compute/sequences.h"

#include <string.h>

struct Executor {
    const Backend *backend;
    const Weights *weights;
    Context *context;
    ExecutorOptions options;
    SequenceTable sequences;
    Arena arena;
    RowPlace *rows;   /* [max_rows] of the last forward and its extensions */
    int32_t n_before; /* how many of these rows ran before the last run */
    int32_t n_rows;   /* the rows of the last run: rows + n_before */
    int32_t n_logits, n_hidden, max_logits;
    int32_t *path_slots[KV_GROUPS]; /* [max_rows * max_rows] for each page table */
    int32_t *offsets;               /* [max_rows] scratch of commit */
};

/* ---- opening ------------------------------------------------------------------------------------ */

enum { MARKS_EACH = 2 }; /* on average for each sequence */

static int check_pages(const Executor *e, int64_t n_pages, fr_error *err) {
    if (n_pages * e->options.page_size <= INT32_MAX) return FR_OK;
    return error_set(err, FR_ERR_MEMORY,
                     "%lld pages of %d tokens are more KV slots than can be numbered; ask for fewer or "
                     "shorter sequences",
                     (long long)n_pages, e->options.page_size);
}

static int open_rows(Executor *e, fr_error *err) {
    size_t rows = (size_t)e->options.max_rows;
    for (int i = 0; i < e->sequences.n_tables; i++)
        if (!(e->path_slots[i] = mem_alloc(rows * rows * sizeof(int32_t))))
            return error_memory(err, "the rows of a forward", rows * rows * sizeof(int32_t));
    const ArenaItem items[] = {ARENA_ITEM(&e->rows, rows), ARENA_ITEM(&e->offsets, rows)};
    return arena_take(&e->arena, items, ARENA_COUNT(items), "the rows of a forward", err);
}

/* Opens an executor that reads another one. */
static int open_reader(Executor *e, Device *device, fr_error *err) {
    const ExecutorOptions *o = &e->options;
    const ContextOptions context = {.kv_type = o->kv_type,
                                    .n_ctx = o->n_ctx,
                                    .max_rows = o->max_rows,
                                    .reads = o->reads->context};
    const ArenaItem items[] = {ARENA_ITEM(&e->rows, o->max_rows)};
    int status = e->backend->context_open(&e->context, device, e->weights, &context, err);
    if (!status) status = executor_reserve_logits(e, o->max_logits ? o->max_logits : o->max_rows, err);
    return status ? status : arena_take(&e->arena, items, ARENA_COUNT(items), "the rows of a forward", err);
}

static int open_all(Executor *e, Device *device, fr_error *err) {
    const ExecutorOptions *o = &e->options;
    const Model *m = e->weights->model;
    int64_t n_pages = o->n_pages ? o->n_pages : (int64_t)o->max_sequences * (o->n_ctx / o->page_size + 1);
    int64_t n_window_pages = o->n_window_pages > 0 && model_window(m) > 0 ? o->n_window_pages : 0;
    int32_t n_marks = sequence_table_need_marks(m, n_window_pages) ? MARKS_EACH * o->max_sequences : 0;
    int status = check_pages(e, n_pages > n_window_pages ? n_pages : n_window_pages, err);
    if (status) return status;
    const SequenceTableShape shape = {.page_size = o->page_size,
                                      .n_ctx = o->n_ctx,
                                      .max_sequences = o->max_sequences,
                                      .max_rows = o->max_rows,
                                      .n_pages = (int32_t)n_pages,
                                      .n_window_pages = (int32_t)n_window_pages,
                                      .n_marks = n_marks};
    int32_t window_slots = (shape.n_window_pages ? shape.n_window_pages : shape.n_pages) * o->page_size;
    const ContextOptions context = {.kv_type = o->kv_type,
                                    .n_slots = {shape.n_pages * o->page_size, window_slots},
                                    .n_ctx = o->n_ctx,
                                    .max_rows = o->max_rows,
                                    .n_states = o->max_sequences + n_marks};
    status = e->backend->context_open(&e->context, device, e->weights, &context, err);
    if (!status) status = executor_reserve_logits(e, o->max_logits ? o->max_logits : o->max_rows, err);
    if (!status) status = sequence_table_open(&e->sequences, e->context, &shape, err);
    return status ? status : open_rows(e, err);
}

int executor_open(Executor **out, Device *device, const Weights *weights, const ExecutorOptions *options,
                  fr_error *err) {
    *out = NULL;
    fr_assert(device->backend == weights->backend);
    fr_assert(options->max_rows >= 1 && options->max_rows <= EXECUTOR_MAX_ROWS);
    ExecutorOptions o = *options;
    if (o.reads) {
        o = o.reads->options;
        o.max_rows = options->max_rows, o.max_logits = options->max_logits, o.reads = options->reads;
        fr_assert(o.reads->context->device == device && o.reads->weights->model == weights->model->kv_model);
    }
    fr_assert(o.n_ctx >= 1 && o.page_size >= 1 && o.max_sequences >= 1);
    Executor *e = mem_calloc(1, sizeof *e);
    if (!e) return error_memory(err, "an executor", sizeof *e);
    e->backend = device->backend;
    e->weights = weights;
    e->options = o;
    int status = o.reads ? open_reader(e, device, err) : open_all(e, device, err);
    if (status) {
        executor_close(e);
        return status;
    }
    *out = e;
    return FR_OK;
}

void executor_close(Executor *e) {
    if (!e) return;
    sequence_table_close(&e->sequences);
    for (int i = 0; i < KV_GROUPS; i++) mem_free(e->path_slots[i]);
    if (e->context) e->backend->context_close(e->context);
    arena_free(&e->arena);
    mem_free(e);
}

const ExecutorOptions *executor_options(const Executor *e) { return &e->options; }
const Weights *executor_weights(const Executor *e) { return e->weights; }
Context *executor_context(const Executor *e) { return e->context; }
int32_t executor_max_rows(const Executor *e) { return e->options.max_rows; }
int32_t executor_n_vocab(const Executor *e) { return e->weights->model->hparams.n_vocab; }
SequenceTable *executor_sequences(Executor *e) { return &e->sequences; }

/* ---- sequences ------------------------------------------------------------------------------------ */

int executor_sequence_open(Executor *e, int32_t *out, fr_error *err) { return sequence_open(&e->sequences, out, err); }
void executor_sequence_close(Executor *e, int32_t id) { sequence_close(&e->sequences, id); }
int32_t executor_sequence_length(const Executor *e, int32_t id) { return sequence_length(&e->sequences, id); }
int32_t executor_sequence_reach(const Executor *e, int32_t id, int32_t n) {
    return sequence_reach(&e->sequences, id, n);
}
void executor_sequence_share(Executor *e, int32_t from, int32_t to, int32_t n) {
    sequence_share(&e->sequences, from, to, n);
}
void executor_sequence_truncate(Executor *e, int32_t id, int32_t n) { sequence_truncate(&e->sequences, id, n); }
void executor_sequence_mark(Executor *e, int32_t id, int32_t n) { sequence_mark(&e->sequences, id, n); }
bool executor_sequence_save(Executor *e, int32_t id, Buf *out) { return sequence_save(&e->sequences, id, out); }
int executor_sequence_load(Executor *e, int32_t id, ByteReader *in, fr_error *err) {
    return sequence_load(&e->sequences, id, in, err);
}
int executor_sequence_pad(Executor *e, int32_t id, int32_t n, fr_error *err) {
    return sequence_pad(&e->sequences, id, n, err);
}
int32_t executor_room(const Executor *e, int32_t id, int32_t n_ahead) {
    return sequence_room(&e->sequences, id, n_ahead);
}
bool executor_drop_mark(Executor *e, int32_t id, int32_t n) { return sequence_drop_mark(&e->sequences, id, n); }
int executor_reserve_ahead(Executor *e, int32_t id, int32_t n_rows, int32_t n_ahead, fr_error *err) {
    return sequence_reserve(&e->sequences, id, n_rows, n_ahead, err);
}
int executor_reserve(Executor *e, int32_t id, int32_t n_rows, fr_error *err) {
    return sequence_reserve(&e->sequences, id, n_rows, 0, err);
}
int32_t executor_n_pages(const Executor *e) { return e->sequences.kv[KV_ALL].shape.n_pages; }
int32_t executor_n_free_pages(const Executor *e) { return e->sequences.kv[KV_ALL].n_free; }
/* A second page table that was not opened has no pages. */
int32_t executor_n_window_pages(const Executor *e) { return e->sequences.kv[KV_WINDOW].shape.n_pages; }
int32_t executor_n_free_window_pages(const Executor *e) { return e->sequences.kv[KV_WINDOW].n_free; }
int32_t executor_n_pages_of(const Executor *e, int32_t n) { return kv_count_pages(&e->sequences.kv[KV_ALL], n); }

/* ---- results ---------------------------------------------------------------------------------- */

int executor_reserve_logits(Executor *e, int32_t n, fr_error *err) {
    if (n > e->options.max_rows) n = e->options.max_rows;
    if (n <= e->max_logits) return FR_OK;
    int status = e->backend->reserve_logits ? e->backend->reserve_logits(e->context, n, err) : FR_OK;
    if (!status) e->max_logits = n;
    return status;
}

int executor_keep_layers(Executor *e, const KeptLayers *layers, fr_error *err) {
    e->n_rows = 0;
    return e->backend->keep_layers(e->context, layers, err);
}

/* ---- placing rows --------------------------------------------------------------------------------- */

/* Returns where the visible tree slots of row `i` may be written: after those of the row before it. */
static int32_t *path_room(const Executor *e, int table, int32_t i) {
    if (i == 0) return e->path_slots[table];
    const RowPlace *last = &e->rows[i - 1];
    return e->path_slots[table] + (last->slots[table].path - e->path_slots[table]) + last->n_path;
}

/* Returns the sequences that rows name. */
static const SequenceTable *table_of(const Executor *e) {
    return e->options.reads ? &e->options.reads->sequences : &e->sequences;
}

/* Sets the slots of row i, which has number `index` in its sequence and a path of n_path rows; 0: it stores nothing. */
static RowSlots slots_of(const Executor *e, int table, int32_t i, const Row *r, int32_t index, int32_t n_path) {
    const int32_t *slots = sequence_slots(table_of(e), r->sequence, table);
    if (n_path == 0) return (RowSlots){.own = -1, .prefix = slots};
    int32_t *path = path_room(e, table, i), own = slots[sequence_length(&e->sequences, r->sequence) + index];
    if (r->parent >= 0) memcpy(path, e->rows[r->parent].slots[table].path, (size_t)(n_path - 1) * sizeof *path);
    path[n_path - 1] = own;
    return (RowSlots){.own = own, .prefix = slots, .path = path};
}

/* Returns how many rows before row `i` belong to its sequence. */
static int32_t index_in_sequence(const Executor *e, int32_t i, int32_t sequence) {
    for (int32_t k = i - 1; k >= 0; k--)
        if (e->rows[k].sequence == sequence) return e->rows[k].index + 1;
    return 0;
}

/* The layers of a drafter may compute logits for fewer tokens than they read. */
static bool is_possible(const Executor *e, const Row *r, int32_t i) {
    const SequenceTable *t = table_of(e);
    if (!sequence_is_open(t, r->sequence) || r->token < 0 || r->token >= e->weights->model->token_embd->dims[1])
        return false;
    if (e->options.reads) return r->parent == -1 && r->input && sequence_length(t, r->sequence) > 0;
    return r->parent >= -1 && r->parent < i && (r->parent < 0 || e->rows[r->parent].sequence == r->sequence);
}

/* Works out position, slot and visible tree slots of each row after n_before earlier ones. The rows of a sequence
 * take its reserved slots in row order; a row sees the committed tokens, its ancestors and itself. */
static int place_rows(Executor *e, const Row *rows, int32_t n_before, int32_t n_rows, fr_error *err) {
    for (int32_t i = n_before; i < n_before + n_rows; i++) {
        const Row *r = &rows[i - n_before];
        if (!is_possible(e, r, i))
            return error_set(err, FR_ERR_ARGUMENT,
                             "row %d of a batch of %d is impossible: token %d, sequence %d, parent %d", i,
                             n_before + n_rows, r->token, r->sequence, r->parent);
        const SequenceTable *sequences = table_of(e);
        bool stores = !e->options.reads;
        int32_t length = sequence_length(sequences, r->sequence),
                n_reserved = sequence_n_reserved(sequences, r->sequence);
        int32_t index = index_in_sequence(e, i, r->sequence);
        if (stores && index >= n_reserved)
            return error_set(err, FR_ERR_ARGUMENT, "sequence %d has more rows in the batch than the %d reserved for it",
                             r->sequence, n_reserved);
        if (r->want_logits && e->n_logits == e->max_logits)
            return error_set(err, FR_ERR_ARGUMENT, "more rows of a batch want logits than the %d that may",
                             e->max_logits);
        const RowPlace *parent = r->parent >= 0 ? &e->rows[r->parent] : NULL;
        int32_t n_path = !stores ? 0 : parent ? parent->n_path + 1 : 1;
        RowSlots slots[KV_GROUPS];
        for (int table = 0; table < sequences->n_tables; table++)
            slots[table] = slots_of(e, table, i, r, index, n_path);
        e->rows[i] = (RowPlace){.token = r->token,
                                .input = r->input,
                                .position = stores ? length + n_path - 1 : length,
                                .sequence = r->sequence,
                                .row = i,
                                .parent = r->parent,
                                .index = index,
                                .n_prefix = length,
                                .n_path = n_path,
                                .slots = {slots[KV_ALL], slots[sequences->n_tables - 1]},
                                .i_logits = r->want_logits ? e->n_logits++ : -1,
                                .only_best = r->only_best,
                                .draw = r->draw,
                                .i_hidden = r->want_logits || r->want_hidden ? e->n_hidden++ : -1};
    }
    return FR_OK;
}

/* Lets each row of a block see the whole block: what its last row sees. Positions stay those of the chain. */
static void join_blocks(Executor *e, const Row *rows, int32_t n_before, int32_t n_rows) {
    for (int32_t i = n_rows - 2; i >= 0; i--) {
        RowPlace *row = &e->rows[n_before + i], *next = row + 1;
        if (!rows[i].in_block || !rows[i + 1].in_block || rows[i + 1].parent != n_before + i) continue;
        row->n_path = next->n_path;
        for (int table = 0; table < KV_GROUPS; table++) row->slots[table].path = next->slots[table].path;
    }
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
    join_blocks(e, rows, n_before, n_rows);
    const Gguf *read = e->backend->reads_file ? e->context->weights->model->gguf : NULL;
    const MappedFile *mapped = e->context->weights->mapped;
    const Device *device = e->context->device;
    if ((status = gguf_check(read, err)) || (status = mapped_file_check(mapped, err))) return status;
    if ((status = device_check(device, err))) return status;
    e->n_rows = n_rows;
    e->backend->forward(e->context, e->rows + n_before, n_rows);
    status = device_check(device, err);
    if (!status) status = gguf_check(read, err);
    return status ? status : mapped_file_check(mapped, err);
}

int executor_forward(Executor *e, const Row *rows, int32_t n_rows, fr_error *err) {
    if (!e->options.reads) sequence_table_advance(&e->sequences);
    return run_after(e, 0, rows, n_rows, err);
}

int executor_extend(Executor *e, const Row *rows, int32_t n_rows, fr_error *err) {
    return run_after(e, e->n_before + e->n_rows, rows, n_rows, err);
}

int executor_store(Executor *e, const Row *rows, int32_t n_rows, fr_error *err) {
    e->context->only_stores = true;
    int status = executor_forward(e, rows, n_rows, err);
    e->context->only_stores = false;
    return status;
}

void executor_choose_layer(Executor *e, int32_t layer) { e->context->layer = layer; }

/* Returns the place of a row of the last run. */
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
    sequence_commit(&e->sequences, sequence, e->offsets, rows, n);
}

/* executor_cpu.c - the forward on the CPU: sequences, batches and memory. forward.c and attention.c hold the arithmetic. */
#include "base/mem.h"
#include "base/threads.h"
#include "backend/cpu/forward.h"

#include <string.h>

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* Bytes of one activation row wide enough for every matrix of the model. */
static size_t widest_act_row(const Model *m) {
    size_t widest = act_row_bytes(m->output.act, m->output.n_in);
    for (int32_t i = 0; i < m->hparams.n_layer; i++) {
        const LayerWeights *w = &m->layers[i];
        const PackedMatrix *all[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            widest = max_size(widest, act_row_bytes(all[k]->act, all[k]->n_in));
    }
    return widest;
}

static int allocate(Executor *e, fr_error *err) {
    const Hparams *h = &e->model->hparams;
    size_t rows = (size_t)e->options.max_rows, q_dim = (size_t)hparams_q_dim(h), kv_dim = (size_t)hparams_kv_dim(h);
    size_t embd = (size_t)h->n_embd, act = widest_act_row(e->model);
    size_t scores = (size_t)(h->n_head / h->n_head_kv) * (size_t)e->score_stride;
    size_t tile_sums = (size_t)attn_n_tiles(e->options.n_ctx) * (size_t)(h->n_head / h->n_head_kv) * (size_t)h->head_dim;
    const struct { void *out; size_t n, each; } wants[] = {
        {&e->all_rows, rows, sizeof *e->all_rows},
        {&e->cos_sin, rows * (size_t)h->rope.n_rot, sizeof(float)},
        {&e->x, rows * embd, sizeof(float)},
        {&e->normed, rows * embd, sizeof(float)},
        {&e->q, rows * q_dim, sizeof(float)},
        {&e->k, rows * kv_dim, sizeof(float)},
        {&e->v, rows * kv_dim, sizeof(float)},
        {&e->attended, rows * q_dim, sizeof(float)},
        {&e->gate, rows * (size_t)h->n_ff, sizeof(float)},
        {&e->up, rows * (size_t)h->n_ff, sizeof(float)},
        {&e->delta, rows * embd, sizeof(float)},
        {&e->hidden, rows * embd, sizeof(float)},
        {&e->logits, rows * (size_t)h->n_vocab, sizeof(float)},
        {&e->scores, scores * (size_t)e->options.n_threads, sizeof(float)},
        {&e->tile_sums, tile_sums * (size_t)e->options.n_threads, sizeof(float)},
        {&e->path_slots, rows * rows, sizeof(int32_t)},
        {&e->offsets, rows, sizeof(int32_t)},
        {&e->ff_acts, rows, act},
        {&e->steps, (size_t)h->n_layer * STEPS_PER_LAYER + STEPS_AROUND, sizeof *e->steps},
        {&e->stages, (size_t)h->n_layer * STEPS_PER_LAYER + STEPS_AROUND, sizeof *e->stages},
        {&e->stage_s, (size_t)h->n_layer * STEPS_PER_LAYER + STEPS_AROUND, sizeof *e->stage_s},
    };
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        size_t bytes;
        void *p = size_mul(wants[i].n, wants[i].each, &bytes) ? mem_alloc(bytes) : NULL;
        if (!p) return error_set(err, FR_ERR_MEMORY, "out of memory: the forward of %d rows does not fit", e->options.max_rows);
        memcpy(wants[i].out, &p, sizeof p);
    }
    for (int i = 0; i < ACT_FORM_COUNT; i++)
        if (!(e->acts[i] = mem_alloc(rows * act))) return error_memory(err, "activations", rows * act);
    return FR_OK;
}

int executor_open(Executor **out, const Model *model, const ExecutorOptions *options, fr_error *err) {
    *out = NULL;
    const Hparams *h = &model->hparams;
    fr_assert(options->max_rows >= 1 && options->max_rows <= EXECUTOR_MAX_ROWS && options->n_threads >= 1);
    fr_assert(options->n_ctx >= 1 && options->page_size >= 1 && options->max_sequences >= 1);
    Executor *e = mem_calloc(1, sizeof *e);
    if (!e) return error_memory(err, "an executor", sizeof *e);
    e->model = model;
    e->options = *options;
    e->score_stride = ((options->n_ctx + 15) / 16 | 1) * 16; /* an odd number of cache lines: heads in different sets of the cache */
    int64_t n_pages = options->n_pages;
    if (n_pages == 0) n_pages = (int64_t)options->max_sequences * (options->n_ctx / options->page_size + 1);
    int status = FR_OK;
    if (n_pages * options->page_size > INT32_MAX)
        status = error_set(err, FR_ERR_MEMORY, "%lld pages of %d tokens are more KV slots than can be numbered; ask for fewer or "
                           "shorter sequences",
                           (long long)n_pages, options->page_size);
    KvShape shape = {.type = options->kv_type, .n_layer = h->n_layer, .n_head_kv = h->n_head_kv,
                     .head_dim = h->head_dim, .page_size = options->page_size, .n_pages = (int32_t)n_pages,
                     .max_sequences = options->max_sequences, .n_ctx = options->n_ctx};
    if (!status) status = kv_open(&e->kv, &shape, err);
    if (!status) status = allocate(e, err);
    if (!status) status = threads_open(&e->threads, options->n_threads, err);
    if (!status && options->pin_threads) status = threads_pin(e->threads, err);
    if (status) {
        executor_close(e);
        return status;
    }
    *out = e;
    return FR_OK;
}

void executor_close(Executor *e) {
    if (!e) return;
    threads_close(e->threads);
    void *all[] = {e->all_rows, e->cos_sin, e->x, e->normed, e->q, e->k, e->v, e->attended, e->gate, e->up, e->delta,
                   e->hidden, e->logits, e->scores, e->tile_sums, e->path_slots, e->offsets, e->ff_acts, e->steps, e->stages,
                   e->stage_s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    for (int i = 0; i < ACT_FORM_COUNT; i++) mem_free(e->acts[i]);
    if (e->kv.sequences) kv_close(&e->kv);
    mem_free(e);
}

const ExecutorOptions *executor_options(const Executor *e) { return &e->options; }
int32_t executor_max_rows(const Executor *e) { return e->options.max_rows; }
int32_t executor_n_vocab(const Executor *e) { return e->model->hparams.n_vocab; }

int executor_sequence_open(Executor *e, int32_t *out, fr_error *err) { return kv_sequence_open(&e->kv, out, err); }
int executor_sequence_fork(Executor *e, int32_t from, int32_t *out, fr_error *err) {
    return kv_sequence_fork(&e->kv, from, out, err);
}
void executor_sequence_share(Executor *e, int32_t from, int32_t to, int32_t n) {
    kv_sequence_share(&e->kv, from, to, n);
}
void executor_sequence_close(Executor *e, int32_t sequence) { kv_sequence_close(&e->kv, sequence); }
int32_t executor_sequence_length(const Executor *e, int32_t sequence) { return e->kv.sequences[sequence].length; }
void executor_sequence_truncate(Executor *e, int32_t sequence, int32_t length) {
    kv_truncate(&e->kv, sequence, length);
}
int executor_sequence_pad(Executor *e, int32_t sequence, int32_t n, fr_error *err) {
    return kv_pad(&e->kv, sequence, n, err);
}
int32_t executor_room(const Executor *e, int32_t sequence) { return kv_room(&e->kv, sequence); }
int executor_reserve(Executor *e, int32_t sequence, int32_t n_rows, fr_error *err) {
    return kv_reserve(&e->kv, sequence, n_rows, err);
}

/* Where the visible tree slots of row `i` may be written: behind those of the row before. */
static int32_t *path_room(const Executor *e, int32_t i) {
    if (i == 0) return e->path_slots;
    const RowPlace *last = &e->all_rows[i - 1];
    return e->path_slots + (last->path_slots - e->path_slots) + last->n_path;
}

/* How many rows before row `i` belong to its sequence. */
static int32_t index_in_sequence(const Executor *e, int32_t i, int32_t sequence) {
    for (int32_t k = i - 1; k >= 0; k--)
        if (e->all_rows[k].sequence == sequence) return e->all_rows[k].index + 1;
    return 0;
}

/* Works out position, slot and visible tree slots of each row, n_before having run. The rows of a sequence take its
 * reserved slots in row order; a row sees the committed tokens, its ancestors and itself. */
static int place_rows(Executor *e, const Row *rows, int32_t n_before, int32_t n_rows, fr_error *err) {
    for (int32_t i = n_before; i < n_before + n_rows; i++) {
        const Row *r = &rows[i - n_before];
        if (r->sequence < 0 || r->sequence >= e->kv.shape.max_sequences || !e->kv.sequences[r->sequence].open ||
            r->token < 0 || r->token >= e->model->hparams.n_vocab || r->parent < -1 || r->parent >= i ||
            (r->parent >= 0 && e->all_rows[r->parent].sequence != r->sequence))
            return error_set(err, FR_ERR_ARGUMENT, "row %d of a batch of %d is impossible: token %d, sequence %d, parent %d",
                             i, n_before + n_rows, r->token, r->sequence, r->parent);
        const KvSequence *s = &e->kv.sequences[r->sequence];
        int32_t index = index_in_sequence(e, i, r->sequence);
        if (index >= s->n_reserved)
            return error_set(err, FR_ERR_ARGUMENT, "sequence %d has more rows in the batch than the %d reserved for it",
                             r->sequence, s->n_reserved);
        const RowPlace *parent = r->parent >= 0 ? &e->all_rows[r->parent] : NULL;
        int32_t *path = path_room(e, i), n_path = parent ? parent->n_path + 1 : 1, slot = s->slots[s->length + index];
        if (parent) memcpy(path, parent->path_slots, (size_t)parent->n_path * sizeof *path);
        path[n_path - 1] = slot;
        e->all_rows[i] = (RowPlace){.token = r->token, .input = r->input, .position = s->length + n_path - 1, .sequence = r->sequence,
                                    .index = index, .slot = slot, .n_prefix = s->length, .n_path = n_path,
                                    .prefix_slots = s->slots, .path_slots = path,
                                    .i_logits = r->want_logits ? e->n_logits++ : -1,
                                    .i_hidden = r->want_logits || r->want_hidden ? e->n_hidden++ : -1};
    }
    return FR_OK;
}

static int run_after(Executor *e, int32_t n_before, const Row *rows, int32_t n_rows, fr_error *err) {
    if (n_rows < 1 || n_rows > e->options.max_rows - n_before)
        return error_set(err, FR_ERR_ARGUMENT, "a batch of %d rows where 1 to %d fit", n_rows,
                         e->options.max_rows - n_before);
    e->n_before = n_before;
    e->rows = e->all_rows + n_before;
    e->n_rows = 0;
    e->n_logits = e->n_hidden = 0;
    int status = place_rows(e, rows, n_before, n_rows, err);
    if (status) return status;
    e->n_rows = n_rows;
    forward_run(e);
    return FR_OK;
}

int executor_forward(Executor *e, const Row *rows, int32_t n_rows, fr_error *err) {
    return run_after(e, 0, rows, n_rows, err);
}

int executor_extend(Executor *e, const Row *rows, int32_t n_rows, fr_error *err) {
    return run_after(e, e->n_before + e->n_rows, rows, n_rows, err);
}

/* The place of a row of the last run. */
static const RowPlace *place_of(const Executor *e, int32_t row) {
    fr_assert(row >= e->n_before && row < e->n_before + e->n_rows);
    return &e->all_rows[row];
}

void executor_time(Executor *e, double *seconds) {
    e->kind_s = seconds;
    threads_time(e->threads, seconds ? e->stage_s : NULL);
}

const float *executor_logits(const Executor *e, int32_t row) {
    int32_t i = place_of(e, row)->i_logits;
    return i < 0 ? NULL : e->logits + (size_t)i * (size_t)e->model->hparams.n_vocab;
}

const float *executor_hidden(const Executor *e, int32_t row) {
    int32_t i = place_of(e, row)->i_hidden;
    return i < 0 ? NULL : e->hidden + (size_t)i * (size_t)e->model->hparams.n_embd;
}

void executor_commit(Executor *e, int32_t sequence, const int32_t *rows, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        fr_assert(rows[i] >= 0 && rows[i] < e->n_before + e->n_rows);
        e->offsets[i] = e->all_rows[rows[i]].index;
    }
    kv_commit(&e->kv, sequence, e->offsets, n);
}

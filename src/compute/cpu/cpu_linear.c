/* cpu_linear.c - products outside a forward, with the matrices of drafters and with the target's LM head over rows
 * that a drafter made, and the tables of rows that drafters add to logits by token. The kernels are those of a
 * forward, and so are the bits. What is added to a product is added by the thread that computed it, while the
 * product is in its cache; each output goes through the same operations in the same order, whichever thread that is. */
#include "compute/cpu/cpu.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <string.h>

/* The threads compute in main memory, so a buffer is its floats. */
int cpu_buffer_open(Buffer **out, Device *d, int64_t n, fr_error *err) {
    *out = NULL;
    Buffer *b = mem_calloc(1, sizeof *b);
    if (!b) return error_memory(err, "a buffer of a drafter", sizeof *b);
    *b = (Buffer){.device = d, .n = n, .floats = mem_calloc((size_t)n, sizeof(float))};
    if (!b->floats) {
        cpu_buffer_close(b);
        return error_memory(err, "a buffer of a drafter", (size_t)n * sizeof(float));
    }
    *out = b;
    return FR_OK;
}

void cpu_buffer_close(Buffer *b) {
    if (!b) return;
    mem_free(b->floats);
    mem_free(b);
}

static float *slice_floats(Slice s) { return s.buffer->floats + s.first; }

typedef struct CpuLinear {
    Linear base;
    PackedMatrix m;
    float *bias; /* [n_out]; NULL: none */
} CpuLinear;

int cpu_linear_open(Linear **out, Device *device, const Weights *target, const GgufTensor *w, const float *bias,
                    int32_t max_rows, fr_error *err) {
    *out = NULL;
    CpuLinear *l = mem_calloc(1, sizeof *l);
    if (!l) return error_memory(err, w->name, sizeof *l);
    l->base = (Linear){.n_in = w->dims[0], .n_out = w->dims[1]};
    int status = cpu_device_reserve((CpuDevice *)device, l->base.n_in, l->base.n_out, max_rows, err);
    if (!status) status = cpu_pack((const CpuWeights *)target, w, &l->m, err);
    if (!status && bias) {
        size_t bytes = (size_t)l->base.n_out * sizeof *bias;
        l->bias = mem_alloc(bytes);
        if (l->bias) memcpy(l->bias, bias, bytes);
        else status = error_memory(err, w->name, bytes);
    }
    if (status) {
        cpu_linear_close(&l->base);
        return status;
    }
    *out = &l->base;
    return FR_OK;
}

void cpu_linear_close(Linear *linear) {
    CpuLinear *l = (CpuLinear *)linear;
    if (!l) return;
    packed_free(&l->m);
    mem_free(l->bias);
    mem_free(l);
}

/* ---- products -------------------------------------------------------------------------------------- */

typedef struct Job {
    const CpuDevice *d;
    const PackedMatrix *m;
    const float *bias;
    LinearOp op;
    Share tiles;
    int64_t n_rows;
    float *y;
} Job;

/* Finishes outputs [from, from + n) of one row, whose product is p. */
static void finish(const Job *j, float *p, float *y, int64_t from, int64_t n) {
    const Kernels *kn = j->d->kernels;
    if (j->bias) kn->add(p, j->bias + from, n);
    if (j->op == LINEAR_ADD_SILU) kn->silu_mul(p, j->d->ones, n);
    if (j->op != LINEAR_SET) kn->add(y, p, n);
    if (j->op == LINEAR_SUM_SILU) kn->silu_mul(y, j->d->ones, n);
}

static void multiply_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Job *j = ctx;
    int64_t begin, end, n_out = j->m->n_out;
    threads_split(share_size(j->tiles), 1, i_part, n_parts, &begin, &end);
    if (begin == end) return;
    begin += j->tiles.first, end += j->tiles.first;
    float *product = j->op == LINEAR_SET ? j->y : j->d->products;
    j->d->kernels->matmul(j->m, j->d->acts, j->n_rows, product, n_out, begin, end);
    int64_t from = begin * TILE_ROWS, n = (end * TILE_ROWS < n_out ? end * TILE_ROWS : n_out) - from;
    for (int64_t i = 0; i < j->n_rows; i++)
        finish(j, product + row_at(i, n_out) + from, j->y + row_at(i, n_out) + from, from, n);
}

static void multiply(CpuDevice *d, const PackedMatrix *m, Share tiles, const float *bias, LinearOp op, const float *x,
                     int32_t n_rows, float *y) {
    if (n_rows < 1) return;
    ActForm form = m->act;
    size_t row_bytes = act_row_bytes(form, m->n_in);
    fr_assert((size_t)n_rows * row_bytes <= d->acts_bytes);
    fr_assert(op == LINEAR_SET || row_at(n_rows, m->n_out) <= d->n_products);
    for (int32_t i = 0; i < n_rows; i++)
        d->kernels->act_convert(form, x + row_at(i, m->n_in), m->n_in, d->acts + (size_t)i * row_bytes);
    Job job = {.d = d, .m = m, .bias = bias, .op = op, .tiles = tiles, .n_rows = n_rows, .y = y};
    int64_t n_tiles = share_size(tiles), n_parts = (int64_t)threads_count(d->threads) * 2;
    threads_run(d->threads, (int)(n_tiles < n_parts ? n_tiles : n_parts), multiply_part, &job);
}

void cpu_linear(Device *d, const Linear *linear, LinearOp op, Slice x, int32_t n_rows, Slice y) {
    const CpuLinear *l = (const CpuLinear *)linear;
    multiply((CpuDevice *)d, &l->m, (Share){0, packed_n_tiles(&l->m)}, l->bias, op, slice_floats(x), n_rows,
             slice_floats(y));
}

int cpu_head_reserve(Device *d, const Weights *w, int32_t max_rows, fr_error *err) {
    return cpu_device_reserve((CpuDevice *)d, w->model->hparams.n_embd, 0, max_rows, err);
}

void cpu_head(Device *d, const Weights *w, Slice x, int32_t n_rows, Slice y) {
    const CpuWeights *weights = (const CpuWeights *)w;
    Share tiles = cpu_share(weights, packed_n_tiles(&weights->output));
    multiply((CpuDevice *)d, &weights->output, tiles, w->model->output_bias, LINEAR_SET, slice_floats(x), n_rows,
             slice_floats(y));
    if (cpu_comm(weights)) cpu_exchange_logits(weights, slice_floats(y), n_rows);
    const Hparams *h = &w->model->hparams;
    cpu_finish_logits(h, ((const CpuDevice *)d)->kernels, slice_floats(y), (int64_t)n_rows * h->n_vocab);
}

void cpu_embed(Device *d, const Weights *w, const int32_t *tokens, int32_t n, Slice out) {
    (void)d;
    const CpuWeights *weights = (const CpuWeights *)w;
    Share own = cpu_share_tokens(weights, cpu_rank(weights));
    int64_t n_embd = w->model->hparams.n_embd;
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] >= own.first && tokens[i] < own.last)
            cpu_embedding_row(weights, tokens[i], slice_floats(out) + i * n_embd);
    if (cpu_comm(weights)) cpu_exchange_embeddings(weights, tokens, n, n_embd, slice_floats(out));
}

/* ---- rows ------------------------------------------------------------------------------------------ */

typedef struct RowsJob {
    const Kernels *kernels;
    float *x;
    int64_t n_rows, n;
    const float *gain; /* the gain of a norm; NULL: softmax is computed */
    float eps;
} RowsJob;

static void rows_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const RowsJob *j = ctx;
    int64_t begin, end;
    threads_split(j->n_rows, 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *row = j->x + row_at(i, j->n);
        if (j->gain) j->kernels->rmsnorm(row, row, j->gain, j->n, j->eps);
        else j->kernels->softmax(row, j->n);
    }
}

static void run_rows(const CpuDevice *d, RowsJob job) {
    int64_t n_parts = (int64_t)threads_count(d->threads) * 2;
    job.kernels = d->kernels;
    if (job.n_rows > 0) threads_run(d->threads, (int)(job.n_rows < n_parts ? job.n_rows : n_parts), rows_part, &job);
}

void cpu_softmax(Device *d, float *x, int32_t n_rows, int64_t n) {
    run_rows((const CpuDevice *)d, (RowsJob){.x = x, .n_rows = n_rows, .n = n});
}

void cpu_rmsnorm(Device *d, Slice x, int32_t n_rows, int64_t n, const float *gain, float eps) {
    run_rows((const CpuDevice *)d, (RowsJob){.x = slice_floats(x), .n_rows = n_rows, .n = n, .gain = gain, .eps = eps});
}

/* ---- tables of rows, in half precision or in Q8_0 blocks ----------------------------------------------------- */

enum { LOOKUP_BLOCK = 32 };

typedef struct CpuLookup {
    Lookup base;
    size_t row_bytes;
    char *rows;    /* [n_rows][row_bytes] */
    float *floats; /* [n, up to whole blocks] one row of a Q8_0 table */
} CpuLookup;

static int64_t in_blocks(int64_t n) { return (n + LOOKUP_BLOCK - 1) / LOOKUP_BLOCK * LOOKUP_BLOCK; }

int cpu_lookup_open(Lookup **out, Device *d, TensorType type, int64_t n_rows, int64_t n, fr_error *err) {
    (void)d;
    *out = NULL;
    fr_assert(type == TYPE_F16 || type == TYPE_Q8_0);
    CpuLookup *l = mem_calloc(1, sizeof *l);
    if (!l) return error_memory(err, "a table of rows", sizeof *l);
    l->base = (Lookup){.n_rows = n_rows, .n = n, .type = type};
    size_t bytes = SIZE_MAX;
    bool fits = tensor_type_row_bytes(type, type == TYPE_Q8_0 ? in_blocks(n) : n, &l->row_bytes) &&
                size_mul((size_t)n_rows, l->row_bytes, &bytes);
    if (fits) l->rows = mem_alloc(bytes);
    l->floats = mem_alloc((size_t)in_blocks(n) * sizeof *l->floats);
    if (!l->rows || !l->floats) {
        cpu_lookup_close(&l->base);
        return error_memory(err, "a table of rows", bytes);
    }
    *out = &l->base;
    return FR_OK;
}

void cpu_lookup_close(Lookup *lookup) {
    CpuLookup *l = (CpuLookup *)lookup;
    if (!l) return;
    mem_free(l->rows);
    mem_free(l->floats);
    mem_free(l);
}

static void store_q8(const CpuLookup *l, const float *row, char *out) {
    int64_t n = l->base.n, whole = n / LOOKUP_BLOCK * LOOKUP_BLOCK;
    float last[LOOKUP_BLOCK] = {0}; /* the rest of a row, followed by zeros */
    blocks_quantize(TYPE_Q8_0, row, whole, out);
    if (whole == n) return;
    memcpy(last, row + whole, (size_t)(n - whole) * sizeof *row);
    blocks_quantize(TYPE_Q8_0, last, LOOKUP_BLOCK, out + l->row_bytes - tensor_type_info(TYPE_Q8_0)->block_bytes);
}

typedef struct StoreJob {
    const CpuDevice *d;
    const CpuLookup *l;
    int64_t first, n_rows;
    const float *rows;
} StoreJob;

static void store_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const StoreJob *j = ctx;
    int64_t begin, end, n = j->l->base.n;
    threads_split(j->n_rows, 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        char *out = j->l->rows + (size_t)(j->first + i) * j->l->row_bytes;
        if (j->l->base.type == TYPE_F16) j->d->kernels->kv_store(KV_F16, j->rows + i * n, n, out);
        else store_q8(j->l, j->rows + i * n, out);
    }
}

void cpu_lookup_store(Device *device, Lookup *l, int64_t first, int32_t n_rows, const float *rows) {
    const CpuDevice *d = (const CpuDevice *)device;
    StoreJob job = {.d = d, .l = (const CpuLookup *)l, .first = first, .n_rows = n_rows, .rows = rows};
    int n_parts = threads_count(d->threads) * 2;
    threads_run(d->threads, n_rows < n_parts ? n_rows : n_parts, store_part, &job);
}

void cpu_lookup_add(Device *device, Lookup *lookup, int64_t i, float *x) {
    static const float one = 1;
    static const int32_t first = 0;
    const CpuDevice *d = (const CpuDevice *)device;
    CpuLookup *l = (CpuLookup *)lookup;
    const char *row = l->rows + (size_t)i * l->row_bytes;
    if (l->base.type ==
        TYPE_F16) { /* the kernel that mixes values computes x + 1 * row with one rounding, which is the sum */
        d->kernels->attn_mix(KV_F16, &one, 1, 1, l->base.n, row, 0, &first, 1, x);
        return;
    }
    blocks_dequantize(TYPE_Q8_0, row, in_blocks(l->base.n), l->floats);
    d->kernels->add(x, l->floats, l->base.n);
}

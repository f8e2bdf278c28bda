/* cpu_lookup.c - tables of rows that drafters add to logits by token, in half precision or in Q8_0 blocks. */
#include "compute/cpu/cpu.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <string.h>

enum { BLOCK = 32 };

typedef struct CpuLookup {
    Lookup base;
    size_t row_bytes;
    char *rows;    /* [n_rows][row_bytes] */
    float *floats; /* [n, up to whole blocks] one row of a Q8_0 table */
} CpuLookup;

static int64_t in_blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK * BLOCK; }

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
    int64_t n = l->base.n, whole = n / BLOCK * BLOCK;
    float last[BLOCK] = {0}; /* what is left of a row, filled up with zeros */
    blocks_quantize(TYPE_Q8_0, row, whole, out);
    if (whole == n) return;
    memcpy(last, row + whole, (size_t)(n - whole) * sizeof *row);
    blocks_quantize(TYPE_Q8_0, last, BLOCK, out + l->row_bytes - tensor_type_info(TYPE_Q8_0)->block_bytes);
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
    if (l->base.type == TYPE_F16) { /* by the kernel that mixes values: x + 1 * row, rounded once, as a sum is */
        d->kernels->attn_mix(KV_F16, &one, 1, 1, l->base.n, row, 0, &first, 1, x);
        return;
    }
    blocks_dequantize(TYPE_Q8_0, row, in_blocks(l->base.n), l->floats);
    d->kernels->add(x, l->floats, l->base.n);
}

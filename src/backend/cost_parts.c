#include "backend/cost_parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/threads.h"

#include <stddef.h>
#include <string.h>

/* The matrices of a layer in LayerWeights, in the order of a forward. */
static const size_t kinds[] = {offsetof(LayerWeights, q),    offsetof(LayerWeights, k),  offsetof(LayerWeights, v),   offsetof(LayerWeights, o),
                               offsetof(LayerWeights, gate), offsetof(LayerWeights, up), offsetof(LayerWeights, down)};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const PackedMatrix *matrix_of(const Model *m, int kind, int32_t layer) {
    if (kind == N_KINDS) return &m->output;
    return (const PackedMatrix *)(const void *)((const char *)&m->layers[layer] + kinds[kind]);
}

static double floor_of(const MachineSpeed *speed, double bytes, double ops, PeakKind peak) {
    double read_s = bytes / (speed->read_gb_s * 1e9), compute_s = ops / (speed->peak_gop_s[peak] * 1e9);
    return read_s > compute_s ? read_s : compute_s;
}

/* The matrices of a kind of stage, as indices into kinds [N_KINDS]; N_KINDS is the output. */
static const struct {
    const char *name;
    ForwardKind kind;
    int first, last;
} products[] = {{"attn_qkv", FORWARD_QKV, 0, 2}, {"attn_output", FORWARD_O, 3, 3}, {"ffn_gate_up", FORWARD_GATE_UP, 4, 5},
                {"ffn_down", FORWARD_DOWN, 6, 6}, {"output", FORWARD_OUTPUT, N_KINDS, N_KINDS}};
enum { N_PRODUCTS = sizeof products / sizeof *products };

static void add_matrix(CostPart *p, const PackedMatrix *w, const MachineSpeed *speed, int32_t n_rows, bool is_first_layer) {
    ActForm form = w->act;
    PeakKind peak = form == ACT_BF16 ? PEAK_BF16 : form == ACT_F32 ? PEAK_F32 : PEAK_INT8;
    double bytes = (double)packed_n_tiles(w) * (double)w->tile_bytes;
    double ops = 2.0 * (double)w->n_out * (double)w->n_in * n_rows * (form == ACT_Q16 ? 2 : 1);
    if (is_first_layer) p->n_out += w->n_out, p->n_in = w->n_in;
    p->bytes += bytes, p->ops += ops;
    p->floor_s += floor_of(speed, bytes, ops, peak);
}

static CostPart describe(const Model *m, int i_product, const MachineSpeed *speed, int32_t n_rows) {
    int32_t n = products[i_product].first == N_KINDS ? 1 : m->hparams.n_layer;
    CostPart p = {.name = products[i_product].name, .n_layers = n};
    for (int32_t i = 0; i < n; i++)
        for (int k = products[i_product].first; k <= products[i_product].last; k++)
            add_matrix(&p, matrix_of(m, k, i), speed, n_rows, i == 0);
    return p;
}

/* Keys and values of the context are read once a forward (rows share them); each row multiplies with all that it sees. */
static CostPart describe_attention(const Model *m, KvType kv_type, const MachineSpeed *speed, int32_t n_rows, int32_t n_context) {
    const Hparams *h = &m->hparams;
    CostWork work;
    cost_work(m, kv_type, &work);
    CostPart p = {.name = "attention", .n_layers = h->n_layer, .bytes = (n_context + n_rows) * work.kv_bytes_per_key,
                  .ops = work.attention_ops * n_rows * cost_keys_of_row(n_rows, n_context)};
    p.floor_s = floor_of(speed, p.bytes, p.ops, PEAK_F32);
    return p;
}

/* The seconds by kind of the fastest of some forwards. */
static int time_kinds(Executor *e, int32_t n_rows, int32_t n_context, double seconds, double *kind_s, double *whole_s, fr_error *err) {
    double end_s = clock_s() + seconds, now_s[FORWARD_KINDS], forward_s;
    int status = FR_OK;
    for (int round = 0; !status && (round < 3 || clock_s() < end_s); round++) {
        memset(now_s, 0, sizeof now_s);
        executor_time(e, now_s);
        status = cost_measure(e, n_context, &n_rows, 1, 1, 0, 0, &forward_s, err);
        if (status || (round > 0 && forward_s >= *whole_s)) continue;
        *whole_s = forward_s;
        memcpy(kind_s, now_s, sizeof now_s);
    }
    executor_time(e, NULL);
    return status;
}

int cost_parts_measure(const Model *m, Executor *e, KvType kv_type, const MachineSpeed *speed, int32_t n_rows, int32_t n_context,
                       double seconds, CostPart *parts, double *whole_s, fr_error *err) {
    double kind_s[FORWARD_KINDS];
    int status = time_kinds(e, n_rows, n_context, seconds, kind_s, whole_s, err), n = 0;
    if (status) return status;
    for (int i = 0; i < N_PRODUCTS; i++) {
        parts[n] = describe(m, i, speed, n_rows);
        parts[n++].seconds = kind_s[products[i].kind];
    }
    parts[n] = describe_attention(m, kv_type, speed, n_rows, n_context);
    parts[n++].seconds = kind_s[FORWARD_ATTENTION];
    parts[n++] = (CostPart){.name = "norms", .seconds = kind_s[FORWARD_EMBED] + kind_s[FORWARD_NORM]};
    return n;
}

enum { READS_PER_THREAD = 8 }; /* a thread that lost its core for a while is made up for by the others */

typedef struct Reading {
    const Model *m;
    uint32_t seen[THREADS_MAX * READS_PER_THREAD]; /* what read_loop returned: it means nothing */
} Reading;

static void read_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Reading *r = ctx;
    for (int32_t layer = 0; layer < r->m->hparams.n_layer; layer++)
        for (int kind = 0; kind < N_KINDS + (layer == 0); kind++) {
            const PackedMatrix *w = matrix_of(r->m, kind, layer);
            int64_t begin, end;
            threads_split(packed_n_tiles(w) * (int64_t)w->tile_bytes / 256 * 256, 256, i_part, n_parts, &begin, &end);
            r->seen[i_part] += r->m->kernels->read_loop((const char *)w->data + begin, (size_t)(end - begin));
        }
}

int cost_read_weights(const Model *m, int n_threads, double *seconds, fr_error *err) {
    Reading r = {.m = m};
    ThreadPool *pool;
    int status = threads_open(&pool, n_threads, err);
    if (status) return status;
    for (int i = 0; i < 2; i++) {
        double start_s = clock_s();
        threads_run(pool, n_threads * READS_PER_THREAD, read_part, &r);
        double s = clock_s() - start_s;
        if (i == 0 || s < *seconds) *seconds = s; /* the first wakes the threads */
    }
    threads_close(pool);
    return FR_OK;
}

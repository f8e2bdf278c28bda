/* cpu_cost.c - what a forward on the CPU has to read and to compute, part by part, and how long each part took. */
#include "compute/cpu/cpu_ops.h"

#include "compute/cost.h"
#include "base/math_functions.h"
#include "base/system.h"
#include "compute/cpu/kernels/kernels.h"

#include <math.h>

static PeakKind peak_of(const Kernels *kernels, ActForm form) {
    if (form == ACT_Q16 && kernels->acts_are_words) return PEAK_INT16;
    return form == ACT_BF16 ? PEAK_BF16 : form == ACT_F32 ? PEAK_F32 : PEAK_INT8;
}

/* Returns the multiplications and additions of one row. Activations of 16 bits that are two planes of bytes count
 * twice. */
static double ops_of(const Kernels *kernels, const PackedMatrix *m) {
    bool is_planes = m->act == ACT_Q16 && !kernels->acts_are_words;
    return 2.0 * (double)m->n_out * (double)m->n_in * (is_planes ? 2 : 1);
}

/* Returns how many of the matrices in a slot each row is multiplied with. */
static double n_of_row(const CpuLayer *l, LayerMatrix m) {
    bool of_experts = layer_matrix_info[m].count == MATRIX_OF_EXPERTS;
    return of_experts ? l->spec->n_expert_used : (double)layer_matrix_count(l->spec, m);
}

/* Adds the matrices of a layer. All matrices of a slot have the same shape and type. */
static void add_work(CostWork *out, const Kernels *kernels, const CpuLayer *l) {
    for (LayerMatrix m = 0; m < LAYER_MATRICES; m++) {
        const PackedMatrix *p = l->matrices[m];
        if (!p) continue;
        out->ops_per_row[peak_of(kernels, p->act)] += ops_of(kernels, p) * n_of_row(l, m);
        if (layer_matrix_info[m].count != MATRIX_OF_EXPERTS) continue;
        double bytes = (double)packed_bytes(p) * (double)layer_matrix_count(l->spec, m);
        out->weight_bytes -= bytes;
        out->expert_bytes += bytes;
        out->expert_share = (double)l->spec->n_expert_used / layer_n_experts(l->spec);
    }
}

/* Returns the bytes of the recurrent state of a sequence. */
static double state_bytes(const Model *m) {
    const StateShape *d = &m->hparams.state;
    return (double)model_n_states(m) * d->n_heads * (double)d->head_floats * sizeof(float);
}

void cpu_work(const Weights *weights, KvType kv_type, CostWork *out) {
    const CpuWeights *w = (const CpuWeights *)weights;
    const Hparams *h = &weights->model->hparams;
    *out = (CostWork){.weight_bytes = (double)w->block_bytes};
    out->weight_bytes += 2 * state_bytes(
                                 weights->model); /* a forward reads the state of a sequence and writes the next one */
    double all = 0, windows = 0;                  /* what all layers read for a token, and those with a window */
    for (int32_t i = 0; i < h->n_layer; i++) {
        const LayerSpec *l = &weights->model->layers[i];
        if (layer_has_state(l)) continue;
        int32_t dim = layer_head_dim(h, l);
        double bytes = (h->latent.rank ? 1.0 : 2.0) * layer_n_head_kv(h, l) * (double)kv_row_bytes(kv_type, dim);
        double score_ops = dim * (kv_type == KV_Q8 ? 0.5 : 1.0); /* 16-bit words, two in a lane */
        all += bytes, windows += l->mixer == MIXER_WINDOW ? bytes : 0;
        if (!l->shares_kv) out->kept_bytes[kv_group_of(l)] += bytes;
        out->attention_ops += 2.0 * layer_n_head(h, l) * (score_ops + (double)layer_value_dim(h, l));
    }
    out->kv_bytes_per_key = all;
    out->window = model_window(weights->model);
    out->window_share = all > 0 ? windows / all : 0;
    out->ops_per_row[PEAK_F32] += 2 *
                                  state_bytes(
                                      weights->model); /* 8 operations for each float of the state, which has 4 bytes */
    out->ops_per_row[peak_of(w->kernels, w->output.act)] += ops_of(w->kernels, &w->output);
    for (int32_t i = 0; i < h->n_layer; i++) add_work(out, w->kernels, &w->layers[i]);
}

/* ---- parts ---------------------------------------------------------------------------------------- */

/* The parts of a forward that are products. The first of them have the numbers of LayerPart. */
static const struct {
    const char *name;
    ForwardKind kind;
} products[] = {[PART_QKV] = {"attn_qkv", FORWARD_QKV},
                [PART_O] = {"attn_output", FORWARD_O},
                [PART_GATE_UP] = {"ffn_gate_up", FORWARD_GATE_UP},
                [PART_DOWN] = {"ffn_down", FORWARD_DOWN},
                {"output", FORWARD_OUTPUT}};
enum {
    N_PRODUCTS = sizeof products / sizeof *products,
    PART_OUTPUT = N_PRODUCTS - 1,
    PART_ATTENTION = N_PRODUCTS,
    PART_NORMS,
    N_PARTS
};
_Static_assert((int)N_PARTS == CPU_N_PARTS && (int)CPU_N_PARTS <= (int)COST_PARTS_MAX, "the parts of a forward");

static double floor_of(const MachineSpeed *speed, double bytes, double ops, PeakKind peak) {
    double read_s = bytes / (speed->read_gb_s * 1e9), compute_s = ops / (speed->peak_gop_s[peak] * 1e9);
    return read_s > compute_s ? read_s : compute_s;
}

/* Adds the reading of n_read matrices of one shape, and n_products products of such a matrix with a row. */
static void add_matrices(CostPart *p, const Kernels *kernels, const PackedMatrix *m, double n_read, double n_products,
                         const MachineSpeed *speed) {
    double bytes = (double)packed_bytes(m) * n_read, ops = ops_of(kernels, m) * n_products;
    p->bytes += bytes, p->ops += ops;
    p->floor_s += floor_of(speed, bytes, ops, peak_of(kernels, m->act));
}

/* Returns the share of the matrices in a slot that n_rows rows are expected to read. */
static double n_expected(const CpuLayer *l, LayerMatrix m, int32_t n_rows) {
    double n = (double)layer_matrix_count(l->spec, m);
    return n * (1 - math_pow(1 - n_of_row(l, m) / n, n_rows));
}

static CostPart describe_layers(const CpuWeights *w, int part, const MachineSpeed *speed, int32_t n_rows) {
    int32_t n = w->base.model->hparams.n_layer;
    CostPart p = {.name = products[part].name, .n_layers = n};
    for (int32_t layer = 0; layer < n; layer++)
        for (LayerMatrix m = 0; m < LAYER_MATRICES; m++) {
            const CpuLayer *l = &w->layers[layer];
            const PackedMatrix *packed = l->matrices[m];
            if (!packed || (int)layer_matrix_info[m].part != part) continue;
            if (layer == 0 && layer_matrix_info[m].count == ONE_MATRIX) p.n_out += packed->n_out, p.n_in = packed->n_in;
            add_matrices(&p, w->kernels, packed, n_expected(l, m, n_rows), n_of_row(l, m) * n_rows, speed);
        }
    return p;
}

static CostPart describe_output(const CpuWeights *w, const MachineSpeed *speed, int32_t n_rows) {
    const PackedMatrix *m = &w->output;
    CostPart p = {.name = products[PART_OUTPUT].name, .n_layers = 1, .n_out = m->n_out, .n_in = m->n_in};
    add_matrices(&p, w->kernels, m, 1, n_rows, speed);
    return p;
}

/* Keys and values of the context are read once in a forward, because rows share them. Each row is multiplied with all
 * keys that it sees. */
static CostPart describe_attention(const CpuWeights *w, KvType kv_type, const MachineSpeed *speed, int32_t n_rows,
                                   int32_t n_context) {
    CostWork work;
    cpu_work(&w->base, kv_type, &work);
    CostPart p = {.name = "attention",
                  .n_layers = w->base.model->hparams.n_layer,
                  .bytes = cost_keys_seen(&work, n_context + n_rows) * work.kv_bytes_per_key,
                  .ops = work.attention_ops * n_rows * cost_keys_seen(&work, cost_keys_of_row(n_rows, n_context))};
    p.bytes += state_bytes(w->base.model), p.ops += 2 * state_bytes(w->base.model) * n_rows;
    p.floor_s = floor_of(speed, p.bytes, p.ops, PEAK_F32);
    return p;
}

int cpu_parts(const Weights *weights, KvType kv_type, const MachineSpeed *speed, int32_t n_rows, int32_t n_context,
              CostPart *out) {
    const CpuWeights *w = (const CpuWeights *)weights;
    for (int i = 0; i < PART_OUTPUT; i++) out[i] = describe_layers(w, i, speed, n_rows);
    out[PART_OUTPUT] = describe_output(w, speed, n_rows);
    out[PART_ATTENTION] = describe_attention(w, kv_type, speed, n_rows, n_context);
    out[PART_NORMS] = (CostPart){.name = "norms"};
    return N_PARTS;
}

void cpu_time_parts(Context *context, double *seconds) { ((CpuContext *)context)->part_s = seconds; }

static int part_of(ForwardKind kind) {
    for (int i = 0; i < N_PRODUCTS; i++)
        if (products[i].kind == kind) return i;
    return kind == FORWARD_ATTENTION ? PART_ATTENTION : PART_NORMS;
}

void cpu_note_times(CpuContext *c, int n) {
    for (int i = 0; c->part_s && i < n; i++) c->part_s[part_of(c->ops[i].kind)] += c->stage_s[i];
}

/* ---- the machine ---------------------------------------------------------------------------------- */

int cpu_speed(const Weights *w, int n_threads, MachineSpeed *out, fr_error *err) {
    return machine_measure(((const CpuWeights *)w)->kernels, n_threads, out, err);
}

enum {
    READS_PER_THREAD = 8
}; /* several parts for each thread, so that the others make up for one that lost its core for a while */

typedef struct Reading {
    const CpuWeights *w;
    uint32_t seen[THREADS_MAX *
                  READS_PER_THREAD]; /* keeps the result of read_loop, so that the compiler does not remove the loop */
} Reading;

static void read_matrix(Reading *r, const PackedMatrix *m, int i_part, int n_parts) {
    int64_t begin, end;
    threads_split(packed_n_tiles(m) * (int64_t)m->tile_bytes / 256 * 256, 256, i_part, n_parts, &begin, &end);
    r->seen[i_part] += r->w->kernels->read_loop((const char *)m->data + begin, (size_t)(end - begin));
}

static void read_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Reading *r = ctx;
    for (int32_t layer = 0; layer < r->w->base.model->hparams.n_layer; layer++)
        for (int m = 0; m < LAYER_MATRICES; m++) {
            const PackedMatrix *packed = r->w->layers[layer].matrices[m];
            if (packed && layer_matrix_info[m].count == ONE_MATRIX) read_matrix(r, packed, i_part, n_parts);
        }
    read_matrix(r, &r->w->output, i_part, n_parts);
}

int cpu_read_weights(Device *device, const Weights *w, double *seconds, fr_error *err) {
    (void)err;
    ThreadPool *pool = ((CpuDevice *)device)->threads;
    Reading r = {.w = (const CpuWeights *)w};
    for (int i = 0; i < 2; i++) {
        double start_s = clock_s();
        threads_run(pool, threads_count(pool) * READS_PER_THREAD, read_part, &r);
        double s = clock_s() - start_s;
        if (i == 0 || s < *seconds) *seconds = s; /* the first run only wakes the threads */
    }
    return FR_OK;
}

/* cpu_cost.c - what a forward on the CPU has to read and to compute, part by part, and how long each part took. */
#include "compute/cpu/cpu.h"

#include "compute/cost.h"
#include "base/system.h"
#include "compute/cpu/kernels/machine.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* The matrices of a layer, in the order of a forward; N_KINDS stands for the output. A layer may lack some: they are empty. */
static const size_t kinds[] = {offsetof(CpuLayer, q_a),
                               offsetof(CpuLayer, kv_a),
                               offsetof(CpuLayer, q),
                               offsetof(CpuLayer, k),
                               offsetof(CpuLayer, v),
                               offsetof(CpuLayer, state_matrices[0]),
                               offsetof(CpuLayer, state_matrices[1]),
                               offsetof(CpuLayer, state_matrices[2]),
                               offsetof(CpuLayer, state_matrices[3]),
                               offsetof(CpuLayer, o),
                               offsetof(CpuLayer, router),
                               offsetof(CpuLayer, gate),
                               offsetof(CpuLayer, up),
                               offsetof(CpuLayer, down)};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const PackedMatrix *matrix_of(const CpuWeights *w, int kind, int32_t layer) {
    if (kind < 0 || kind >= N_KINDS) return &w->output;
    return (const PackedMatrix *)(const void *)((const char *)&w->layers[layer] + kinds[kind]);
}

static PeakKind peak_of(ActForm form) { return form == ACT_BF16 ? PEAK_BF16 : form == ACT_F32 ? PEAK_F32 : PEAK_INT8; }

/* The matrices of a layer's experts that belong to a kind of stage. */
static double expert_bytes(const CpuLayer *l, ForwardKind kind) {
    if (!l->experts) return 0;
    const CpuExpert *e = &l->experts[0];
    size_t one = kind == FORWARD_GATE_UP ? packed_bytes(&e->gate) + packed_bytes(&e->up)
                 : kind == FORWARD_DOWN  ? packed_bytes(&e->down)
                                         : 0;
    return (double)one * (double)l->spec->router->dims[1];
}

static double expert_share(const CpuLayer *l) {
    return l->experts ? (double)l->spec->n_expert_used / (double)l->spec->router->dims[1] : 0;
}

/* Multiplications and additions of one row; 16-bit activations are two byte planes. */
static double ops_of(const PackedMatrix *m) {
    return 2.0 * (double)m->n_out * (double)m->n_in * (m->act == ACT_Q16 ? 2 : 1);
}

static void add_experts(CostWork *out, const CpuLayer *l) {
    if (!l->experts) return;
    const PackedMatrix *of_one[] = {&l->experts[0].gate, &l->experts[0].up, &l->experts[0].down};
    double bytes = expert_bytes(l, FORWARD_GATE_UP) + expert_bytes(l, FORWARD_DOWN);
    for (size_t k = 0; k < sizeof of_one / sizeof *of_one; k++)
        out->ops_per_row[peak_of(of_one[k]->act)] += ops_of(of_one[k]) * l->spec->n_expert_used;
    out->weight_bytes -= bytes;
    out->expert_bytes += bytes;
    out->expert_share = expert_share(l);
}

/* The heads' matrices of latent attention that belong to a kind of stage, all of one shape and type; their number, and one. */
static int64_t head_matrices(const CpuLayer *l, ForwardKind kind, const PackedMatrix **one) {
    if (!l->k_b || (kind != FORWARD_QKV && kind != FORWARD_O)) return 0;
    int64_t n = l->spec->latent.k_b->dims[2];
    *one = &l->k_b[kind == FORWARD_O ? n : 0];
    return n;
}

static double head_ops(const CpuLayer *l, PeakKind peak) {
    static const ForwardKind kinds_of_heads[] = {FORWARD_QKV, FORWARD_O};
    double ops = 0;
    for (int i = 0; i < 2; i++) {
        const PackedMatrix *one = NULL;
        int64_t n = head_matrices(l, kinds_of_heads[i], &one);
        if (n && peak_of(one->act) == peak) ops += ops_of(one) * (double)n;
    }
    return ops;
}

/* The recurrent state of a sequence. */
static double state_bytes(const Model *m) {
    const StateShape *d = &m->hparams.state;
    return (double)model_n_states(m) * d->n_heads * (double)d->head_floats * sizeof(float);
}

void cpu_work(const Weights *weights, KvType kv_type, CostWork *out) {
    const CpuWeights *w = (const CpuWeights *)weights;
    const Hparams *h = &weights->model->hparams;
    *out = (CostWork){.weight_bytes = (double)w->block_bytes};
    out->weight_bytes += 2 * state_bytes(weights->model); /* of a sequence: read by a forward, and moved on */
    out->kv_bytes_per_key = (h->latent.rank ? 1.0 : 2.0) * model_n_attention(weights->model) * h->n_head_kv *
                            (double)kv_row_bytes(kv_type, h->head_dim);
    double score_ops = h->head_dim * (kv_type == KV_Q8 ? 0.5 : 1.0); /* words, two to a lane */
    out->attention_ops = 2.0 * h->n_head * (score_ops + (double)hparams_value_dim(h)) *
                         model_n_attention(weights->model);
    out->window = model_window(weights->model);
    out->window_share = (double)model_n_mixers(weights->model, MIXER_WINDOW) /
                        fmax(1, model_n_attention(weights->model));
    out->ops_per_row[PEAK_F32] += 2 * state_bytes(weights->model); /* 8 for each of its floats */
    for (int32_t i = 0; i < h->n_layer; i++)
        for (int kind = 0; kind < N_KINDS + (i == 0); kind++) {
            const PackedMatrix *m = matrix_of(w, kind, i);
            out->ops_per_row[peak_of(m->act)] += ops_of(m);
        }
    for (int32_t i = 0; i < h->n_layer; i++)
        for (int peak = 0; peak < PEAK_COUNT; peak++) out->ops_per_row[peak] += head_ops(&w->layers[i], (PeakKind)peak);
    for (int32_t i = 0; i < h->n_layer; i++) add_experts(out, &w->layers[i]);
}

/* ---- parts ---------------------------------------------------------------------------------------- */

/* The matrices of a kind of stage, as indices into kinds. */
static const struct {
    const char *name;
    ForwardKind kind;
    int first, last;
} products[] = {{"attn_qkv", FORWARD_QKV, 0, 8},
                {"attn_output", FORWARD_O, 9, 9},
                {"ffn_gate_up", FORWARD_GATE_UP, 10, 12},
                {"ffn_down", FORWARD_DOWN, 13, 13},
                {"output", FORWARD_OUTPUT, N_KINDS, N_KINDS}};
enum { N_PRODUCTS = sizeof products / sizeof *products, PART_ATTENTION = N_PRODUCTS, PART_NORMS, N_PARTS };
_Static_assert((int)N_PARTS == CPU_N_PARTS && (int)CPU_N_PARTS <= (int)COST_PARTS_MAX, "the parts of a forward");

static double floor_of(const MachineSpeed *speed, double bytes, double ops, PeakKind peak) {
    double read_s = bytes / (speed->read_gb_s * 1e9), compute_s = ops / (speed->peak_gop_s[peak] * 1e9);
    return read_s > compute_s ? read_s : compute_s;
}

static void add_matrix(CostPart *p, const PackedMatrix *m, const MachineSpeed *speed, int32_t n_rows,
                       bool is_first_layer) {
    double bytes = (double)packed_bytes(m), ops = ops_of(m) * n_rows;
    if (m->n_out == 0) return;
    if (is_first_layer) p->n_out += m->n_out, p->n_in = m->n_in;
    p->bytes += bytes, p->ops += ops;
    p->floor_s += floor_of(speed, bytes, ops, peak_of(m->act));
}

/* Those of a layer that n_rows rows are expected to read. */
static void add_expert_matrices(CostPart *p, const CpuLayer *l, ForwardKind kind, const MachineSpeed *speed,
                                int32_t n_rows) {
    if (expert_bytes(l, kind) == 0) return;
    const CpuExpert *e = &l->experts[0];
    double bytes = expert_bytes(l, kind) * (1 - pow(1 - expert_share(l), n_rows));
    double ops = (kind == FORWARD_DOWN ? ops_of(&e->down) : ops_of(&e->gate) + ops_of(&e->up)) * n_rows *
                 l->spec->n_expert_used;
    p->bytes += bytes, p->ops += ops;
    p->floor_s += floor_of(speed, bytes, ops, peak_of(e->gate.act));
}

static void add_head_matrices(CostPart *p, const CpuLayer *l, ForwardKind kind, const MachineSpeed *speed,
                              int32_t n_rows) {
    const PackedMatrix *one = NULL;
    int64_t n = head_matrices(l, kind, &one);
    if (n == 0) return;
    double bytes = (double)packed_bytes(one) * (double)n, ops = ops_of(one) * (double)n * n_rows;
    p->bytes += bytes, p->ops += ops;
    p->floor_s += floor_of(speed, bytes, ops, peak_of(one->act));
}

static CostPart describe_product(const CpuWeights *w, int i, const MachineSpeed *speed, int32_t n_rows) {
    int32_t n = products[i].first == N_KINDS ? 1 : w->base.model->hparams.n_layer;
    CostPart p = {.name = products[i].name, .n_layers = n};
    for (int32_t layer = 0; layer < n; layer++) {
        for (int k = products[i].first; k <= products[i].last; k++)
            add_matrix(&p, matrix_of(w, k, layer), speed, n_rows, layer == 0);
        add_head_matrices(&p, &w->layers[layer], products[i].kind, speed, n_rows);
        add_expert_matrices(&p, &w->layers[layer], products[i].kind, speed, n_rows);
    }
    return p;
}

/* Keys and values of the context are read once a forward (rows share them); each row multiplies with all that it
 * sees. */
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
    for (int i = 0; i < N_PRODUCTS; i++) out[i] = describe_product(w, i, speed, n_rows);
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

enum { READS_PER_THREAD = 8 }; /* the others make up for a thread that lost its core for a while */

typedef struct Reading {
    const CpuWeights *w;
    uint32_t seen[THREADS_MAX * READS_PER_THREAD]; /* what read_loop returned: it means nothing */
} Reading;

static void read_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    Reading *r = ctx;
    for (int32_t layer = 0; layer < r->w->base.model->hparams.n_layer; layer++)
        for (int kind = 0; kind < N_KINDS + (layer == 0); kind++) {
            const PackedMatrix *m = matrix_of(r->w, kind, layer);
            int64_t begin, end;
            threads_split(packed_n_tiles(m) * (int64_t)m->tile_bytes / 256 * 256, 256, i_part, n_parts, &begin, &end);
            r->seen[i_part] += r->w->kernels->read_loop((const char *)m->data + begin, (size_t)(end - begin));
        }
}

int cpu_read_weights(Device *device, const Weights *w, double *seconds, fr_error *err) {
    (void)err;
    ThreadPool *pool = ((CpuDevice *)device)->threads;
    Reading r = {.w = (const CpuWeights *)w};
    for (int i = 0; i < 2; i++) {
        double start_s = clock_s();
        threads_run(pool, threads_count(pool) * READS_PER_THREAD, read_part, &r);
        double s = clock_s() - start_s;
        if (i == 0 || s < *seconds) *seconds = s; /* the first wakes the threads */
    }
    return FR_OK;
}

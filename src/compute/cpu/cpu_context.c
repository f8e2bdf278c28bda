/* cpu_context.c - the memory of a forward on the CPU: KV cache, activations, results. */
#include "compute/cpu/cpu_ops.h"

#include "base/mem.h"

#include <string.h>

/* The greatest sizes that any layer needs. */
typedef struct Widths {
    size_t act;                 /* bytes of an activation row */
    size_t places;              /* experts that one row uses; 0: there are none */
    size_t n_expert, ff;        /* ff: floats of all inner rows of feed-forward for one row */
    bool forms[ACT_FORM_COUNT]; /* the forms of activations that experts read */
    size_t head_act;            /* bytes of an activation row of one head of latent attention */
    size_t conv_kernels;        /* floats of the kernels of a BlockConv for one row */
    bool has_shared, gates_output;
} Widths;

static void widen_by_experts(Widths *w, const CpuLayer *l) {
    const PackedMatrix *gate = l->matrices[MATRIX_EXPERT_GATE];
    size_t used = (size_t)l->spec->n_expert_used;
    w->places = max_size(w->places, used);
    w->n_expert = max_size(w->n_expert, (size_t)layer_n_experts(l->spec));
    w->ff = max_size(w->ff, used * (size_t)gate->n_out);
    w->forms[gate->act] = w->forms[l->matrices[MATRIX_EXPERT_UP]->act] = true;
    w->has_shared = w->has_shared || l->matrices[MATRIX_SHARED_GATE];
}

static Widths find_widths(const CpuWeights *weights) {
    Widths w = {.act = act_row_bytes(weights->output.act, weights->output.n_in)};
    for (int32_t i = 0; i < weights->base.model->hparams.n_layer; i++) {
        const CpuLayer *l = &weights->layers[i];
        const PackedMatrix *dense = l->matrices[MATRIX_GATE], *shared = l->matrices[MATRIX_SHARED_GATE];
        for (int m = 0; m < LAYER_MATRICES; m++) { /* matrices of heads read c->head_acts */
            const PackedMatrix *p = layer_matrix_info[m].count == MATRIX_OF_HEADS ? NULL : l->matrices[m];
            if (p) w.act = max_size(w.act, act_row_bytes(p->act, p->n_in));
        }
        if (dense) w.ff = max_size(w.ff, (size_t)dense->n_out);
        w.ff = max_size(w.ff, (size_t)weights->base.model->hparams.n_ple);
        if (shared) w.ff = max_size(w.ff, (size_t)shared->n_out);
        w.gates_output = w.gates_output || l->spec->gates_output;
        const BlockConv *convs[] = {&l->spec->attn_conv, &l->spec->ffn_conv};
        for (int k = 0; k < 2; k++)
            w.conv_kernels = max_size(w.conv_kernels,
                                      (size_t)block_conv_kernels(convs[k], weights->base.model->hparams.n_embd));
        if (l->matrices[MATRIX_K_B]) w.head_act = max_size(w.head_act, latent_act_bytes(l));
        if (l->spec->ffn == FFN_EXPERTS) widen_by_experts(&w, l);
    }
    return w;
}

void *cpu_context_keep(CpuContext *c, void *p) {
    if (!p) return NULL;
    fr_assert(c->n_blocks < CONTEXT_BLOCKS);
    return c->blocks[c->n_blocks++] = p;
}

static int allocate_kv(CpuContext *c, KvGroup group, fr_error *err) {
    const Hparams *h = &c->model->hparams;
    int32_t n_window = model_n_mixers(c->model, MIXER_WINDOW);
    CpuKv *kv = &c->kv[group];
    int64_t n_heads = 0;
    if (c->options.reads) {
        *kv = ((const CpuContext *)c->options.reads)->kv[group];
        return FR_OK;
    }
    for (int32_t i = 0; i < h->n_layer; i++) {
        const LayerSpec *l = &c->model->layers[i];
        bool is_of_group = !layer_has_state(l) && kv_group_of(l) == group;
        if (is_of_group) n_heads = max_i64(n_heads, share_size(c->weights->layers[i].units));
    }
    *kv = (CpuKv){.type = c->options.kv_type,
                  .is_latent = h->latent.rank > 0,
                  .n_layer = group == KV_WINDOW ? n_window : model_n_attention(c->model) - n_window,
                  .n_head_kv = h->latent.rank ? 1 : (int32_t)n_heads,
                  .head_dim = kv_group_head_dim(c->model, group),
                  .n_slots = c->options.n_slots[group]};
    kv->slot_bytes = kv_row_bytes(c->options.kv_type, kv->head_dim);
    size_t bytes = kv->slot_bytes;
    bool fits = size_mul(bytes, (size_t)kv->n_slots, &bytes) && size_mul(bytes, (size_t)cpu_kv_n_planes(kv), &bytes);
    if (fits) kv->data = cpu_context_keep(c, mem_alloc(bytes ? bytes : 1));
    if (kv->data) return FR_OK;
    return error_set(err, FR_ERR_MEMORY,
                     "out of memory: the KV cache of %lld tokens needs %zu bytes; ask for a smaller context or "
                     "fewer sequences",
                     (long long)kv->n_slots, fits ? bytes : SIZE_MAX);
}

/* Allocates what a forward of the most rows needs, each array by itself: the system gives a large block real memory
 * only where a forward touches it. */
static int allocate(CpuContext *c, fr_error *err) {
    const Hparams *h = &c->model->hparams;
    size_t rows = (size_t)c->options.max_rows, q_dim = (size_t)hparams_q_dim(h), kv_dim = (size_t)hparams_kv_dim(h);
    const Widths w = find_widths(c->weights);
    size_t embd = (size_t)h->n_embd, places = rows * w.places, ff_rows = rows * max_size(w.places, 1),
           n_ops = (size_t)h->n_layer * OPS_PER_LAYER + OPS_AROUND;
    size_t group = (size_t)c->widest_group, n_threads = (size_t)threads_count(c->threads);
    size_t queries = (size_t)c->max_queries;
    size_t n_rounded = c->score_kernels ? rows * (size_t)h->n_head : 0;
    size_t n_blocks = c->score_kernels ? n_threads * (size_t)score_blocks(h->head_dim) : 0;
    size_t tile_heads = n_threads * (size_t)attn_n_tiles(c->options.n_ctx) * group;
    const struct {
        void *out;
        size_t n, each;
    } wants[] = {
        {&c->tokens, rows, sizeof *c->tokens},
        {&c->cos_sin, (size_t)c->model->n_ropes * rows * (size_t)hparams_max_rot(h), sizeof(float)},
        {&c->x, rows * embd, sizeof(float)},
        {&c->normed, rows * embd, sizeof(float)},
        {&c->conv_kernels, rows * w.conv_kernels, sizeof(float)},
        {&c->convolved, w.conv_kernels ? rows * embd : 0, sizeof(float)},
        {&c->q, rows * q_dim, sizeof(float)},
        {&c->q_gated, w.gates_output ? 2 * rows * q_dim : 0, sizeof(float)},
        {&c->k, rows * kv_dim, sizeof(float)},
        {&c->v, rows * kv_dim, sizeof(float)},
        {&c->attended, rows * q_dim, sizeof(float)},
        {&c->ple, rows * (size_t)(h->n_layer * (int64_t)h->n_ple), sizeof(float)},
        {&c->ple_acts, h->n_ple ? rows : 0, w.act},
        {&c->queries, rows * (size_t)latent_query_dim(h), sizeof(float)},
        {&c->q_latent, rows * (size_t)h->latent.q_rank, sizeof(float)},
        {&c->head_values, rows * (size_t)latent_values_dim(h), sizeof(float)},
        {&c->head_acts, rows * (size_t)h->n_head, w.head_act},
        {&c->gate, rows * w.ff, sizeof(float)},
        {&c->up, rows * w.ff, sizeof(float)},
        {&c->delta, rows * embd, sizeof(float)},
        {&c->scores, n_threads * queries * SCORE_STRIDE, sizeof(float)},
        {&c->softmax_sums, n_threads * 2 * queries, sizeof *c->softmax_sums},
        {&c->tile_sums, tile_heads * (size_t)hparams_value_dim(h), sizeof(float)},
        {&c->tile_softmax_sums, tile_heads, sizeof *c->tile_softmax_sums},
        {&c->key_floats, n_threads * KEYS_PACKED * (size_t)c->attention_dim, sizeof(float)},
        {&c->key_blocks, n_blocks, sizeof *c->key_blocks},
        {&c->rounded, n_rounded, rounded_query_bytes(h->head_dim)},
        {&c->row_sums, n_threads * queries * (size_t)c->attention_dim, sizeof(float)},
        {&c->row_groups, rows, sizeof *c->row_groups},
        {&c->ff_acts, ff_rows, w.act},
        {&c->router, rows * w.n_expert, sizeof(float)},
        {&c->choices, places, sizeof *c->choices},
        {&c->n_of_expert, w.n_expert, sizeof *c->n_of_expert},
        {&c->groups, w.n_expert, sizeof *c->groups},
        {&c->place_rows, places, sizeof *c->place_rows},
        {&c->place_weights, places, sizeof *c->place_weights},
        {&c->expert_out, places * embd, sizeof(float)},
        {&c->shared_weights, w.has_shared ? rows : 0, sizeof(float)},
        {&c->shared_out, w.has_shared ? rows * embd : 0, sizeof(float)},
        {&c->ops, n_ops, sizeof *c->ops},
        {&c->stages, n_ops, sizeof *c->stages},
        {&c->stage_s, n_ops, sizeof *c->stage_s},
    };
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        size_t bytes;
        if (wants[i].n == 0 || wants[i].each == 0) continue;
        void *p = size_mul(wants[i].n, wants[i].each, &bytes) ? cpu_context_keep(c, mem_alloc(bytes)) : NULL;
        if (!p)
            return error_set(err, FR_ERR_MEMORY, "out of memory: the forward of %d rows does not fit",
                             c->options.max_rows);
        memcpy(wants[i].out, &p, sizeof p);
    }
    for (int i = 0; i < ACT_FORM_COUNT; i++) {
        c->acts[i] = cpu_context_keep(c, mem_alloc(rows * w.act));
        if (w.forms[i]) c->expert_acts[i] = cpu_context_keep(c, mem_alloc(places * w.act));
        if (!c->acts[i] || (w.forms[i] && !c->expert_acts[i]))
            return error_memory(err, "activations", max_size(rows, places) * w.act);
    }
    return FR_OK;
}

int cpu_context_open(Context **out, Device *device, const Weights *weights, const ContextOptions *options,
                     fr_error *err) {
    *out = NULL;
    CpuContext *c = mem_calloc(1, sizeof *c);
    if (!c) return error_memory(err, "a context", sizeof *c);
    c->base = (Context){.weights = weights, .device = device};
    c->weights = (const CpuWeights *)weights;
    c->model = weights->model;
    c->kernels = c->weights->kernels;
    c->score_kernels = options->kv_type == KV_Q8 ? score_kernels_of(c->kernels) : NULL;
    c->threads = ((CpuDevice *)device)->threads;
    c->options = *options;
    const Hparams *h = &c->model->hparams;
    c->widest_group = attention_widest_group(c->model);
    int64_t group = c->widest_group, all = group * options->max_rows;
    c->attention_dim = h->head_dim > hparams_value_dim(h) ? h->head_dim : hparams_value_dim(h);
    c->max_queries = all < ATTN_QUERIES ? all : group > ATTN_QUERIES ? group : ATTN_QUERIES;
    int status = allocate_kv(c, KV_ALL, err);
    if (!status) status = allocate_kv(c, KV_WINDOW, err);
    if (!status) status = allocate(c, err);
    if (!status) status = cpu_states_open(c, err);
    if (!status) status = cpu_keep_layers(&c->base, &(KeptLayers){0}, err);
    if (status) {
        cpu_context_close(&c->base);
        return status;
    }
    *out = &c->base;
    return FR_OK;
}

void cpu_context_close(Context *context) {
    CpuContext *c = (CpuContext *)context;
    for (int i = 0; i < c->n_blocks; i++) mem_free(c->blocks[i]);
    mem_free(c->logits);
    mem_free(c->hidden);
    state_walk_close(&c->states.walk);
    mem_free(c);
}

int cpu_reserve_logits(Context *context, int32_t n, fr_error *err) {
    CpuContext *c = (CpuContext *)context;
    return backend_reserve_logits(&c->logits, &c->max_logits, c->model->hparams.n_vocab, n, err);
}

int cpu_keep_layers(Context *context, const KeptLayers *layers, fr_error *err) {
    CpuContext *c = (CpuContext *)context;
    return backend_keep_layers(context, &c->hidden, c->options.max_rows, layers, err);
}

const float *cpu_read(Context *context, ResultKind kind, int32_t i) {
    const CpuContext *c = (const CpuContext *)context;
    const Hparams *h = &c->model->hparams;
    return kind == RESULT_LOGITS ? c->logits + row_at(i, h->n_vocab)
                                 : c->hidden + row_at(i, context_hidden_width(context));
}

/* ---- slots ---------------------------------------------------------------------------------------- */

void cpu_copy_slots(Context *c, KvGroup group, int32_t from, int32_t to, int32_t n) {
    const CpuKv *kv = &((CpuContext *)c)->kv[group];
    for (int64_t i = 0; i < cpu_kv_n_planes(kv); i++) {
        char *p = cpu_kv_plane(kv, i);
        memmove(p + (size_t)to * kv->slot_bytes, p + (size_t)from * kv->slot_bytes, (size_t)n * kv->slot_bytes);
    }
}

/* Fills a slot with random numbers from -1 to 1, the same in all planes. */
void cpu_fill_slot(Context *context, KvGroup group, int32_t slot) {
    const CpuContext *c = (const CpuContext *)context;
    const CpuKv *kv = &c->kv[group];
    int64_t dim = kv->head_dim, n_planes = cpu_kv_n_planes(kv);
    size_t at = (size_t)slot * kv->slot_bytes;
    uint32_t bits = (uint32_t)slot + 1;
    for (int64_t i = 0; i < dim && n_planes; i += KV_BLOCK) {
        float x[KV_BLOCK];
        for (int k = 0; k < KV_BLOCK; k++) {
            bits = bits * 1664525u + 1013904223u;
            x[k] = (float)(bits >> 8) * 0x1p-23f - 1;
        }
        c->kernels->kv_store(kv->type, x, dim - i < KV_BLOCK ? dim - i : KV_BLOCK,
                             cpu_kv_plane(kv, 0) + at + kv_row_bytes(kv->type, i));
    }
    for (int64_t i = 1; i < n_planes; i++) memcpy(cpu_kv_plane(kv, i) + at, cpu_kv_plane(kv, 0) + at, kv->slot_bytes);
}

size_t cpu_slot_bytes(const Context *c, KvGroup group) {
    const CpuKv *kv = &((const CpuContext *)c)->kv[group];
    return (size_t)cpu_kv_n_planes(kv) * kv->slot_bytes;
}

void cpu_read_slot(Context *c, KvGroup group, int32_t slot, void *out) {
    const CpuKv *kv = &((CpuContext *)c)->kv[group];
    for (int64_t i = 0; i < cpu_kv_n_planes(kv); i++)
        memcpy((char *)out + (size_t)i * kv->slot_bytes, cpu_kv_plane(kv, i) + (size_t)slot * kv->slot_bytes,
               kv->slot_bytes);
}

void cpu_write_slot(Context *c, KvGroup group, int32_t slot, const void *bytes) {
    const CpuKv *kv = &((CpuContext *)c)->kv[group];
    for (int64_t i = 0; i < cpu_kv_n_planes(kv); i++)
        memcpy(cpu_kv_plane(kv, i) + (size_t)slot * kv->slot_bytes, (const char *)bytes + (size_t)i * kv->slot_bytes,
               kv->slot_bytes);
}

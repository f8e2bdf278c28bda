/* reference_backend.c - the reference backend: its weights, which are the file itself, the memory of a forward, and its
 * table. */
#include "compute/reference/reference.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <string.h>

/* Returns the bytes of all matrices of the layers and of the LM head. */
static size_t matrix_bytes(const Model *m) {
    size_t bytes = m->output->bytes;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) {
        const GgufTensor *const *matrices = m->layers[i].matrices;
        for (int k = 0; k < LAYER_MATRICES; k++) bytes += matrices[k] ? matrices[k]->bytes : 0;
    }
    return bytes;
}

/* Refuses a model whose rows choose more experts than the list of chosen ones has room for. */
static int check_experts(const Model *m, fr_error *err) {
    for (int32_t i = 0; i < m->hparams.n_layer; i++) {
        const LayerSpec *l = &m->layers[i];
        if (l->ffn != FFN_EXPERTS) continue;
        int64_t n = layer_n_experts(l), most = n < MODEL_MAX_EXPERTS_USED ? n : MODEL_MAX_EXPERTS_USED;
        if (l->n_expert_used < 1 || l->n_expert_used > most)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: layer %d uses %d of %lld experts at once, but 1 to %lld are possible",
                             gguf_path(m->gguf), i, l->n_expert_used, (long long)n, (long long)most);
    }
    return FR_OK;
}

static int check_finite(const Model *m, const GgufTensor *t, fr_error *err) {
    if (!t || finite_weights(t->type, t->data, t->dims[0] * t->dims[1] * t->dims[2])) return FR_OK;
    return model_refuse_not_finite(m, t, err);
}

static int check_weights(const Model *m, fr_error *err) {
    int status = check_finite(m, m->token_embd, err);
    if (!status) status = check_finite(m, m->output, err);
    if (!status) status = check_finite(m, m->ple_table, err);
    for (int32_t i = 0; i < m->hparams.n_layer; i++)
        for (int k = 0; k < LAYER_MATRICES && !status; k++) status = check_finite(m, m->layers[i].matrices[k], err);
    return status;
}

static int open_weights(Weights **out, const Model *model, const WeightsOptions *options, fr_error *err) {
    *out = NULL;
    int status = check_experts(model, err);
    if (status) return status;
    *out = mem_calloc(1, sizeof **out);
    if (!*out) return error_memory(err, "the weights", sizeof **out);
    **out = (Weights){.backend = &backend_reference, .model = model, .options = *options, .bytes = matrix_bytes(model)};
    (*out)->options.kernels = "double";
    if ((status = gguf_check(model->gguf, err))) {
        mem_free(*out);
        *out = NULL;
    }
    return status;
}

static int weights_open(Weights **out, const Model *model, const WeightsOptions *options, fr_error *err) {
    int status = check_weights(model, err);
    return status ? status : open_weights(out, model, options, err);
}

/* drafter_tensors.c has checked its layers, and the target's tensors were checked when it was opened. */
static int submodel(Weights **out, const Weights *target, const Model *layers, bool is_divided, fr_error *err) {
    (void)is_divided;
    return open_weights(out, layers, &target->options, err);
}

static void close_weights(Weights *w) { mem_free(w); }

static const char *const *kernel_names(void) {
    static const char *const names[] = {"double", NULL};
    return names;
}

static int device_open(Device **out, const DeviceOptions *options, fr_error *err) {
    (void)options;
    *out = mem_calloc(1, sizeof **out);
    if (!*out) return error_memory(err, "a device", sizeof **out);
    **out = (Device){.backend = &backend_reference, .n_threads = 1, .rows = &row_kernels_plain};
    return FR_OK;
}

static void close_device(Device *d) { mem_free(d); }

static void run_parts(Device *d, int n_parts, PartFn fn, void *ctx) {
    (void)d;
    for (int i = 0; i < n_parts; i++) fn(ctx, i, n_parts, 0);
}

/* ---- a context -------------------------------------------------------------------------------------- */

/* Finds the most experts and the most kernels of a convolution of any layer, and the longest row of any matrix. */
static void measure(const Model *m, int64_t *n_expert, int64_t *n_kernels, int64_t *widest) {
    const Hparams *h = &m->hparams;
    *n_expert = 1, *n_kernels = 0;
    *widest = max_i64(max_i64(model_input_width(m), hparams_max_ff(h)), max_i64(hparams_q_dim(h), h->state.n_values));
    *widest = max_i64(*widest, (int64_t)h->n_layer * h->n_ple);
    *widest = max_i64(*widest, max_i64(h->latent.q_rank, max_i64(h->latent.plain_dim, latent_values_dim(h))));
    for (int32_t i = 0; i < h->n_layer; i++) {
        const LayerSpec *l = &m->layers[i];
        *n_expert = max_i64(*n_expert, layer_n_experts(l));
        *n_kernels = max_i64(*n_kernels, max_i64(block_conv_kernels(&l->attn_conv, h->n_embd),
                                                 block_conv_kernels(&l->ffn_conv, h->n_embd)));
    }
}

static int allocate(RefContext *c, fr_error *err) {
    const Hparams *h = &c->model->hparams;
    int64_t rows = c->options.max_rows, q_dim = hparams_q_dim(h), kv_dim = hparams_kv_dim(h), n_expert, n_kernels,
            widest;
    measure(c->model, &n_expert, &n_kernels, &widest);
    const struct {
        void *out;
        int64_t n;
        size_t each;
    } wants[] = {
        {&c->kv[KV_ALL], reference_n_planes(c, KV_ALL) * (int64_t)c->options.n_slots[KV_ALL] * kv_dim, sizeof(double)},
        {&c->kv[KV_WINDOW], reference_n_planes(c, KV_WINDOW) * (int64_t)c->options.n_slots[KV_WINDOW] * kv_dim,
         sizeof(double)},
        {&c->x, rows * h->n_embd, sizeof(double)},
        {&c->normed, rows * model_input_width(c->model), sizeof(double)},
        {&c->embedded, h->n_ple ? rows * h->n_embd : 0, sizeof(double)},
        {&c->q, 2 * rows * q_dim,
         sizeof(double)}, /* twice the rows, because gates are among the queries until they are separated */
        {&c->output_gates, rows * q_dim, sizeof(double)},
        {&c->attended, rows * max_i64(q_dim, h->state.n_values), sizeof(double)},
        {&c->k, rows * kv_dim, sizeof(double)},
        {&c->v, rows * kv_dim, sizeof(double)},
        {&c->queries, rows * latent_query_dim(h), sizeof(double)},
        {&c->q_latent, rows * h->latent.q_rank, sizeof(double)},
        {&c->head_values, rows * latent_values_dim(h), sizeof(double)},
        {&c->gate, max_i64(rows * hparams_max_ff(h), h->n_vocab), sizeof(double)},
        {&c->up, rows * hparams_max_ff(h), sizeof(double)},
        {&c->delta, rows * h->n_embd, sizeof(double)},
        {&c->conv_kernels, rows * n_kernels, sizeof(double)},
        {&c->scores, c->options.n_ctx, sizeof(double)},
        {&c->experts, n_expert, sizeof(double)},
        {&c->expert_in, h->n_embd, sizeof(double)},
        {&c->expert_out, h->n_embd, sizeof(double)},
        {&c->shared_input, h->n_embd, sizeof(double)},
        {&c->weight_row, widest, sizeof(float)},
    };
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        size_t bytes;
        void *p = size_mul((size_t)wants[i].n, wants[i].each, &bytes) ? mem_alloc(bytes ? bytes : 1) : NULL;
        if (!p) return error_memory(err, "a context of the reference backend", bytes);
        memcpy(wants[i].out, &p, sizeof p);
    }
    int status = backend_keep_layers(&c->base, &c->hidden, c->options.max_rows, &(KeptLayers){0}, err);
    return status ? status : reference_states_open(c, err);
}

static void context_close(Context *context) {
    RefContext *c = (RefContext *)context;
    reference_states_close(c);
    void *const all[] = {c->output_gates,
                         c->kv[KV_ALL],
                         c->kv[KV_WINDOW],
                         c->x,
                         c->normed,
                         c->embedded,
                         c->q,
                         c->attended,
                         c->k,
                         c->v,
                         c->gate,
                         c->up,
                         c->delta,
                         c->conv_kernels,
                         c->scores,
                         c->experts,
                         c->expert_in,
                         c->expert_out,
                         c->shared_input,
                         c->weight_row,
                         c->logits,
                         c->hidden,
                         c->queries,
                         c->q_latent,
                         c->head_values};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    mem_free(c);
}

static int context_open(Context **out, Device *d, const Weights *w, const ContextOptions *options, fr_error *err) {
    *out = NULL;
    RefContext *c = mem_calloc(1, sizeof *c);
    if (!c) return error_memory(err, "a context", sizeof *c);
    c->base = (Context){.weights = w, .device = d};
    c->model = w->model;
    c->options = *options;
    int status = allocate(c, err);
    if (status) {
        context_close(&c->base);
        return status;
    }
    *out = &c->base;
    return FR_OK;
}

static int reserve_logits(Context *context, int32_t n, fr_error *err) {
    RefContext *c = (RefContext *)context;
    return backend_reserve_logits(&c->logits, &c->max_logits, c->model->hparams.n_vocab, n, err);
}

static int keep_layers(Context *context, const KeptLayers *layers, fr_error *err) {
    RefContext *c = (RefContext *)context;
    return backend_keep_layers(context, &c->hidden, c->options.max_rows, layers, err);
}

static const float *read_result(Context *context, ResultKind kind, int32_t i) {
    const RefContext *c = (const RefContext *)context;
    const Hparams *h = &c->model->hparams;
    return kind == RESULT_LOGITS ? c->logits + (int64_t)i * h->n_vocab : c->hidden + i * context_hidden_width(context);
}

static void copy_slots(Context *context, KvGroup group, int32_t from, int32_t to, int32_t n) {
    const RefContext *c = (const RefContext *)context;
    int64_t kv_dim = hparams_kv_dim(&c->model->hparams);
    for (int32_t i = 0; i < reference_n_planes(c, group); i++) {
        double *slots = c->kv[group] + i * (int64_t)c->options.n_slots[group] * kv_dim;
        memmove(slots + to * kv_dim, slots + from * kv_dim, (size_t)(n * kv_dim) * sizeof *slots);
    }
}

static void fill_slot(Context *context, KvGroup group, int32_t slot) {
    const RefContext *c = (const RefContext *)context;
    int64_t kv_dim = hparams_kv_dim(&c->model->hparams);
    for (int32_t i = 0; i < reference_n_planes(c, group); i++)
        for (int64_t k = 0; k < kv_dim; k++)
            c->kv[group][((int64_t)i * c->options.n_slots[group] + slot) * kv_dim + k] = 1;
}

static size_t slot_bytes(const Context *context, KvGroup group) {
    const RefContext *c = (const RefContext *)context;
    return (size_t)reference_n_planes(c, group) * (size_t)hparams_kv_dim(&c->model->hparams) * sizeof(double);
}

static double *plane_slot(const RefContext *c, KvGroup group, int32_t plane, int32_t slot) {
    return c->kv[group] + ((int64_t)plane * c->options.n_slots[group] + slot) * hparams_kv_dim(&c->model->hparams);
}

static void read_slot(Context *context, KvGroup group, int32_t slot, void *out) {
    const RefContext *c = (const RefContext *)context;
    size_t n = (size_t)hparams_kv_dim(&c->model->hparams) * sizeof(double);
    for (int32_t i = 0; i < reference_n_planes(c, group); i++)
        memcpy((char *)out + (size_t)i * n, plane_slot(c, group, i, slot), n);
}

static void write_slot(Context *context, KvGroup group, int32_t slot, const void *bytes) {
    const RefContext *c = (const RefContext *)context;
    size_t n = (size_t)hparams_kv_dim(&c->model->hparams) * sizeof(double);
    for (int32_t i = 0; i < reference_n_planes(c, group); i++)
        memcpy(plane_slot(c, group, i, slot), (const char *)bytes + (size_t)i * n, n);
}

/* ---- measurements ----------------------------------------------------------------------------------- */

/* Counts experts as if every row read all of them. */
static void work(const Weights *w, KvType kv_type, CostWork *out) {
    (void)kv_type;
    const Hparams *h = &w->model->hparams;
    *out = (CostWork){.weight_bytes = (double)w->bytes, .window = model_window(w->model)};
    double windows = 0; /* what the layers with a window read for a token */
    for (int32_t i = 0; i < h->n_layer; i++) {
        const LayerSpec *l = &w->model->layers[i];
        double bytes = (h->latent.rank ? 1.0 : 2.0) * (double)hparams_kv_dim(h) * sizeof(double);
        if (layer_has_state(l)) continue;
        out->kv_bytes_per_key += bytes, windows += l->mixer == MIXER_WINDOW ? bytes : 0;
        out->attention_ops += 4.0 * (double)layer_q_dim(h, l);
        if (!l->shares_kv) out->kept_bytes[kv_group_of(l)] += bytes;
    }
    out->window_share = windows > 0 ? windows / out->kv_bytes_per_key : 0;
}

static int parts(const Weights *w, KvType kv_type, const MachineSpeed *speed, int32_t n_rows, int32_t n_context,
                 CostPart *out) {
    (void)w, (void)kv_type, (void)speed, (void)n_rows, (void)n_context, (void)out;
    return 0;
}

static void time_parts(Context *c, double *seconds) { (void)c, (void)seconds; }

const Backend backend_reference = {
    .name = "reference",
    .summary = "plain C in double precision, one thread: slow, to hold others against",
    .reads_file = true,
    .computes_exactly = true,
    .weights_open = weights_open,
    .submodel = submodel,
    .weights_close = close_weights,
    .kernel_names = kernel_names,
    .device_open = device_open,
    .device_close = close_device,
    .run_parts = run_parts,
    .context_open = context_open,
    .context_close = context_close,
    .forward = reference_forward,
    .read = read_result,
    .reserve_logits = reserve_logits,
    .keep_layers = keep_layers,
    .advance_states = reference_advance_states,
    .copy_slots = copy_slots,
    .fill_slot = fill_slot,
    .slot_bytes = slot_bytes,
    .read_slot = read_slot,
    .write_slot = write_slot,
    .state_bytes = reference_state_bytes,
    .read_state = reference_read_state,
    .write_state = reference_write_state,
    .buffer_open = reference_buffer_open,
    .buffer_close = reference_buffer_close,
    .buffer_push = reference_buffer_push,
    .buffer_pull = reference_buffer_pull,
    .linear_open = reference_linear_open,
    .linear_close = reference_linear_close,
    .linear = reference_linear,
    .head_reserve = reference_head_reserve,
    .head = reference_head,
    .embed = reference_embed,
    .softmax = reference_softmax,
    .rmsnorm = reference_rmsnorm_rows,
    .lookup_open = reference_lookup_open,
    .lookup_close = reference_lookup_close,
    .lookup_store = reference_lookup_store,
    .lookup_add = reference_lookup_add,
    .work = work,
    .parts = parts,
    .time_parts = time_parts,
    .sum_inputs = reference_sum_inputs,
};

/* reference_backend.c - the table of the reference backend, and its weights: the file itself. */
#include "compute/reference/reference_backend.h"

#include "compute/reference/reference.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <string.h>

/* Bytes of all matrices of the layers, and of the LM head. */
static size_t matrix_bytes(const Model *m) {
    size_t bytes = m->output->bytes;
    for (int32_t i = 0; i < m->hparams.n_layer; i++) {
        const GgufTensor *const *matrices = m->layers[i].matrices;
        for (int k = 0; k < LAYER_MATRICES; k++) bytes += matrices[k] ? matrices[k]->bytes : 0;
    }
    return bytes;
}

/* The choice among experts keeps a list of this length. */
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
    for (int32_t i = 0; i < m->hparams.n_layer && !status; i++) {
        for (int k = 0; k < LAYER_MATRICES && !status; k++) status = check_finite(m, m->layers[i].matrices[k], err);
    }
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

/* drafter_file.c has checked its layers, and the target's tensors were checked when it was opened. */
static int submodel(Weights **out, const Weights *target, const Model *layers, fr_error *err) {
    return open_weights(out, layers, &target->options, err);
}

static void close_weights(Weights *w) { mem_free(w); }

static const char *const *kernel_names(void) {
    static const char *const names[] = {"double", NULL};
    return names;
}

static void embed(const Weights *w, const int32_t *tokens, int32_t n, float *out) {
    for (int32_t i = 0; i < n; i++) model_embedding(w->model, tokens[i], out + (int64_t)i * w->model->hparams.n_embd);
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

/* ---- measurements: the work as the file has it, in one part --------------------------------------------- */

static void work(const Weights *w, KvType kv_type, CostWork *out) {
    (void)kv_type;
    const Hparams *h = &w->model->hparams;
    *out = (CostWork){.weight_bytes = (double)w->bytes,
                      .kv_bytes_per_key = 2.0 * model_n_attention(w->model) * (double)hparams_kv_dim(h) *
                                          sizeof(double),
                      .attention_ops = 4.0 * (double)hparams_q_dim(h) * model_n_attention(w->model),
                      .window = model_window(w->model),
                      .window_share = (double)model_n_mixers(w->model, MIXER_WINDOW) /
                                      (model_n_attention(w->model) ? model_n_attention(w->model) : 1)};
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
    .embed = embed,
    .device_open = device_open,
    .device_close = close_device,
    .run_parts = run_parts,
    .context_open = reference_context_open,
    .context_close = reference_context_close,
    .forward = reference_forward,
    .read = reference_read,
    .reserve_logits = reference_reserve_logits,
    .advance_states = reference_advance_states,
    .copy_slots = reference_copy_slots,
    .fill_slot = reference_fill_slot,
    .linear_open = reference_linear_open,
    .linear_close = reference_linear_close,
    .linear = reference_linear,
    .head_reserve = reference_head_reserve,
    .head = reference_head,
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

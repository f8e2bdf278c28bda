/* frozen.c - computes the target's hidden states with the inference code, so that a drafter is trained on the very
 * numbers that it reads when it drafts, and holds the target's embedding and output matrix as floats. */
#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "train/drafter_trainer.h"

#include <string.h>

enum { MAX_ROWS = 512, PAGE_SIZE = 16 };

/* Returns the matrix as floats. */
static float *read_matrix(const GgufTensor *t, fr_error *err) {
    size_t n = (size_t)(t->dims[0] * t->dims[1]);
    float *out = mem_alloc(n * sizeof *out);
    if (out) blocks_dequantize(t->type, t->data, (int64_t)n, out);
    else error_memory(err, t->name, n * sizeof *out);
    return out;
}

/* The factor of the target's logits becomes a part of the matrix, as drafters get it (Backend.head). */
static void scale_head(FrozenTarget *f) {
    const Hparams *h = &f->model->hparams;
    for (int64_t i = 0; i < (int64_t)h->n_embd * h->n_vocab; i++) f->head[i] *= h->logit_scale;
}

static int open_all(FrozenTarget *f, const Gguf *g, int32_t max_length, int n_threads, fr_error *err) {
    *f = (FrozenTarget){.max_length = max_length};
    const Backend *backend;
    int status = backend_find(NULL, &backend, err);
    if (!status) status = model_open(&f->model, g, err);
    if (!status) status = backend->weights_open(&f->weights, f->model, &(WeightsOptions){.n_threads = n_threads}, err);
    if (!status) status = backend->device_open(&f->device, &(DeviceOptions){.n_threads = n_threads}, err);
    if (status) return status;
    if (f->model->output_bias)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: drafters cannot be trained for a target with output.bias",
                         gguf_path(g));
    const ExecutorOptions executor = {.page_size = PAGE_SIZE,
                                      .n_ctx = max_length,
                                      .max_sequences = 1,
                                      .max_rows = max_length < MAX_ROWS ? max_length : MAX_ROWS};
    status = executor_open(&f->executor, f->device, f->weights, &executor, err);
    if (status) return status;
    const GgufTensor *head = gguf_find_tensor(g, "output.weight");
    bool is_scaled = f->model->hparams.logit_scale != 1; /* then the head is another matrix than the embedding */
    f->embd = read_matrix(f->model->token_embd, err);
    f->head = !f->embd || (!head && !is_scaled) ? f->embd : read_matrix(f->model->output, err);
    if (f->head && is_scaled) scale_head(f);
    return f->embd && f->head ? FR_OK : FR_ERR_MEMORY;
}

int frozen_open(FrozenTarget *f, const Gguf *g, int32_t max_length, int n_threads, fr_error *err) {
    int status = open_all(f, g, max_length, n_threads, err);
    if (status) frozen_close(f);
    return status;
}

void frozen_close(FrozenTarget *f) {
    executor_close(f->executor);
    device_close(f->device);
    weights_close(f->weights);
    model_close(f->model);
    if (f->head != f->embd) mem_free(f->head);
    mem_free(f->embd);
    arena_free(&f->arena);
    *f = (FrozenTarget){0};
}

int frozen_keep_layers(FrozenTarget *f, const KeptLayers *layers, fr_error *err) {
    f->n_streams = layers->n;
    return executor_keep_layers(f->executor, layers, err);
}

/* Runs the next n tokens of the sequence, at most MAX_ROWS. */
static int read_rows(FrozenTarget *f, int32_t sequence, const int32_t *tokens, int32_t n, float *hidden, float *streams,
                     fr_error *err) {
    Row rows[MAX_ROWS];
    int32_t chain[MAX_ROWS];
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (Row){.token = tokens[i], .sequence = sequence, .parent = i - 1, .want_hidden = true};
        chain[i] = i;
    }
    int status = executor_reserve(f->executor, sequence, n, err);
    if (!status) status = executor_forward(f->executor, rows, n, err);
    if (status) return status;
    size_t width = (size_t)f->model->hparams.n_embd, of_streams = (size_t)f->n_streams * width;
    for (int32_t i = 0; i < n; i++) {
        const float *from = executor_hidden(f->executor, i);
        memcpy(hidden + (size_t)i * width, from, width * sizeof *hidden);
        if (streams) memcpy(streams + (size_t)i * of_streams, from + width, of_streams * sizeof *streams);
    }
    executor_commit(f->executor, sequence, chain, n);
    return FR_OK;
}

int frozen_read(FrozenTarget *f, const int32_t *tokens, int32_t n, float *hidden, float *streams, fr_error *err) {
    int32_t sequence, step = executor_max_rows(f->executor);
    int64_t width = f->model->hparams.n_embd;
    int status = executor_sequence_open(f->executor, &sequence, err);
    if (status) return status;
    for (int32_t i = 0; i < n && !status; i += step)
        status = read_rows(f, sequence, tokens + i, n - i < step ? n - i : step, hidden + i * width,
                           streams ? streams + i * width * f->n_streams : NULL, err);
    executor_sequence_close(f->executor, sequence);
    return status;
}

/* The layers of a frozen target as floats, for a drafter that is trained through them (mask_rows.c). */

/* Does mask_rows.c compute this layer? */
static bool is_plain(const LayerSpec *l) {
    return l->mixer == MIXER_ATTENTION && l->soft_cap == 0 && !l->q_norm && !l->k_norm && !l->sinks && !l->o_bias &&
           !l->post_attn_norm && !l->post_ffn_norm && !l->gates_output && l->attn_scale == 0 &&
           (l->residual_scale == 0 || l->residual_scale == 1) && l->activation == ACTIVATION_SILU &&
           l->ffn == FFN_DENSE && l->i_rope == 0 && !l->gate_bias && !l->up_bias && !l->down_bias && !l->n_head &&
           !l->n_head_kv;
}

static int load_matrix(FrozenTarget *f, const LayerSpec *l, LayerMatrix m, const float **out, fr_error *err) {
    const GgufTensor *t = l->matrices[m];
    int64_t n = t->dims[0] * t->dims[1];
    float *values;
    int status = arena_take(&f->arena, (const ArenaItem[]){ARENA_ITEM(&values, n)}, 1, t->name, err);
    if (status) return status;
    blocks_dequantize(t->type, t->data, n, values);
    float scale = layer_matrix_scale(l, m, 0);
    for (int64_t i = 0; i < n; i++) values[i] *= scale;
    *out = values;
    return FR_OK;
}

static int load_layer(FrozenTarget *f, const LayerSpec *l, MaskLayer *out, fr_error *err) {
    *out = (MaskLayer){.attn_norm = l->attn_norm,
                       .q_bias = l->q_bias,
                       .k_bias = l->k_bias,
                       .v_bias = l->v_bias,
                       .ffn_norm = l->ffn_norm};
    static const LayerMatrix from[] = {MATRIX_Q, MATRIX_K, MATRIX_V, MATRIX_O, MATRIX_GATE, MATRIX_UP, MATRIX_DOWN};
    const float **const to[] = {&out->q, &out->k, &out->v, &out->o, &out->gate, &out->up, &out->down};
    int status = FR_OK;
    for (size_t i = 0; i < sizeof from / sizeof *from && !status; i++) status = load_matrix(f, l, from[i], to[i], err);
    return status;
}

int frozen_load_layers(FrozenTarget *f, MaskTarget *out, fr_error *err) {
    const Model *m = f->model;
    const Hparams *h = &m->hparams;
    for (int32_t i = 0; i < h->n_layer; i++)
        if (!is_plain(&m->layers[i]) || h->embedding_scale != 1)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: masks can be trained for targets of the architectures llama and qwen2 only; train "
                             "another drafter, such as lyanna",
                             gguf_path(m->gguf));
    int status = arena_take(&f->arena, (const ArenaItem[]){ARENA_ITEM(&f->layers, h->n_layer)}, 1, "a target's layers",
                            err);
    for (int32_t i = 0; i < h->n_layer && !status; i++) status = load_layer(f, &m->layers[i], &f->layers[i], err);
    *out = (MaskTarget){.C = h->n_embd,
                        .n_ff = h->n_ff,
                        .n_head = h->n_head,
                        .n_head_kv = h->n_head_kv,
                        .head_dim = h->head_dim,
                        .n_layer = h->n_layer,
                        .rms_eps = h->rms_eps,
                        .rope = &m->ropes[0],
                        .layers = f->layers,
                        .output_norm = m->output_norm};
    return status;
}

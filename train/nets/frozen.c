/* frozen.c - computes the target's hidden states with the inference code, so that a drafter is trained on the very
 * numbers that it reads when it drafts, and holds the target's embedding and output matrix as floats. */
#include "train/nets/frozen.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <string.h>

enum { MAX_ROWS = 512, PAGE_SIZE = 16 };

/* The matrix as floats. */
static float *read_matrix(const GgufTensor *t, fr_error *err) {
    size_t n = (size_t)(t->dims[0] * t->dims[1]);
    float *out = mem_alloc(n * sizeof *out);
    if (out) blocks_dequantize(t->type, t->data, (int64_t)n, out);
    else error_memory(err, t->name, n * sizeof *out);
    return out;
}

/* What the target multiplies its logits by becomes a part of the matrix, as drafters get them (Backend.head). */
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

/* Runs the next n tokens of the sequence, at most MAX_ROWS. */
static int read_rows(FrozenTarget *f, int32_t sequence, const int32_t *tokens, int32_t n, float *hidden,
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
    size_t width = (size_t)f->model->hparams.n_embd;
    for (int32_t i = 0; i < n; i++)
        memcpy(hidden + (size_t)i * width, executor_hidden(f->executor, i), width * sizeof *hidden);
    executor_commit(f->executor, sequence, chain, n);
    return FR_OK;
}

int frozen_read(FrozenTarget *f, const int32_t *tokens, int32_t n, float *hidden, fr_error *err) {
    int32_t sequence, step = executor_max_rows(f->executor);
    int status = executor_sequence_open(f->executor, &sequence, err);
    if (status) return status;
    for (int32_t i = 0; i < n && !status; i += step)
        status = read_rows(f, sequence, tokens + i, n - i < step ? n - i : step,
                           hidden + (int64_t)i * f->model->hparams.n_embd, err);
    executor_sequence_close(f->executor, sequence);
    return status;
}

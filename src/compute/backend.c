/* backend.c - the list of backends, and what all of them share. */
#include "compute/backend.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define BACKENDS(X) X(cpu) X(reference)
#define X(name) &backend_##name,
static const Backend *const all[] = {BACKENDS(X) NULL};
#undef X
#define X(name) #name,
const char *const backend_names[] = {BACKENDS(X) NULL};
#undef X

const Backend *const *backends(void) { return all; }

int backend_find(const char *name, const Backend **out, fr_error *err) {
    for (const Backend *const *b = all; *b; b++)
        if (!name || strcmp(name, (*b)->name) == 0) {
            *out = *b;
            return FR_OK;
        }
    char names[100] = "";
    for (int i = 0; backend_names[i]; i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? " or " : "", backend_names[i]);
    }
    return error_set(err, FR_ERR_ARGUMENT, "there is no backend '%.40s'; choose %s", name, names);
}

const char *weights_activations(const Weights *w) {
    return w->backend->computes_exactly ? "exact" : act_precision_name(w->options.activations);
}

int32_t kv_group_head_dim(const Model *m, KvGroup group) {
    for (int32_t i = 0; i < m->hparams.n_layer; i++)
        if (!layer_has_state(&m->layers[i]) && kv_group_of(&m->layers[i]) == group)
            return layer_head_dim(&m->hparams, &m->layers[i]);
    return m->hparams.head_dim;
}

int backend_reserve_logits(float **logits, int32_t *max_logits, int64_t n_vocab, int32_t n, fr_error *err) {
    size_t bytes = SIZE_MAX;
    if (n <= *max_logits) return FR_OK;
    float *wider = size_mul((size_t)n * sizeof *wider, (size_t)n_vocab, &bytes) ? mem_alloc(bytes) : NULL;
    if (!wider) return error_memory(err, "the logits of a forward", bytes);
    mem_free(*logits);
    *logits = wider;
    *max_logits = n;
    return FR_OK;
}

int32_t kept_layers_add(KeptLayers *k, int32_t after) {
    for (int32_t i = 0; i < k->n; i++)
        if (k->after[i] == after) return i;
    if (k->n == MAX_KEPT_LAYERS) return -1;
    k->after[k->n] = after;
    return k->n++;
}

int backend_keep_layers(Context *c, float **hidden, int32_t max_rows, const KeptLayers *layers, fr_error *err) {
    size_t bytes = (size_t)c->weights->model->hparams.n_embd * (1 + (size_t)layers->n) * sizeof **hidden;
    float *wider = size_mul(bytes, (size_t)max_rows, &bytes) ? mem_alloc(bytes) : NULL;
    if (!wider) return error_memory(err, "the hidden states of a forward", bytes);
    mem_free(*hidden);
    *hidden = wider;
    c->kept = *layers;
    return FR_OK;
}

int device_fail(Device *d, int code, const char *reason) {
    if (!d->status) d->status = error_set(&d->error, code, "%s", reason);
    return d->status;
}

int device_check(const Device *d, fr_error *err) {
    return d->status ? (int)error_set(err, d->status, "%s", d->error.message) : FR_OK;
}

void buffer_push(Buffer *b, int64_t first, int64_t n) {
    fr_assert(first >= 0 && n >= 0 && first + n <= b->n);
    if (b->device->backend->buffer_push) b->device->backend->buffer_push(b, first, n);
}

void buffer_pull(Buffer *b, int64_t first, int64_t n) {
    fr_assert(first >= 0 && n >= 0 && first + n <= b->n);
    if (b->device->backend->buffer_pull) b->device->backend->buffer_pull(b, first, n);
}

int weights_open_draft(Weights **out, Device *d, const Weights *target, const Model *model, int32_t n_rows,
                       fr_error *err) {
    WeightsOptions options = target->options;
    options.progress = NULL, options.packed_file = NULL;
    if (d->backend->draft_weights) return d->backend->draft_weights(out, d, target, model, n_rows, err);
    if (model_is_of_layers(model, target->model)) return d->backend->submodel(out, target, model, false, err);
    return d->backend->weights_open(out, model, &options, err);
}

void weights_close(Weights *w) {
    if (w) w->backend->weights_close(w);
}

void device_close(Device *d) {
    if (d) d->backend->device_close(d);
}

void buffer_close(Buffer *b) {
    if (b) b->device->backend->buffer_close(b);
}

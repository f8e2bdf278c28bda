/* model_rig.c - opens models, devices and executors for tests, and runs tokens through them. */
#include "model_rig.h"

#include "compute/cpu/cpu.h"
#include "base/rng.h"
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Gguf *rig_gguf(const char *path) {
    fr_error err = {0};
    Gguf *g = NULL;
    if (gguf_open(&g, path, &err)) fail_msg("%s", err.message);
    return g;
}

void rig_write_random(const RandomModel *m, char *path) {
    (void)mkdir("build", 0777); /* it is usually there */
    int fd = mkstemp(path);
    if (fd < 0) fail_msg("%s: no temporary file can be made", path);
    close(fd);
    fr_error err = {0};
    if (random_model_write(m, path, &err)) fail_msg("%s", err.message);
}

Gguf *rig_random_gguf(const RandomModel *m) {
    char path[] = "build/random-XXXXXX";
    rig_write_random(m, path);
    Gguf *g = rig_gguf(path);
    unlink(path);
    return g;
}

static Weights *open_weights(const Backend *backend, const Gguf *g, ActPrecision activations) {
    fr_error err = {0};
    Model *m = NULL;
    Weights *w = NULL;
    if (model_open(&m, g, &err)) fail_msg("%s", err.message);
    if (backend->weights_open(&w, m, &(WeightsOptions){.activations = activations, .n_threads = 1}, &err))
        fail_msg("%s", err.message);
    return w;
}

Weights *rig_weights(const Gguf *g, const Kernels *kernels) { return rig_weights_with(g, kernels, ACT_PRECISION_Q16); }

Weights *rig_weights_with(const Gguf *g, const Kernels *kernels, ActPrecision activations) {
    Weights *w = open_weights(&backend_cpu, g, activations);
    if (kernels) ((CpuWeights *)w)->kernels = kernels;
    return w;
}

Weights *rig_weights_in(const Backend *backend, const Gguf *g) { return open_weights(backend, g, ACT_PRECISION_Q16); }

void rig_weights_close(Weights *w) {
    if (!w) return;
    Model *m;
    memcpy(&m, &w->model, sizeof m); /* the model belongs to this rig */
    weights_close(w);
    model_close(m);
}

RigOptions rig_options(int32_t n_ctx, int32_t max_rows) {
    return (RigOptions){.n_threads = 1,
                        .kv_type = KV_F32,
                        .page_size = 16,
                        .n_ctx = n_ctx,
                        .max_sequences = 1,
                        .max_rows = max_rows};
}

Device *rig_device(const Weights *w, int n_threads) {
    fr_error err = {0};
    Device *d = NULL;
    if (w->backend->device_open(&d, &(DeviceOptions){.kernels = w->options.kernels, .n_threads = n_threads}, &err))
        fail_msg("%s", err.message);
    if (w->backend == &backend_cpu) ((CpuDevice *)d)->kernels = ((const CpuWeights *)w)->kernels;
    return d;
}

Buffer *rig_buffer(Device *d, int64_t n) {
    fr_error err = {0};
    Buffer *b = NULL;
    if (d->backend->buffer_open(&b, d, n, &err)) fail_msg("%s", err.message);
    return b;
}

Executor *rig_executor(const Weights *w, const RigOptions *o) {
    const ExecutorOptions options = {.kv_type = o->kv_type,
                                     .page_size = o->page_size,
                                     .n_ctx = o->n_ctx,
                                     .max_sequences = o->max_sequences,
                                     .n_pages = o->n_pages,
                                     .max_rows = o->max_rows};
    fr_error err = {0};
    Executor *e = NULL;
    if (executor_open(&e, rig_device(w, o->n_threads), w, &options, &err)) fail_msg("%s", err.message);
    return e;
}

void rig_executor_close(Executor *e) {
    if (!e) return;
    Device *d = executor_context(e)->device;
    executor_close(e);
    device_close(d);
}

int32_t rig_sequence(Executor *e) {
    fr_error err = {0};
    int32_t s = -1;
    if (executor_sequence_open(e, &s, &err)) fail_msg("%s", err.message);
    return s;
}

int32_t rig_fork(Executor *e, int32_t from) {
    int32_t to = rig_sequence(e);
    executor_sequence_share(e, from, to, executor_sequence_length(e, from));
    return to;
}

void rig_append(Executor *e, int32_t sequence, const int32_t *tokens, int32_t n, int32_t chunk, int32_t n_vocab,
                float *logits) {
    Row *rows = calloc((size_t)chunk, sizeof *rows);
    int32_t *all = calloc((size_t)chunk, sizeof *all);
    for (int32_t done = 0; done < n; done += chunk) {
        int32_t n_rows = n - done < chunk ? n - done : chunk;
        fr_error err = {0};
        for (int32_t i = 0; i < n_rows; i++) {
            rows[i] =
                (Row){.token = tokens[done + i], .sequence = sequence, .parent = i - 1, .want_logits = logits != NULL};
            all[i] = i;
        }
        if (executor_reserve(e, sequence, n_rows, &err) || executor_forward(e, rows, n_rows, &err))
            fail_msg("%s", err.message);
        for (int32_t i = 0; logits && i < n_rows; i++)
            memcpy(logits + (size_t)(done + i) * (size_t)n_vocab, executor_logits(e, i),
                   (size_t)n_vocab * sizeof *logits);
        executor_commit(e, sequence, all, n_rows);
    }
    free(all);
    free(rows);
}

int32_t rig_token(uint64_t seed, uint64_t i, int32_t n_vocab) {
    return (int32_t)(rng_uniform(seed, RNG_TEST, i, 0) * n_vocab);
}

void rig_tokens(uint64_t seed, int32_t n_vocab, int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++) tokens[i] = rig_token(seed, (uint64_t)i, n_vocab);
}

double rig_rel_rms(const float *a, const float *b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)a[i], y = (double)b[i];
        d += (x - y) * (x - y), s += y * y;
    }
    return sqrt(d / s);
}

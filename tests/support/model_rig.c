#include "model_rig.h"

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

Gguf *rig_random_gguf(const RandomModel *m) {
    char path[] = "build/random-XXXXXX";
    (void)mkdir("build", 0777); /* it is usually there */
    int fd = mkstemp(path);
    if (fd < 0) fail_msg("%s: no temporary file can be made", path);
    close(fd);
    fr_error err = {0};
    if (random_model_write(m, path, &err)) fail_msg("%s", err.message);
    Gguf *g = rig_gguf(path);
    unlink(path);
    return g;
}

Model *rig_model(const Gguf *g, const Kernels *kernels) { return rig_model_with(g, kernels, ACT_Q16); }

Model *rig_model_with(const Gguf *g, const Kernels *kernels, ActForm activations) {
    fr_error err = {0};
    Model *m = NULL;
    if (model_open(&m, g, &(ModelOptions){.kernels = kernels, .activations = activations, .n_threads = 1}, &err))
        fail_msg("%s", err.message);
    return m;
}

ExecutorOptions rig_options(int32_t n_ctx, int32_t max_rows) {
    return (ExecutorOptions){.n_threads = 1,
                             .kv_type = KV_F32,
                             .page_size = 16,
                             .n_ctx = n_ctx,
                             .max_sequences = 1,
                             .max_rows = max_rows};
}

Executor *rig_executor(const Model *m, const ExecutorOptions *options) {
    fr_error err = {0};
    Executor *e = NULL;
    if (executor_open(&e, m, options, &err)) fail_msg("%s", err.message);
    return e;
}

int32_t rig_sequence(Executor *e) {
    fr_error err = {0};
    int32_t s = -1;
    if (executor_sequence_open(e, &s, &err)) fail_msg("%s", err.message);
    return s;
}

void rig_append(Executor *e, int32_t sequence, const int32_t *tokens, int32_t n, int32_t chunk,
                int32_t n_vocab, float *logits) {
    Row *rows = calloc((size_t)chunk, sizeof *rows);
    int32_t *all = calloc((size_t)chunk, sizeof *all);
    for (int32_t done = 0; done < n; done += chunk) {
        int32_t n_rows = n - done < chunk ? n - done : chunk;
        fr_error err = {0};
        for (int32_t i = 0; i < n_rows; i++) {
            rows[i] = (Row){.token = tokens[done + i], .sequence = sequence, .parent = i - 1, .want_logits = logits != NULL};
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

double rig_rel_rms(const float *a, const double *b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), s += b[i] * b[i];
    return sqrt(d / s);
}

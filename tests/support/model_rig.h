/* model_rig.h - opens models for tests of the forward, or fails the test, and runs tokens through them. */
#ifndef TESTS_MODEL_RIG_H
#define TESTS_MODEL_RIG_H

#include "compute/executor.h"
#include "compute/cpu/kernels/kernels.h"
#include "random_model.h"

/* Each fails the running test with the error's sentence. */
Gguf *rig_gguf(const char *path);
void rig_write_random(const RandomModel *m, char *path); /* path: a template for mkstemp, below build/ */
Gguf *rig_random_gguf(const RandomModel *m); /* written to a temporary file below build/, which is unlinked */

/* Opens a model with its weights. kernels: the table to compute with, NULL for the best; it may be one that only tests
 * have. */
Weights *rig_weights(const Gguf *g, const Kernels *kernels);
Weights *rig_weights_with(const Gguf *g, const Kernels *kernels, ActPrecision activations);
Weights *rig_weights_in(const Backend *backend, const Gguf *g);
void rig_weights_close(Weights *w); /* and its model; NULL is fine */

/* An executor with a device of its own. */
typedef struct RigOptions {
    int n_threads;
    KvType kv_type;
    int32_t page_size, n_ctx, max_sequences;
    int64_t n_pages;
    int32_t max_rows;
} RigOptions;
/* One thread, F32 keys and values, pages of 16, one sequence of n_ctx tokens, batches of max_rows. */
RigOptions rig_options(int32_t n_ctx, int32_t max_rows);
Device *rig_device(const Weights *w, int n_threads);
Buffer *rig_buffer(Device *d, int64_t n);
Executor *rig_executor(const Weights *w, const RigOptions *options);
void rig_executor_close(Executor *e); /* and its device; NULL is fine */
int32_t rig_sequence(Executor *e);
int32_t rig_fork(Executor *e, int32_t from); /* a new one that shares all tokens of `from` */

/* Appends tokens to a sequence, `chunk` rows a forward, all committed. logits: [n][n_vocab], may be NULL. */
void rig_append(Executor *e, int32_t sequence, const int32_t *tokens, int32_t n, int32_t chunk, int32_t n_vocab,
                float *logits);

/* Returns a pattern of token ids: a pure function of seed and i. */
int32_t rig_token(uint64_t seed, uint64_t i, int32_t n_vocab);
void rig_tokens(uint64_t seed, int32_t n_vocab, int32_t *tokens, int32_t n);

/* rms(a - b) / rms(b) of two arrays. */
double rig_rel_rms(const float *a, const float *b, int64_t n);

/* The folder of target.gguf. */
#define RIG_TARGET "models/target.gguf"

#endif

/* model_rig.h - what every test of the forward needs: open or fail the test, and run tokens plainly. */
#ifndef TESTS_MODEL_RIG_H
#define TESTS_MODEL_RIG_H

#include "format/gguf.h"
#include "backend/executor.h"
#include "random_model.h"

/* Each fails the running test with the error's sentence. */
Gguf *rig_gguf(const char *path);
Gguf *rig_random_gguf(const RandomModel *m); /* written to a temporary file below build/, which is unlinked */
Model *rig_model(const Gguf *g, const Kernels *kernels);
Model *rig_model_with(const Gguf *g, const Kernels *kernels, ActForm activations);
Executor *rig_executor(const Model *m, const ExecutorOptions *options);
int32_t rig_sequence(Executor *e);

/* One thread, F32 keys and values, pages of 16, one sequence of n_ctx tokens, batches of max_rows. */
ExecutorOptions rig_options(int32_t n_ctx, int32_t max_rows);

/* Appends tokens to a sequence, `chunk` rows a forward, all committed. logits: [n][n_vocab], may be NULL. */
void rig_append(Executor *e, int32_t sequence, const int32_t *tokens, int32_t n, int32_t chunk,
                int32_t n_vocab, float *logits);

/* A pattern of token ids: a pure function of seed and i. */
int32_t rig_token(uint64_t seed, uint64_t i, int32_t n_vocab);
void rig_tokens(uint64_t seed, int32_t n_vocab, int32_t *tokens, int32_t n);

/* rms(a - b) / rms(b) of two arrays. */
double rig_rel_rms(const float *a, const double *b, int64_t n);

/* Where target.gguf ships. */
#define RIG_TARGET "models/target.gguf"

#endif

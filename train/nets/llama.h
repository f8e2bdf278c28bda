/* llama.h - trains a Llama-style target from scratch: a Trainer for llama_net.h that writes a GGUF file. */
#ifndef NETS_LLAMA_H
#define NETS_LLAMA_H

#include "gguf/gguf.h"
#include "train/nets/llama_net.h"
#include "train/nets/trainer.h"

typedef struct LlamaOptions {
    LlamaShape shape;       /* n_vocab is set from the vocabulary */
    int32_t max_length;     /* length of the longest sequence that learn will be given */
    int32_t n_ctx;          /* context length written into the file, at least max_length */
    TensorType type;        /* of the matrices in the file: F32, F16 or Q8_0; norms are F32 */
    const char *name;       /* general.name of the file; copied */
    const Gguf *vocabulary; /* its tokenizer keys go into the file; must outlive the trainer */
    uint64_t seed;          /* of the initial values */
    int n_threads;
} LlamaOptions;

/* Initial values are normally distributed with deviation 0.02, and 0.02 / sqrt(2 n_layer) in the two matrices of a
 * layer that add to the residual stream (as in GPT-2); norms are 1. Each is a function of (seed, tensor, element)
 * alone.
 *
 * learn: threads take whole sequences, so a batch should have several for each thread. The same seed and batches give
 * the same bits for the same number of threads; another number adds gradients in another order. Call gemm_open first
 * (gemm.h). */
int llama_trainer_open(Trainer **out, const LlamaOptions *options, fr_error *err);

/* Replaces the initial values by the weights in a model's file; see llama_init_read. */
int llama_trainer_init(Trainer *t, const char *path, uint64_t *fingerprint, fr_error *err);

int64_t llama_trainer_n_weights(const Trainer *t);

#endif

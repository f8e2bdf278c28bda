/* llama.h - a Llama-style target in training, and its network over one sequence: forward, loss, and the gradient of
 * every weight. */
#ifndef TRAIN_LLAMA_H
#define TRAIN_LLAMA_H

#include "base/mem.h"
#include "gguf/gguf.h"
#include "train/drafter_trainer.h"
#include "train/ops.h"

/* Shapes below: T n_tokens, C n_embd, V n_vocab, F n_ff, H n_head, G n_head_kv, D head_dim, L n_layer. */
typedef struct LlamaShape {
    int32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab;
    float rms_eps;
    double rope_base;
} LlamaShape;

typedef struct LlamaLayer {
    real *attn_norm; /* [C] */
    real *q, *k, *v; /* [H*D][C], [G*D][C], [G*D][C] */
    real *o;         /* [C][H*D] */
    real *ffn_norm;  /* [C] */
    real *gate, *up; /* [F][C] */
    real *down;      /* [C][F] */
} LlamaLayer;

/* The weights, or their gradients, which have the same shapes. They lie in one array, in the order of llama_tensor. */
typedef struct LlamaWeights {
    real *token_embd;   /* [V][C]: also the output matrix (tied) */
    LlamaLayer *layers; /* [L] */
    real *output_norm;  /* [C] */
} LlamaWeights;

/* A tensor of that array. */
typedef struct LlamaTensor {
    char name[64];     /* as in a GGUF file */
    int64_t n_rows, n; /* a norm has one row */
    bool is_norm, adds_to_residual;
} LlamaTensor;

int32_t llama_n_tensors(const LlamaShape *s);
LlamaTensor llama_tensor(const LlamaShape *s, int32_t i);
int64_t llama_n_weights(const LlamaShape *s);
/* layers: [L], written. memory: [llama_n_weights] */
LlamaWeights llama_place_weights(const LlamaShape *s, LlamaLayer *layers, real *memory);

/* The activations of one sequence, and scratch for its backward pass. */
typedef struct LlamaActs {
    int32_t max_tokens;
    Arena arena;
    real *cos_sin;                 /* [T][D/2][2] */
    struct LlamaLayerActs *layers; /* [L] */
    real *x;                       /* [T][C] residual stream after the last layer */
    real *normed, *inverse_rms;    /* [T][C], [T] */
    real *logits, *dlogits, *loss; /* [LLAMA_HEAD_ROWS][V] twice, [T] */
    real *delta;                   /* [T][C] the output of a block, before it is added to the residual stream */
    real *dx, *dnormed, *dattended, *dq, *dk, *dv; /* [T][C], [T][C], [T][H*D], [T][H*D], [T][G*D], [T][G*D] */
    real *dgate, *dup, *dhidden;                   /* [T][F] */
    real *dscores;                                 /* [ATTENTION_BLOCK][T] */
} LlamaActs;

enum { LLAMA_HEAD_ROWS = 128 }; /* rows of logits in memory at a time */

int llama_acts_open(LlamaActs *a, const LlamaShape *s, int32_t max_tokens, fr_error *err);
void llama_acts_close(LlamaActs *a); /* a zeroed one is fine */

typedef struct LlamaResult {
    double loss;   /* sum of -log p over the predictions in the loss */
    int64_t n;     /* predictions in the loss */
    int64_t right; /* those whose most probable token (ties going to the lowest id) is the next one */
} LlamaResult;

/* tokens: [T]. Fills the activations; a->normed is what the output matrix multiplies. */
void llama_forward(const LlamaShape *s, const LlamaWeights *w, LlamaActs *a, const int32_t *tokens, int32_t T);

/* After llama_forward: the loss of row t predicting token t + 1. tokens: [T + 1]; loss_mask: [T], or NULL for all rows.
 * dw: the gradient of weight * loss is added to it; NULL: only the result is computed. */
LlamaResult llama_learn(const LlamaShape *s, const LlamaWeights *w, const LlamaWeights *dw, LlamaActs *a,
                        const int32_t *tokens, const uint8_t *loss_mask, int32_t T, double weight);

/* Trains a Llama-style target from scratch: a Trainer for this network that writes a GGUF file. */

typedef struct LlamaOptions {
    LlamaShape shape;       /* n_vocab is set from the vocabulary */
    int32_t max_length;     /* length of the longest sequence that learn will be given */
    int32_t n_ctx;          /* context length written into the file, at least max_length */
    TensorType type;        /* the type of matrices in the file: F32, F16 or Q8_0; norms are F32 */
    const char *name;       /* general.name of the file; copied */
    const Gguf *vocabulary; /* its tokenizer keys go into the file; must outlive the trainer */
    uint64_t seed;          /* the seed of the initial values */
    int n_threads;
} LlamaOptions;

/* Initial values are normally distributed with deviation 0.02, and 0.02 / sqrt(2 n_layer) in the two matrices of a
 * layer that add to the residual stream (as in GPT-2); norms are 1. Each depends only on (seed, tensor, element).
 *
 * learn: threads take whole sequences, so a batch should have several for each thread. The bits do not depend on their
 * number (gradients.h). Call gemm_open first (gemm.h). */
int llama_trainer_open(Trainer **out, const LlamaOptions *options, fr_error *err);

/* Replaces the initial values by the weights in a model's file; see llama_init_read. */
int llama_trainer_init(Trainer *t, const char *path, uint64_t *fingerprint, fr_error *err);

int64_t llama_trainer_n_weights(const Trainer *t);

/* A model's file as the initial values of a target's training (`forerun train target --init`). */

#endif

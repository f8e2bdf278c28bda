/* model.h - the weights of one model, repacked for the kernels. Immutable after open; shared by executors. */
#ifndef CPU_MODEL_H
#define CPU_MODEL_H

#include "model/hparams.h"
#include "model/rope.h"

typedef struct LayerWeights {
    float *attn_norm, *ffn_norm;       /* [n_embd]; a drafter's own layer may have none (NULL) */
    float *q_norm, *k_norm;            /* [head_dim], or NULL (qwen3 has them) */
    float *q_bias, *k_bias, *v_bias;   /* [q_dim], [kv_dim], [kv_dim], or NULL (qwen2 has them) */
    PackedMatrix q, k, v;              /* [q_dim | kv_dim | kv_dim][n_embd] */
    PackedMatrix o;                    /* [n_embd][q_dim] */
    PackedMatrix gate, up;             /* [n_ff][n_embd] */
    PackedMatrix down;                 /* [n_embd][n_ff] */
} LayerWeights;

typedef struct Model {
    const Gguf *gguf;                  /* borrowed: the embedding is read from it row by row */
    const Kernels *kernels;
    ActForm activations;               /* of its block types; each matrix knows its own form */
    Hparams hparams;
    Rope rope;
    const GgufTensor *token_embd;      /* [n_vocab][n_embd] */
    float *output_norm;                /* [n_embd]; NULL in a drafter's own layer: none */
    PackedMatrix output;               /* [n_vocab][n_embd]; token_embd again where the two are tied */
    LayerWeights *layers;              /* [n_layer] */
    size_t weight_bytes;               /* bytes of packed matrices: what one forward reads */
    void *weights;                     /* where all of them lie, in the order in which a forward reads them */
} Model;

typedef struct ModelOptions {
    const Kernels *kernels;            /* NULL: the best of this machine */
    ActForm activations;               /* of block types: ACT_Q16 (0) or ACT_Q8 */
    int n_threads;                     /* for repacking */
    void (*progress)(void *user, double part); /* optional; part goes from 0 to 1 */
    void *progress_user;
} ModelOptions;

/* The Gguf must outlive the model. Refuses missing, unknown or misshapen tensors by name. */
int model_open(Model **out, const Gguf *g, const ModelOptions *options, fr_error *err);
void model_close(Model *m);

/* The embedding of a token as floats, out: [n_embd]. */
void model_embedding(const Model *m, int32_t token, float *out);

#endif

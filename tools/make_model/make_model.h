/* make_model.h - the parts of make_model: the description of a model, its vocabulary, its tensors. */
#ifndef MAKE_MODEL_H
#define MAKE_MODEL_H

#include "gguf/gguf_write.h"

typedef enum PlanScaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN, ROPE_LLAMA3 } PlanScaling;

typedef struct ModelPlan {
    const char *arch; /* as in general.architecture: one that forerun runs */
    int64_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, n_vocab, n_context; /* 0: not given yet */
    int64_t n_experts, n_experts_used, expert_ffn, shared_ffn, window;                 /* 0: none */
    int64_t delta_key_heads, delta_heads, delta_dim,
        attention_interval;                            /* shape of recurrent layers; 0: there are none */
    int64_t ssm_heads, ssm_groups, ssm_dim, ssm_state; /* shape of Mamba-2 */
    int64_t kv_rank, q_rank, rope_dim,
        value_dim; /* shape of latent attention; head_dim has both parts of a key; q_rank 0: none */
    int64_t n_dense, n_groups,
        n_groups_used; /* for ROUTED: leading layers without experts; groups of experts, 0: none */
    bool has_sigmoid_router;
    int64_t expert_interval;    /* llama4: one layer in expert_interval has experts; 0: all layers but the leading dense
                              * ones have */
    int64_t n_shared_kv, n_ple; /* gemma4: layers that read the keys of others; width of per-layer embeddings */
    int64_t n_nextn;            /* layers for multi-token prediction, after the n_layers others */
    const char *type;           /* a tensor type, or a mix: "Q4_K_M", "Q5_K_M" */
    bool tied;                  /* the output matrix is the embedding */
    double rope_base, bias_std;
    PlanScaling rope_scaling;
    double rope_factor, rope_low, rope_high, rope_original; /* low, high: llama3 only */
    uint64_t seed;
    const char *vocab_from; /* NULL: make one up */
    const char *out;
} ModelPlan;

/* Architectures with recurrent layers: Gated DeltaNet, Mamba-2, short convolutions. PLAN_CONV and PLAN_SHORT_CONV are
 * the positions that a convolution sees. */
#define HYBRIDS "qwen35 qwen35moe qwen3next"
#define MAMBAS "granitehybrid mamba2"
/* Architectures with leading dense layers, then experts, which may be in groups, be chosen by sigmoids, and have shared
 * experts beside them. */
#define ROUTED "deepseek2 glm4moe"
#define LFM2S "lfm2 lfm2moe"
#define GEMMAS "gemma2 gemma3 gemma4"
#define RECURRENT HYBRIDS " " MAMBAS " " LFM2S
enum { PLAN_CONV = 4, PLAN_SHORT_CONV = 3 };

enum { MIN_VOCAB = 3 + 256 }; /* <unk>, <s>, </s>, and a token for each byte */

/* Sets the tokenizer.* keys of a vocabulary of plan->n_vocab tokens: a made-up one, or another file's, cut or padded.
 * An n_vocab of 0 becomes that of the file. */
int vocabulary_set(GgufWriter *w, ModelPlan *plan, fr_error *err);

/* Sets the general.* keys and those of the architecture. */
void plan_set_keys(GgufWriter *w, const ModelPlan *plan);

bool plan_has_attention(const ModelPlan *plan, int64_t layer);
/* gemma4: whether a layer has a window, and then heads of half the size. */
bool plan_has_local_heads(const ModelPlan *plan, int64_t layer);
bool plan_has_experts(const ModelPlan *plan, int64_t layer);
/* Returns whether the architecture of the plan is among those of a list with spaces between them. */
bool plan_is(const ModelPlan *plan, const char *list);

/* Adds every tensor of the model, whose data are computed while the file is written. The Weights must live until
 * then. */
typedef struct Weights Weights;
int weights_add(Weights **out, GgufWriter *w, const ModelPlan *plan, fr_error *err);
void weights_free(Weights *weights);

/* Finds the number that llama.cpp's general.file_type gives to a type or mix; false where it does not exist. */
bool plan_file_type(const char *type, uint32_t *out);

#endif

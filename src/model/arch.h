/* arch.h - what the file of an architecture provides, and what it is given to read a model file with.
 *
 * An architecture is one file arch_NAME.c that defines an Architecture, and one line in the table of arch.c. Its
 * function `layer` takes the tensors of one layer from the file and describes the layer; hparams.c reads the keys,
 * which are named alike in all architectures. Every tensor of the file must be taken by somebody: one that nobody
 * knows would be ignored silently, and the model run wrongly.
 */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include "model/model.h"

typedef struct ArchReader ArchReader; /* a model file being read */
typedef struct KeyReader KeyReader;   /* its keys (hparams.c) */

typedef struct Architecture {
    const char *name; /* as in general.architecture */
    RopeStyle rope;
    const char *output_norm; /* the tensor; NULL: output_norm.weight */
    bool kv_heads_by_layer;  /* attention.head_count_kv may be a list with 0 for layers with a recurrent state */
    bool has_no_attention, has_no_ffn; /* in no layer: what describes them is not read */
    /* Reads the keys that only this architecture has, after those that all have; NULL: there are none. */
    void (*keys)(KeyReader *r, Hparams *h);
    /* Fills in a zeroed spec. Negative: an error. */
    int (*layer)(ArchReader *r, int32_t i_layer, LayerSpec *out);
} Architecture;

/* The architecture of a number (hparams.h), and the number of a name; false: unknown. */
const Architecture *arch_find(Arch arch);
bool arch_from_name(const char *name, size_t n, Arch *out);
/* All names, for messages: "llama, qwen2, ... and qwen3". Returns text. */
typedef struct ArchNames {
    char text[400];
} ArchNames;
const char *arch_names(ArchNames *out);

extern const Architecture arch_llama, arch_qwen2, arch_qwen3, arch_qwen2moe, arch_qwen3moe, arch_gemma2, arch_gemma3,
    arch_phi3, arch_smollm3, arch_granite, arch_qwen35, arch_qwen35moe, arch_qwen3next, arch_gpt_oss, arch_lfm2,
    arch_granitehybrid, arch_mamba2, arch_deepseek2, arch_glm4moe, arch_mistral3, arch_llama4, arch_lfm2moe;

/* ---- for arch_NAME.c ------------------------------------------------------------------------------ */

/* Key "<architecture>.<what>", a number in [min, max]; `fallback` where it is missing, unless the fallback is negative, or
 * NAN. The first failure is remembered, and min is the result. */
int32_t key_int(KeyReader *r, const char *what, int64_t fallback, int64_t min, int64_t max);
double key_float(KeyReader *r, const char *what, double fallback, double min, double max);
bool key_bool(KeyReader *r, const char *what, bool fallback);

const Hparams *arch_hparams(const ArchReader *r);
/* Whether the list of key-value heads gives none to a layer (kv_heads_by_layer). */
bool arch_has_no_keys(const ArchReader *r, int32_t i_layer);
/* Tensor "blk.<i_layer>.<name>", [n_out][n_in], or vector [n] as floats. A missing one is an error unless optional:
 * NULL then. */
int arch_matrix(ArchReader *r, int32_t i_layer, const char *name, int64_t n_in, int64_t n_out, bool optional,
                const GgufTensor **out);
int arch_expert_matrices(ArchReader *r, int32_t i_layer, const char *name, int64_t n_in, int64_t n_out,
                         const GgufTensor **out); /* [n_expert][n_out][n_in] */
int arch_matrices(ArchReader *r, int32_t i_layer, const char *name, int64_t n_in, int64_t n_out, int64_t n,
                  const GgufTensor **out); /* [n][n_out][n_in] */
bool arch_has(const ArchReader *r, int32_t i_layer, const char *name);
int arch_table(ArchReader *r, int32_t i_layer, const char *name, int64_t n_in, int64_t n_out,
               const float **out); /* [n_out][n_in] as floats */
int arch_vector(ArchReader *r, int32_t i_layer, const char *name, int64_t n, bool optional, const float **out);

/* The parts that most architectures share: attn_norm, attn_q, attn_k, attn_v, attn_output; biases of q, k and v where
 * the file has them; norms of the heads; ffn_norm, ffn_gate, ffn_up, ffn_down. */
int arch_attention(ArchReader *r, int32_t i_layer, LayerSpec *out);
int arch_gated_attention(ArchReader *r, int32_t i_layer, LayerSpec *out); /* attn_q has the gates as well */
int arch_qkv_biases(ArchReader *r, int32_t i_layer, LayerSpec *out);
int arch_head_norms(ArchReader *r, int32_t i_layer, bool optional, LayerSpec *out);
int arch_dense(ArchReader *r, int32_t i_layer, LayerSpec *out);
/* ffn_norm, ffn_gate_inp and the experts: ffn_gate_exps, ffn_up_exps, ffn_down_exps of hparams.n_ff_expert; and the shared
 * one, where there is one: ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp, ffn_gate_inp_shexp. Weights of the chosen sum to 1.
 */
int arch_experts(ArchReader *r, int32_t i_layer, LayerSpec *out);
void arch_expert_keys(KeyReader *r, Hparams *h);
/* Rows [first, first + n) of a matrix, as a matrix of its own. */
int arch_matrix_rows(ArchReader *r, const GgufTensor *t, int64_t first, int64_t n, const GgufTensor **out);
/* Matrices of the model's own, [n][n_out][n_in], to be filled by the caller; `name` is for messages. */
int arch_own_matrices(ArchReader *r, const char *name, TensorType type, int64_t n_in, int64_t n_out, int64_t n,
                      const GgufTensor **out, void **data);
/* Models some of whose layers have a recurrent state: their keys, the layers without a feed-forward part but its norm
 * (arch_delta_net.c). beta_alpha: the two are one matrix. */
void arch_delta_keys(KeyReader *r, Hparams *h);
int arch_delta_mixer(ArchReader *r, int32_t i_layer, bool beta_alpha, LayerSpec *out);
/* The keys of Mamba-2, and its layer without a feed-forward part (arch_mamba2.c). */
void arch_mamba2_keys(KeyReader *r, Hparams *h);
int arch_mamba2_mixer(ArchReader *r, int32_t i_layer, LayerSpec *out);
/* The factors of Granite (arch_granite.c): its keys, and those of a layer. */
void arch_granite_keys(KeyReader *r, Hparams *h);
void arch_granite_factors(const ArchReader *r, LayerSpec *out);
/* DeepSeek's and GLM's feed-forward parts (arch_deepseek2.c): leading dense layers, then experts with a bias of choices, groups,
 * a scale and shared experts; their keys. */
void arch_routed_keys(KeyReader *r, Hparams *h);
int arch_routed_ffn(ArchReader *r, int32_t i_layer, LayerSpec *out);
/* The layer of llama (arch_llama.c): experts where the model has them. */
int arch_llama_layer(ArchReader *r, int32_t i_layer, LayerSpec *out);
/* attention.temperature_scale, with steps of `length` positions; 0: attention.temperature_length has it. */
void arch_temperature_keys(KeyReader *r, Hparams *h, int32_t length);
/* What YaRN multiplies cos and sin by, 1 + 0.1 ln factor, divided by 1 + 0.1 m ln factor: transformers' attention factor for an
 * mscale_all_dim of m. */
void arch_divide_yarn(Hparams *h, double m);
/* A vector of ones, the model's own. */
int arch_ones(ArchReader *r, int64_t n, const float **out);
/* The layer sees a window, if hparams.window is not 0, and has the rope of such layers. */
void arch_window(const ArchReader *r, LayerSpec *out);
/* Of files with layers for multi-token prediction (nextn.h) behind the others, after the other keys: hparams.n_layer counts
 * them no longer. `layer` is then asked for these layers as well. */
void arch_nextn_keys(KeyReader *r, Hparams *h);

/* ---- for a layer that is read later, or not at all (nextn.c) -------------------------------------------- */

/* Calls `read` for layer i_layer of the file of an open model. `out` becomes a copy of that model without layers, and owns
 * what was read until arch_close_layer; a tensor of the layer that was not read is an error. After an error nothing is to
 * be closed. */
typedef int ArchReadFn(ArchReader *r, int32_t i_layer, void *user);
int arch_open_layer(Model *out, const Model *of, int32_t i_layer, ArchReadFn *read, void *user, fr_error *err);
void arch_close_layer(Model *m);

#endif

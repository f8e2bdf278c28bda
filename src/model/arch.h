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

typedef struct Architecture {
    const char *name; /* as in general.architecture */
    RopeStyle rope;
    /* Fills in a zeroed spec. Negative: an error. */
    int (*layer)(ArchReader *r, int32_t i_layer, LayerSpec *out);
} Architecture;

/* The architecture of a number (hparams.h), and the number of a name; false: unknown. */
const Architecture *arch_find(Arch arch);
bool arch_from_name(const char *name, size_t n, Arch *out);

extern const Architecture arch_llama, arch_qwen2, arch_qwen3;

/* ---- for arch_NAME.c ------------------------------------------------------------------------------ */

const Hparams *arch_hparams(const ArchReader *r);
/* Tensor "blk.<i_layer>.<name>", [n_out][n_in], or vector [n] as floats. A missing one is an error unless optional:
 * NULL then. */
int arch_matrix(ArchReader *r, int32_t i_layer, const char *name, int64_t n_in, int64_t n_out, bool optional,
                const GgufTensor **out);
int arch_vector(ArchReader *r, int32_t i_layer, const char *name, int64_t n, bool optional, const float **out);

/* The parts that most architectures share: attn_norm, attn_q, attn_k, attn_v, attn_output; biases of q, k and v where
 * the file has them; norms of the heads; ffn_norm, ffn_gate, ffn_up, ffn_down. */
int arch_attention(ArchReader *r, int32_t i_layer, LayerSpec *out);
int arch_qkv_biases(ArchReader *r, int32_t i_layer, LayerSpec *out);
int arch_head_norms(ArchReader *r, int32_t i_layer, bool optional, LayerSpec *out);
int arch_dense(ArchReader *r, int32_t i_layer, LayerSpec *out);

#endif

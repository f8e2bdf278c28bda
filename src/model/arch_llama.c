/* arch_llama.c - architecture "llama": Llama 1 to 3, TinyLlama, Vicuna, Mistral, SmolLM, and Mixtral, which has experts.
 * Adjacent components of a head are rotated together. */
#include "model/arch.h"

int arch_llama_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_qkv_biases(r, i_layer, out);
    if (!status) status = arch_head_norms(r, i_layer, true, out);
    if (status) return status;
    return arch_hparams(r)->n_expert ? arch_experts(r, i_layer, out) : arch_dense(r, i_layer, out);
}

const Architecture arch_llama = {
    .name = "llama", .rope = ROPE_PAIRS, .keys = arch_expert_keys, .layer = arch_llama_layer};
